#pragma once

/// \file
/// Checks that a batch, large shares and a decode over ranks have the bits of one machine.

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "mhla/core/executor.hpp"
#include "mhla/distributed/streaming.hpp"
#include "mhla/policy/locality.hpp"
#include "support/gradient_forms.hpp"
#include "support/gradient_random.hpp"
#include "support/rank_forms.hpp"
#include "support/rank_problem.hpp"

namespace mhla::test {

/// Tokens [begin, begin + count) of all sequences.
template <class T>
TensorView<T> middle_tokens(TensorView<T> t, Index begin, Index count) {
  t.data += begin * t.strides[1];
  t.shape[1] = count;
  return t;
}

/// Checks a batch [B,N,H,D] in blocks of `length`, with weights in both maps.
/// \param matrices   1, or a mixing matrix per head
/// \param sequences  1, or batch for matrices per sequence
template <class Form, class C>
void expect_bits_of_one_machine_for_a_batch(C& comm, Index batch, Index heads, Index blocks,
                                            Index length, Index matrices = 1, Index sequences = 1) {
  auto p = complete_problem<float>(typename Form::Alone());
  Random rng(static_cast<std::uint64_t>(batch));
  p.set_mixing(Pattern(blocks, blocks), rng, 0.1, matrices, sequences);
  const Index n = blocks * length - 1, d = p.tensors[kQ].cols();
  Tensor<float> q({batch, n, heads, d}), k = q, v = q, dout = q, dq = q, expected = q;
  for (Tensor<float>* t : {&q, &k, &v, &dout}) {
    for (float& x : t->data()) x = static_cast<float>(rng.uniform());
  }
  const BatchInputs<float> in = inputs(q, k, v);
  const CrossBlocks<ContiguousBlocks, ContiguousBlocks> all{{length}, {length}};
  const Tensor<float> o = Form::run_alone(in, p, all);
  GradientBuffers<float> whole(p), parts(p);
  add_gradients(
      typename Form::Alone(),
      GradientArguments<BatchInputs<float>>{in, dout, {.q = expected}, whole.parameter_views()}, p,
      all);

  const auto first = random_split(rng, blocks, comm.size());
  const auto r = static_cast<std::size_t>(comm.rank());
  const Index begin = std::min(first[r] * length, n);
  const Index count = std::min(first[r + 1] * length, n) - begin;
  const auto part = [&](auto t) { return middle_tokens(t, begin, count); };
  const BatchInputs<float> mine{.q = part(in.q), .k = part(in.k), .v = part(in.v)};
  Tensor<float> out({batch, n, heads, d});
  Form::run(comm, mine, p, all, part(out.view()));
  Form::add(comm,
            GradientArguments<BatchInputs<float>>{mine,
                                                  part(TensorView<const float>(dout)),
                                                  {.q = part(dq.view())},
                                                  parts.parameter_views()},
            p, all);
  for (Index b = 0; b < batch; ++b) {
    for (Index t = begin; t < begin + count; ++t) {
      for (Index h = 0; h < heads; ++h) {
        for (Index j = 0; j < d; ++j) {
          ASSERT_EQ(out.view()(b, t, h, j), o.view()(b, t, h, j));
          ASSERT_EQ(dq.view()(b, t, h, j), expected.view()(b, t, h, j));
        }
      }
    }
  }
  EXPECT_EQ(different_bits(parts, whole), "");
}

/// Checks shares so large that their summaries are sent in parts, the last part slab by slab.
/// \param first  borders of the ranks' blocks
template <class Form, class Op, class C>
void expect_bits_of_one_machine_for_large_shares(C& comm, const Op& op,
                                                 const std::vector<Index>& first) {
  constexpr Index kWidth = 36, kValues = 24;
  const Index count = first.back();
  Random rng(7);
  const Matrix<float> q = rng.matrix<float>(count, kWidth), v = rng.matrix<float>(count, kValues);
  struct {
    MixingMatrix<float> matrix;
    Op op;
    MixingView<const float> mixing() const { return matrix; }
    const char* text() const { return "large shares"; }
  } const p{locality<float>(count), op};
  const CrossBlocks<ContiguousBlocks, ContiguousBlocks> blocks{{1}, {1}};
  const Matrix<float> o = Form::run_alone(inputs(q, q, v), p, blocks);

  const auto r = static_cast<std::size_t>(comm.rank());
  const auto part = [&](const Matrix<float>& m) {
    return MatrixView<const float>(m).middle_rows(first[r], first[r + 1] - first[r]);
  };
  const Inputs<float> in{.q = part(q), .k = part(q), .v = part(v)};
  Matrix<float> out(in.q.rows, kValues);
  ThreadPool pool(2);
  Form::run(comm, in, p, blocks, out, {.executor = pool});
  EXPECT_EQ(bits_of(out), bits_of(Matrix<float>(o.middleRows(first[r], out.rows()))));

  if (comm.size() > 3) return;  // shares of one or two parts
  Matrix<float> dk = Matrix<float>::Zero(count, kWidth),
                dkeys = Matrix<float>::Zero(in.k.rows, kWidth);
  add_gradients(typename Form::Alone(),
                GradientArguments<Inputs<float>>{inputs(q, q, v), v, {.k = dk}, {}}, p, blocks);
  Form::add(comm, GradientArguments<Inputs<float>>{in, part(v), {.k = dkeys}, {}}, p, blocks,
            {.executor = pool});
  EXPECT_EQ(bits_of(dkeys), bits_of(Matrix<float>(dk.middleRows(first[r], dkeys.rows()))));
}

/// Checks a decode of five heads of six values each, with its state on one machine and split over
/// ranks.
/// \param axis  2 to split heads, 3 to split values
template <class C>
void expect_bits_of_one_stream(C& comm, std::size_t axis) {
  constexpr Index kSequences = 2, kTokens = 13, kHeads = 5, kWidth = 4, kValues = 6;
  Random rng(axis);
  const auto random = [&rng](Index width) {
    Tensor<float> t({kSequences, kTokens, kHeads, width});
    for (float& x : t.data()) x = static_cast<float>(rng.uniform());
    return t;
  };
  const Tensor<float> q = random(kWidth), k = random(kWidth), v = random(kValues);
  Tensor<float> expected = v, out = v;
  auto mixing = per_head(locality<float>(4), kHeads);
  mixing.view().for_each([&rng](float& c) { c = static_cast<float>(rng.uniform()); });
  const auto states_of = [](const auto& stream, Index first, Index heads) {
    std::vector<StreamingState<float>> states;
    for (Index pair = 0; pair < kSequences * heads; ++pair) {
      states.push_back(stream.start(first + pair % heads));
    }
    return states;
  };
  const Streaming<float> whole({.width = kWidth, .values = kValues, .block_length = 4}, mixing);
  auto states = states_of(whole, 0, kHeads);

  const auto borders = random_split(rng, axis == 2 ? kHeads : kValues, comm.size());
  const auto r = static_cast<std::size_t>(comm.rank());
  const Index count = borders[r + 1] - borders[r];
  const auto part = [&](TensorView<const float> t, bool split) {
    return split ? detail::part_of_axis(t, axis, borders[r], count) : t;
  };
  const Streaming<float> stream(
      {.width = kWidth, .values = axis == 2 ? kValues : count, .block_length = 4}, mixing);
  auto part_states =
      axis == 2 ? states_of(stream, borders[r], count) : states_of(stream, 0, kHeads);
  const auto append_rank =
      axis == 2 ? &distributed::append_heads<C, float, Operator<>, MixingMatrix<float>>
                : &distributed::append_values<C, float, Operator<>, MixingMatrix<float>>;
  Index begin = 0;
  for (const Index n : {1, 1, 5, 1, 4, 1}) {
    const auto tokens = [&](auto t) { return middle_tokens(t, begin, n); };
    const auto piece = [&](const Tensor<float>& t) { return tokens(TensorView<const float>(t)); };
    append(whole, std::span(states),
           BatchInputs<float>{.q = piece(q), .k = piece(k), .v = piece(v)},
           tokens(expected.view()));
    append_rank(comm, borders, stream, std::span(part_states),
                BatchInputs<float>{.q = part(piece(q), axis == 2),
                                   .k = part(piece(k), axis == 2),
                                   .v = part(piece(v), true)},
                tokens(out.view()), {});
    begin += n;
  }
  EXPECT_EQ(out.data(), expected.data()) << "on rank " << comm.rank();
}

}  // namespace mhla::test
