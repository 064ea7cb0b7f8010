#include "mhla/attention/block_streaming.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "mhla/attention/block_causal.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/policy/decay_mixing.hpp"
#include "support/message_of.hpp"
#include "support/outputs.hpp"
#include "support/problem.hpp"
#include "support/stopping_executor.hpp"

namespace mhla::test {
namespace {

constexpr Index kBlocks = 24;

/// A sequence of steps of equal blocks, and its block-causal outputs.
template <class T>
struct Steps {
  using Op = decltype(Operator{EluPlusOne{}, EluPlusOne{}, AnyNormalizer(), 1.0});

  Random rng;
  BlockSizes step;  // 3, 0, 5, 3, ... tokens
  std::vector<Index> all_sizes{};
  Matrix<T> q, k, v;
  Matrix<bool> mask;
  Op op;

  Steps(std::uint64_t seed, Index blocks, Index steps)
      : rng(seed),
        step(sizes(blocks)),
        op{EluPlusOne{}, EluPlusOne{}, AnyNormalizer(static_cast<WeightSums>(seed % 2), 0.25)} {
    for (Index s = 0; s < steps; ++s) {
      for (Index b = 0; b < blocks; ++b) all_sizes.push_back(step.run(b, 0).length);
    }
    const Index n = steps * step.tokens();
    q = rng.matrix<T>(n, 5);
    k = rng.matrix<T>(n, 5);
    v = rng.matrix<T>(n, 7);
    mask.resize(1, n);
    for (bool& kept : mask.reshaped()) kept = rng.chance(0.8);
  }
  static std::vector<Index> sizes(Index blocks) {
    constexpr Index kSizes[] = {3, 1, 5};
    std::vector<Index> all;
    for (Index b = 0; b < blocks; ++b) all.push_back(kSizes[b % 3]);
    return all;
  }
  Index steps() const { return q.rows() / step.tokens(); }
  Inputs<T> inputs() const {
    return {.q = q, .k = k, .v = v, .key_mask = Mask{mask.data(), mask.cols()}};
  }
  Inputs<T> inputs_of(Index s) const {
    return detail::middle_tokens(inputs(), s * step.tokens(), step.tokens());
  }
  Matrix<T> whole(const MixingView<const accumulator_t<T>>& m) const {
    return block_causal(inputs(), BlockSizes(all_sizes), m, step.blocks(), op);
  }
  Matrix<T> rows_of(const Matrix<T>& whole, Index s) const {
    return whole.middleRows(s * step.tokens(), step.tokens());
  }
  template <class Mixing>
  auto stream(const Mixing& m) const {
    return BlockStreaming<T, BlockSizes, Op, Mixing>({.width = 5, .values = 7}, step, m, op);
  }
  /// Appends step s.
  template <class Stream>
  Matrix<T> append(const Stream& stream, StreamingState<accumulator_t<T>>& state, Index s,
                   const Call& call = {}) const {
    Matrix<T> out = Matrix<T>::Constant(step.tokens(), 7, static_cast<T>(NAN));
    stream.append(state, inputs_of(s), out, call);
    return out;
  }
  /// Appends NaN.
  template <class Stream>
  void append_nan(const Stream& stream, StreamingState<accumulator_t<T>>& state) const {
    const Matrix<T> nan = Matrix<T>::Constant(step.tokens(), 7, static_cast<T>(NAN));
    Matrix<T> out = nan;
    stream.append(state, {.q = nan.leftCols(5), .k = nan.leftCols(5), .v = nan}, out);
  }
};

/// Calls f(steps, mixing matrix) for steps of one to three blocks, and dense, banded and sparse
/// matrices.
template <class T, class F>
void for_matrices(F&& f) {
  using A = accumulator_t<T>;
  for (const Index blocks : {1, 2, 3}) {
    for (const Index lower : {0, 1, 2, 5, 24}) {
      Steps<T> steps(static_cast<std::uint64_t>(lower), blocks, kBlocks / blocks);
      const Matrix<A> m = steps.rng.template matrix<A>(kBlocks, kBlocks, 0.1, 1);
      for (const Index upper : {0, 1, 24}) {
        f(steps, MixingMatrix<A>::banded(m, lower, upper));
      }
      const auto lists = MixingMatrix<A>::banded(m, lower, 0);
      f(steps, MixingMatrix<A>::sparse(lists));
    }
  }
}

template <class T>
class BlockStreamingOf : public testing::Test {};
using Scalars = testing::Types<float, Eigen::bfloat16>;
TYPED_TEST_SUITE(BlockStreamingOf, Scalars);

TYPED_TEST(BlockStreamingOf, AppendsHaveTheBitsOfBlockCausal) {
  using T = TypeParam;
  ThreadPool pool(3);
  for_matrices<T>([&](const Steps<T>& x, const auto& m) {
    const Matrix<T> whole = x.whole(m);
    const auto stream = x.stream(m);
    auto state = stream.start();
    for (Index s = 0; s < x.steps(); ++s) {
      const Matrix<T> out =
          s % 2 == 0 ? x.append(stream, state, s) : x.append(stream, state, s, {.executor = pool});
      EXPECT_TRUE(same_bits(out, x.rows_of(whole, s))) << s << " of steps of " << x.step.blocks();
    }
    EXPECT_EQ(state.position(), stream.capacity());
  });
}

TYPED_TEST(BlockStreamingOf, AStepThatIsTakenBackReachesNothing) {
  using T = TypeParam;
  for_matrices<T>([&](const Steps<T>& x, const auto& m) {
    const Matrix<T> whole = x.whole(m);
    const auto stream = x.stream(m);
    auto state = stream.start();
    for (Index s = 0; s < x.steps(); ++s) {
      for (int visits = 0; visits < 2; ++visits) {
        x.append_nan(stream, state);
        stream.roll_back(state);
      }
      if (s + 1 < x.steps()) {  // two steps in a row
        for (int twice = 0; twice < 2; ++twice) x.append_nan(stream, state);
        for (int twice = 0; twice < 2; ++twice) stream.roll_back(state);
      }
      EXPECT_TRUE(same_bits(x.append(stream, state, s), x.rows_of(whole, s))) << s;
    }
  });
}

TEST(BlockStreaming, AllStepsThatCanBeTakenBackCanBeAppendedAgain) {
  for_matrices<float>([&](const Steps<float>& x, const auto& m) {
    const Matrix<float> whole = x.whole(m);
    const auto stream = x.stream(m);
    auto state = stream.start();
    for (Index s = 0; s + 1 < x.steps(); ++s) x.append(stream, state, s);
    const auto rolled_back = [&] { stream.roll_back(state); };
    while (message_of<option_error>(rolled_back) == "no exception") continue;
    const Index first = state.position() / x.step.tokens();
    EXPECT_LT(first, x.steps() - 1);
    EXPECT_TRUE(first == 0 ||
                stream.state_bytes() < x.stream(MixingMatrix<float>(m.dense())).state_bytes());
    for (Index s = first; s < x.steps(); ++s) {
      EXPECT_TRUE(same_bits(x.append(stream, state, s), x.rows_of(whole, s))) << s;
    }
  });
}

TEST(BlockStreaming, DecayingTermsAreTheirMatrixWithoutAnEnd) {
  const DecayMixing<double> terms({0.6, 0.3}, {0.9, 0.5});
  for (const Index blocks : {1, 2, 3}) {
    const Steps<double> x(1, blocks, 20);
    const auto m = decay_matrix(terms, 20 * blocks);
    const Matrix<double> whole = x.whole(m);
    const auto stream = x.stream(terms);
    auto state = stream.start();
    for (Index s = 0; s < 20; ++s) {
      for (Index visits = 0; visits < s % 3; ++visits) x.append_nan(stream, state);
      for (Index visits = 0; visits < s % 3; ++visits) stream.roll_back(state);
      EXPECT_LT((x.append(stream, state, s) - x.rows_of(whole, s)).cwiseAbs().maxCoeff(), 1e-14);
    }
    EXPECT_GT(stream.capacity(), Index{1} << 60);
    for (int twice = 0; twice < 2; ++twice) stream.roll_back(state);
    EXPECT_EQ(message_of<option_error>([&] { stream.roll_back(state); }),
              "mhla::BlockStreaming::roll_back: state keeps no summary of block " +
                  std::to_string(17 * blocks) +
                  ", expected the blocks that the step before reads: fewer steps to take back");
  }
}

TEST(BlockStreaming, AStepThatFailedMayBeAppendedAgain) {
  const auto expect_bits = [](const auto& m) {
    const Steps<double> x(1, 2, 10);
    const auto stream = x.stream(m);
    auto state = stream.start(), other = stream.start();
    for (Index s = 0; s < 10; ++s) {
      for (const Index calls : {0, 1}) {
        StoppingExecutor stops{calls};
        EXPECT_THROW(x.append(stream, state, s, {.executor = stops}), std::runtime_error);
      }
      EXPECT_TRUE(same_bits(x.append(stream, state, s), x.append(stream, other, s))) << s;
    }
  };
  expect_bits(DecayMixing<double>({0.6, 0.3}, {0.9, 0.5}));
  expect_bits(MixingMatrix<double>::banded(Matrix<double>::Ones(20, 20), 2, 0));
}

TEST(BlockStreaming, ABandKeepsTheBlocksThatItReads) {
  const auto bytes = [](Index lower) {
    const Steps<float> x(1, 2, 1);
    return x.stream(MixingMatrix<float>::banded(1000, 1000, lower, 0)).state_bytes();
  };
  EXPECT_LT(bytes(4), bytes(1000) / 50);
  EXPECT_LT(bytes(4), bytes(40));
}

TEST(BlockStreaming, ASavedStateGoesOnWithTheSameBits) {
  const Steps<float> x(2, 2, 12);
  const auto stream = x.stream(MixingMatrix<float>::banded(Matrix<float>::Ones(24, 24), 3, 0));
  auto state = stream.start();
  for (Index s = 0; s < 9; ++s) x.append(stream, state, s);
  std::vector<std::byte> saved(stream.state_bytes());
  state.save(saved);
  auto again = stream.start();
  again.restore(saved);
  stream.roll_back(again);
  x.append(stream, again, 8);
  EXPECT_TRUE(same_bits(x.append(stream, state, 9), x.append(stream, again, 9)));
}

TEST(BlockStreaming, ABatchIsItsHeadsEachWithItsMatrix) {
  Random rng(1);
  constexpr Index kHeads = 3, kTokens = 6;
  MixingMatrix<float> m(Pattern(4, 4), kHeads);
  m.view().for_each([&](float& c) { c = static_cast<float>(rng.uniform(0.1, 1)); });
  const BlockStreaming<float, Contiguous> stream({.width = 2, .values = 2}, Contiguous(kTokens, 3),
                                                 m);
  std::vector<StreamingState<float>> states, alone;
  for (Index pair = 0; pair < 2 * kHeads; ++pair) states.push_back(stream.start(pair % kHeads));
  alone = states;
  ThreadPool pool(2);
  for (int step = 0; step < 2; ++step) {
    Tensor<float> x({2, kTokens, kHeads, 2}), out = x;
    for (float& number : x.data()) number = static_cast<float>(rng.uniform());
    append(stream, states, inputs(x, x, x), out.view(), {.executor = pool});
    for (Index pair = 0; pair < 2 * kHeads; ++pair) {
      const Matrix<float> head = dense(x.view().head(pair / kHeads, pair % kHeads));
      Matrix<float> expected(kTokens, 2);
      stream.append(alone[static_cast<std::size_t>(pair)], inputs(head, head, head), expected);
      EXPECT_TRUE(same_bits(expected, dense(out.view().head(pair / kHeads, pair % kHeads))));
    }
  }
}

TEST(BlockStreaming, WhatDoesNotFitIsRefusedAndChangesNothing) {
  using Stream = BlockStreaming<float, Contiguous>;
  const MixingMatrix<float> m(Matrix<float>::Ones(5, 5));
  const Stream stream({.width = 2, .values = 2}, Contiguous(6, 3), m);
  const Matrix<float> x = Matrix<float>::Ones(6, 2), few = Matrix<float>::Ones(5, 2);
  Matrix<float> out = x;
  auto state = stream.start();
  const auto text = [&](auto&& f) { return message_of<error>(f); };
  EXPECT_EQ(text([&] { stream.roll_back(state); }),
            "mhla::BlockStreaming::roll_back: state has no step, expected at least one");
  for (int step = 0; step < 2; ++step) stream.append(state, inputs(x, x, x), out);
  EXPECT_EQ(text([&] { stream.append(state, inputs(x, x, x), out); }),
            "mhla::BlockStreaming::append: in has 6 tokens after 12, expected at most 12 in all, "
            "whole steps of the blocks of the mixing matrix");
  stream.roll_back(state);
  EXPECT_EQ(text([&] { stream.append(state, inputs(few, few, few), out.topRows(5)); }),
            "mhla::BlockStreaming::append: q has shape [5, 2], expected [6, 2]");
  EXPECT_EQ(text([&] {
              stream.append(state, inputs(x, x, x), out,
                            {.kept = Workspace(reinterpret_cast<std::byte*>(out.data()), 8)});
            }),
            "mhla::BlockStreaming::append: kept is set, expected none: a stream keeps nothing");
  EXPECT_EQ(state.position(), 6);
  const MixingMatrix<float> three(Matrix<float>::Ones(3, 3));
  const Stream in_twos({.width = 2, .values = 2}, Contiguous(6, 3), three);
  const Stream in_threes({.width = 2, .values = 2}, Contiguous(6, 2), three);
  state = in_twos.start();
  EXPECT_EQ(text([&] { in_threes.append(state, inputs(x, x, x), out); }),
            "mhla::BlockStreaming::append: state was made by another stream, expected one made by "
            "start()");
  EXPECT_EQ(text([&] { in_twos.start(-1); }),
            "mhla::BlockStreaming::start: head is -1, expected a head of the mixing matrix, which "
            "has 1");
  const MixingMatrix<float> later(Pattern(4, {{0}, {0, 3}, {1}, {3}}));
  EXPECT_EQ(
      text([&] { Stream({.width = 2, .values = 2}, Contiguous(6, 3), later); }),
      "mhla::BlockStreaming: mixing lists block 3 for block 1, expected blocks of no later step, "
      "up to 1");
  EXPECT_EQ(text([&] {
              Stream({.width = 2, .values = 2}, Contiguous(6, 2),
                     MixingMatrix<float>(Pattern(3, 3), 1, 2));
            }),
            "mhla::BlockStreaming: mixing has 2 x 1 matrices, expected one, or one per head: a "
            "stream for each sequence");
  EXPECT_EQ(text([&] { Stream({.width = -1, .values = 2}, Contiguous(6, 2), m); }),
            "mhla::BlockStreaming: sizes are width -1, values 2, normalizer_width 0, expected "
            "widths >= 0");
  EXPECT_EQ(
      text([&] { Stream({.width = 2, .values = 2}, Contiguous(0, 2), m); }),
      "mhla::BlockStreaming: step has no token, expected a partition of the tokens of a step");
}

}  // namespace
}  // namespace mhla::test
