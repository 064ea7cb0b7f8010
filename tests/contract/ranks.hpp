#pragma once

/// \file
/// What forms over ranks promise: the bits of one machine for any number of ranks and any split,
/// and for whatever is wrong on one rank an error on all. Ranks is as in communicator.hpp.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mhla/distributed/bidirectional.hpp"
#include "mhla/distributed/causal.hpp"
#include "mhla/distributed/streaming.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/locality.hpp"
#include "support/gradient_forms.hpp"
#include "support/gradient_random.hpp"
#include "support/message_of.hpp"
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

/// The same of a batch [B,N,H,D] in blocks of `length`, with weights in both maps.
template <class Form, class C>
void expect_bits_of_one_machine_for_a_batch(C& comm, Index batch, Index heads, Index blocks,
                                            Index length) {
  auto p = complete_problem<typename Form::Alone, float>();
  Random rng(static_cast<std::uint64_t>(batch));
  p.set_mixing(Pattern(blocks, blocks), rng, 0.1);
  const Index n = blocks * length - 1, d = p.tensors[kQ].cols();
  Tensor<float> q({batch, n, heads, d}), k = q, v = q, dout = q, dq = q, expected = q;
  for (Tensor<float>* t : {&q, &k, &v, &dout}) {
    for (float& x : t->data()) x = static_cast<float>(rng.uniform());
  }
  const BatchInputs<float> in = inputs(q, k, v);
  const CrossBlocks<ContiguousBlocks, ContiguousBlocks> all{{length}, {length}};
  const Tensor<float> o = Form::run_alone(in, p, all);
  GradientBuffers<float> whole(p), own(p);
  add_gradients<typename Form::Alone>(
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
  Form::add(
      comm,
      GradientArguments<BatchInputs<float>>{
          mine, part(TensorView<const float>(dout)), {.q = part(dq.view())}, own.parameter_views()},
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
  EXPECT_EQ(different_bits(own, whole), "");
}

template <class Ranks>
class RanksContract : public testing::Test {};
TYPED_TEST_SUITE_P(RanksContract);

TYPED_TEST_P(RanksContract, BidirectionalHasTheBitsOfOneMachine) {
  TypeParam::run([](auto& comm) {
    for_problems<BidirectionalForm, float>(
        120, [&](const auto& p) { expect_bits_of_one_machine<BidirectionalOverRanks>(comm, p); });
    for_problems<BidirectionalForm, Eigen::bfloat16>(
        20, [&](const auto& p) { expect_bits_of_one_machine<BidirectionalOverRanks>(comm, p); });
  });
}

TYPED_TEST_P(RanksContract, CausalHasTheBitsOfOneMachine) {
  TypeParam::run([](auto& comm) {
    for_problems<CausalForm, float>(
        120, [&](const auto& p) { expect_bits_of_one_machine<CausalOverRanks>(comm, p); });
    for_problems<CausalForm, double>(
        20, [&](const auto& p) { expect_bits_of_one_machine<CausalOverRanks>(comm, p); });
  });
}

TYPED_TEST_P(RanksContract, BatchesHaveTheBitsOfOneMachine) {
  TypeParam::run([](auto& comm) {
    expect_bits_of_one_machine_for_a_batch<BidirectionalOverRanks>(comm, 2, 3, 9, 5);
    expect_bits_of_one_machine_for_a_batch<CausalOverRanks>(comm, 9, 8, 5, 3);
    expect_bits_of_one_machine_for_a_batch<BidirectionalOverRanks>(comm, 0, 3, 5, 3);
  });
}

/// Shares so large that their summaries travel in parts, the last one slab by slab.
template <class Form, class Op, class C>
void expect_bits_of_one_machine_for_large_shares(C& comm, const Op& op) {
  constexpr Index kBlocks = 400, kWidth = 36, kValues = 24;
  Random rng(7);
  const Matrix<float> q = rng.matrix<float>(kBlocks, kWidth),
                      v = rng.matrix<float>(kBlocks, kValues);
  struct {
    MixingMatrix<float> matrix;
    Op op;
    MixingView<const float> mixing() const { return matrix; }
    const char* text() const { return "large shares"; }
  } const p{locality<float>(kBlocks), op};
  const CrossBlocks<ContiguousBlocks, ContiguousBlocks> blocks{{1}, {1}};
  const Matrix<float> o = Form::run_alone(inputs(q, q, v), p, blocks);

  const auto first = random_split(rng, kBlocks, comm.size());
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
  Matrix<float> dk = Matrix<float>::Zero(kBlocks, kWidth),
                own = Matrix<float>::Zero(in.k.rows, kWidth);
  add_gradients<typename Form::Alone>(
      GradientArguments<Inputs<float>>{inputs(q, q, v), v, {.k = dk}, {}}, p, blocks);
  Form::add(comm, GradientArguments<Inputs<float>>{in, part(v), {.k = own}, {}}, p, blocks,
            {.executor = pool});
  EXPECT_EQ(bits_of(own), bits_of(Matrix<float>(dk.middleRows(first[r], own.rows()))));
}

TYPED_TEST_P(RanksContract, LargeSharesHaveTheBitsOfOneMachine) {
  TypeParam::run([](auto& comm) {
    expect_bits_of_one_machine_for_large_shares<BidirectionalOverRanks>(comm, Operator<>{});
    expect_bits_of_one_machine_for_large_shares<BidirectionalOverRanks>(
        comm, Operator{Relu{}, Relu{}, CrossQuery{}});
    expect_bits_of_one_machine_for_large_shares<CausalOverRanks>(comm, Operator<>{});
  });
}

TYPED_TEST_P(RanksContract, GridsAreSplitAlongTheirFirstAxis) {
  TypeParam::run([](auto& comm) {
    Random rng(3);
    const GridShape block(2, 4, 2);
    const Index frames = 10, frame = 8 * 4;  // tokens of a frame
    const Matrix<float> q = rng.matrix<float>(frames * frame, 5),
                        v = rng.matrix<float>(q.rows(), 7);
    const Grid whole({frames, 8, 4}, block);
    const auto mixing = locality<float>(whole);
    const Matrix<float> o = bidirectional(q, q, v, whole, mixing);

    const auto first = random_split(rng, frames / 2, comm.size());  // pairs of frames
    const auto r = static_cast<std::size_t>(comm.rank());
    const Index begin = 2 * first[r] * frame, count = 2 * (first[r + 1] - first[r]) * frame;
    const auto part = [&](const Matrix<float>& m) {
      return MatrixView<const float>(m).middle_rows(begin, count);
    };
    const Inputs<float> in{.q = part(q), .k = part(q), .v = part(v)};
    Matrix<float> out(count, 7);
    if (count > 0) {
      const Grid own({count / frame, 8, 4}, block);
      distributed::bidirectional(comm, in, own, mixing, Operator<>{}, out);
    } else {
      distributed::bidirectional(comm, in, Contiguous(0, 1), mixing, Operator<>{}, out);
    }
    EXPECT_EQ(bits_of(out), bits_of(Matrix<float>(o.middleRows(begin, count))));
  });
}

/// Packed sequences, each with a split of its own.
TYPED_TEST_P(RanksContract, PackedSequencesHaveTheBitsOfOneMachine) {
  TypeParam::run([](auto& comm) {
    constexpr Index kLength = 4, kHeads = 2, kWidth = 3;
    auto p = complete_problem<CausalForm, float>();
    Random rng(5);
    p.set_mixing(Pattern(6, 6), rng, 0.1);
    const std::vector<Index> offsets{0, 24, 24, 37, 42};
    Tensor<float> x({1, offsets.back(), kHeads, kWidth}), dx = x;
    for (float& number : x.data()) number = static_cast<float>(rng.uniform());
    const CrossBlocks<ContiguousBlocks, ContiguousBlocks> blocks{{kLength}, {kLength}};
    BatchInputs<float> in = inputs(x, x, x);
    in.query_offsets = in.key_offsets = offsets;
    const Tensor<float> o = CausalOverRanks::run_alone(in, p, blocks);
    add_gradients<CausalForm>(GradientArguments<BatchInputs<float>>{in, x, {.q = dx}, {}}, p,
                              blocks);

    std::vector<Index> own_offsets{0}, tokens;
    for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
      const Index length = offsets[s + 1] - offsets[s];
      const auto first = random_split(rng, (length + kLength - 1) / kLength, comm.size());
      const auto r = static_cast<std::size_t>(comm.rank());
      const Index end = std::min(first[r + 1] * kLength, length);
      for (Index t = std::min(first[r] * kLength, length); t < end; ++t) {
        tokens.push_back(offsets[s] + t);
      }
      own_offsets.push_back(static_cast<Index>(tokens.size()));
    }
    const Index n = own_offsets.back();
    Tensor<float> own({1, n, kHeads, kWidth}), out = own, dq = own;
    const auto expect_row = [&](Index t, const Tensor<float>& part, const Tensor<float>& all) {
      for (Index h = 0; h < kHeads; ++h) {
        for (Index j = 0; j < kWidth; ++j) {
          ASSERT_EQ(part(0, t, h, j), all(0, tokens[static_cast<std::size_t>(t)], h, j));
        }
      }
    };
    for (Index t = 0; t < n; ++t) {
      for (Index h = 0; h < kHeads; ++h) {
        for (Index j = 0; j < kWidth; ++j) {
          own.view()(0, t, h, j) = x(0, tokens[static_cast<std::size_t>(t)], h, j);
        }
      }
    }
    BatchInputs<float> mine = inputs(own, own, own);
    mine.query_offsets = mine.key_offsets = own_offsets;
    CausalOverRanks::run(comm, mine, p, blocks, out);
    CausalOverRanks::add(comm, GradientArguments<BatchInputs<float>>{mine, own, {.q = dq}, {}}, p,
                         blocks);
    for (Index t = 0; t < n; ++t) {
      expect_row(t, out, o);
      expect_row(t, dq, dx);
    }
    GradientBuffers<float> sums(p);
    const std::string message = message_of<option_error>([&] {
      CausalOverRanks::add(comm,
                           GradientArguments<BatchInputs<float>>{
                               mine, own, {}, {.mixing = sums.parameter_views().mixing}},
                           p, blocks);
    });
    if (comm.size() > 1) {
      EXPECT_NE(message.find("is set for sequences that are split differently"), std::string::npos);
    }
  });
}

/// A call of the bidirectional form that is right on rank 0, and wrong on the last rank.
template <class C, class Change>
std::string message_of_wrong_call(C& comm, Change&& change) {
  using Wrong = GradientProblem<float>;
  Wrong p = complete_problem<BidirectionalForm, float>();
  Random rng(1);
  p.set_mixing(
      Pattern(p.blocks.queries.blocks() * comm.size(), p.blocks.keys.blocks() * comm.size()), rng,
      0.1);
  Matrix<float> out(p.queries(), p.tensors[kV].cols());
  out.setConstant(7);
  if (comm.rank() == comm.size() - 1) change(p);
  const std::string message = message_of<error>(
      [&] { distributed::bidirectional(comm, p.inputs(), p.blocks, p.mixing(), p.op, out); });
  EXPECT_TRUE((out.array() == 7).all()) << message;
  return message;
}

TYPED_TEST_P(RanksContract, WhatOneRankHasWrongIsAnErrorOnAll) {
  TypeParam::run([](auto& comm) {
    if (comm.size() == 1) return;
    const Index last = comm.size() - 1;
    const auto expect = [&](auto&& change, const std::string& message) {
      EXPECT_EQ(message_of_wrong_call(comm, change),
                "mhla::distributed::bidirectional: " + message);
    };
    const std::string on = " on rank " + std::to_string(last);
    using P = GradientProblem<float>;
    expect([](P& p) { p.coefficients(0, 1) += 1; },
           "mixing has other coefficients" + on + ", expected the same as on rank 0");
    expect([](P& p) { p.op.scale = 2; },
           "op has other normalizer or scale" + on + ", expected the same as on rank 0");
    expect([](P& p) { p.op.normalizer = {KeySum{0.5}}; },
           "op has other normalizer or scale" + on + ", expected the same as on rank 0");
    expect(
        [](P& p) {
          p.op.key_map = {ElementwiseProduct<float>(
              DenseWeights<float>{Matrix<float>::Ones(3, 3), Matrix<float>::Ones(3, 1)},
              DenseWeights<float>{Matrix<float>::Ones(3, 3), Matrix<float>::Ones(3, 1)})};
        },
        "op has other key map" + on + ", expected the same as on rank 0");
    expect(
        [](P& p) {
          Random rng(2);
          p.set_mixing(Pattern(p.pattern.rows() + 1, p.pattern.cols()), rng, 0.1);
        },
        "mixing has rows " + std::to_string(3 * comm.size() + 1) + on + ", expected " +
            std::to_string(3 * comm.size()) + " as on rank 0");
    const std::string own =
        "mhla::distributed::bidirectional: v has shape [5, 2], expected [6, any] (a row for each "
        "of k)";
    const std::string got =
        message_of_wrong_call(comm, [](P& p) { p.tensors[kV].conservativeResize(5, 2); });
    EXPECT_EQ(got, comm.rank() == last
                       ? own
                       : "mhla::distributed::bidirectional: arguments were refused" + on + " (" +
                             own + "), expected what every rank takes");
  });
}

TYPED_TEST_P(RanksContract, RanksThatCallDifferentFormsAreToldSo) {
  TypeParam::run([](auto& comm) {
    if (comm.size() == 1) return;
    const auto p = complete_problem<CausalForm, float>();
    Matrix<float> out(p.queries(), p.tensors[kV].cols());
    const std::string message = message_of<option_error>([&] {
      if (comm.rank() == 1) {
        distributed::causal(comm, p.inputs(), p.blocks.queries, p.mixing(), p.op, out);
      } else {
        distributed::bidirectional(comm, p.inputs(), p.blocks, p.mixing(), p.op, out);
      }
    });
    EXPECT_NE(message.find("ranks call distributed::causal on rank 1, expected "
                           "distributed::bidirectional as on rank 0"),
              std::string::npos)
        << message;
  });
}

/// A decode of five heads of six values each, with its state on one machine and split over ranks.
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
  const auto mixing = locality<float>(4);
  const auto states_of = [](const auto& stream, Index count) {
    return std::vector(static_cast<std::size_t>(count), stream.start());
  };
  const Streaming<float> whole({.width = kWidth, .values = kValues, .block_length = 4}, mixing);
  auto states = states_of(whole, kSequences * kHeads);

  const auto borders = random_split(rng, axis == 2 ? kHeads : kValues, comm.size());
  const auto r = static_cast<std::size_t>(comm.rank());
  const Index own = borders[r + 1] - borders[r];
  const auto part = [&](TensorView<const float> t, bool split) {
    return split ? detail::part_of_axis(t, axis, borders[r], own) : t;
  };
  const Streaming<float> stream(
      {.width = kWidth, .values = axis == 2 ? kValues : own, .block_length = 4}, mixing);
  auto own_states = states_of(stream, kSequences * (axis == 2 ? own : kHeads));
  const auto append_own =
      axis == 2 ? &distributed::append_heads<C, float, Operator<>, MixingMatrix<float>>
                : &distributed::append_values<C, float, Operator<>, MixingMatrix<float>>;
  Index begin = 0;
  for (const Index n : {1, 1, 5, 1, 4, 1}) {
    const auto tokens = [&](auto t) { return middle_tokens(t, begin, n); };
    const auto piece = [&](const Tensor<float>& t) { return tokens(TensorView<const float>(t)); };
    append(whole, std::span(states),
           BatchInputs<float>{.q = piece(q), .k = piece(k), .v = piece(v)},
           tokens(expected.view()));
    append_own(comm, borders, stream, std::span(own_states),
               BatchInputs<float>{.q = part(piece(q), axis == 2),
                                  .k = part(piece(k), axis == 2),
                                  .v = part(piece(v), true)},
               tokens(out.view()), {});
    begin += n;
  }
  EXPECT_EQ(out.data(), expected.data()) << "on rank " << comm.rank();
}

TYPED_TEST_P(RanksContract, StreamsHaveTheBitsOfOneMachine) {
  TypeParam::run([](auto& comm) {
    expect_bits_of_one_stream(comm, 2);
    expect_bits_of_one_stream(comm, 3);
  });
}

REGISTER_TYPED_TEST_SUITE_P(RanksContract, GridsAreSplitAlongTheirFirstAxis,
                            PackedSequencesHaveTheBitsOfOneMachine,
                            BidirectionalHasTheBitsOfOneMachine, CausalHasTheBitsOfOneMachine,
                            BatchesHaveTheBitsOfOneMachine, LargeSharesHaveTheBitsOfOneMachine,
                            WhatOneRankHasWrongIsAnErrorOnAll, RanksThatCallDifferentFormsAreToldSo,
                            StreamsHaveTheBitsOfOneMachine);

}  // namespace mhla::test
