#pragma once

/// \file
/// Promises of forms over ranks: the bits of one machine for any number of ranks and any split, and
/// an error on all ranks for a fault on one rank. Ranks is as in communicator.hpp.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mhla/distributed/bidirectional.hpp"
#include "mhla/distributed/causal.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/locality.hpp"
#include "support/gradient_forms.hpp"
#include "support/gradient_random.hpp"
#include "support/message_of.hpp"
#include "support/rank_bits.hpp"
#include "support/rank_forms.hpp"
#include "support/rank_problem.hpp"

namespace mhla::test {

template <class Ranks>
class RanksContract : public testing::Test {};
TYPED_TEST_SUITE_P(RanksContract);

TYPED_TEST_P(RanksContract, BidirectionalHasTheBitsOfOneMachine) {
  TypeParam::run([](auto& comm) {
    for_problems<float>(BidirectionalForm(), 120, [&](const auto& p) {
      expect_bits_of_one_machine<BidirectionalOverRanks>(comm, p);
    });
    for_problems<Eigen::bfloat16>(BidirectionalForm(), 20, [&](const auto& p) {
      expect_bits_of_one_machine<BidirectionalOverRanks>(comm, p);
    });
  });
}

TYPED_TEST_P(RanksContract, CausalHasTheBitsOfOneMachine) {
  TypeParam::run([](auto& comm) {
    for_problems<float>(CausalForm(), 120, [&](const auto& p) {
      expect_bits_of_one_machine<CausalOverRanks>(comm, p);
    });
    for_problems<double>(CausalForm(), 20, [&](const auto& p) {
      expect_bits_of_one_machine<CausalOverRanks>(comm, p);
    });
  });
}

TYPED_TEST_P(RanksContract, BatchesHaveTheBitsOfOneMachine) {
  TypeParam::run([](auto& comm) {
    expect_bits_of_one_machine_for_a_batch<BidirectionalOverRanks>(comm, 2, 3, 9, 5);
    expect_bits_of_one_machine_for_a_batch<CausalOverRanks>(comm, 9, 8, 5, 3);
    expect_bits_of_one_machine_for_a_batch<BidirectionalOverRanks>(comm, 0, 3, 5, 3);
    expect_bits_of_one_machine_for_a_batch<BidirectionalOverRanks>(comm, 2, 3, 9, 5, 3);
    expect_bits_of_one_machine_for_a_batch<CausalOverRanks>(comm, 9, 8, 5, 3, 8);
    expect_bits_of_one_machine_for_a_batch<BidirectionalOverRanks>(comm, 3, 2, 5, 3, 2, 3);
    expect_bits_of_one_machine_for_a_batch<CausalOverRanks>(comm, 9, 8, 5, 3, 8, 9);
  });
}

TYPED_TEST_P(RanksContract, LargeSharesHaveTheBitsOfOneMachine) {
  TypeParam::run([](auto& comm) {
    Random rng(7);
    const auto any = random_split(rng, 400, comm.size());
    const Operator cross{Relu{}, Relu{}, CrossQuery{}};
    expect_bits_of_one_machine_for_large_shares<BidirectionalOverRanks>(comm, Operator<>{}, any);
    expect_bits_of_one_machine_for_large_shares<BidirectionalOverRanks>(comm, cross, any);
    expect_bits_of_one_machine_for_large_shares<CausalOverRanks>(comm, Operator<>{}, any);
    // A rank without blocks does not know the block length of other ranks.
    std::vector<Index> all_on_one(static_cast<std::size_t>(comm.size()) + 1, 400);
    all_on_one.front() = 0;
    expect_bits_of_one_machine_for_large_shares<BidirectionalOverRanks>(comm, cross, all_on_one);
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
      const Grid local({count / frame, 8, 4}, block);
      distributed::bidirectional(comm, in, local, mixing, Operator<>{}, out);
    } else {
      distributed::bidirectional(comm, in, Contiguous(0, 1), mixing, Operator<>{}, out);
    }
    EXPECT_EQ(bits_of(out), bits_of(Matrix<float>(o.middleRows(begin, count))));
  });
}

/// Packed sequences, each with a separate split.
TYPED_TEST_P(RanksContract, PackedSequencesHaveTheBitsOfOneMachine) {
  TypeParam::run([](auto& comm) {
    constexpr Index kLength = 4, kHeads = 2, kWidth = 3;
    auto p = complete_problem<float>(CausalForm());
    Random rng(5);
    p.set_mixing(Pattern(6, 6), rng, 0.1);
    const std::vector<Index> offsets{0, 24, 24, 37, 42};
    Tensor<float> x({1, offsets.back(), kHeads, kWidth}), dx = x;
    for (float& number : x.data()) number = static_cast<float>(rng.uniform());
    const CrossBlocks<ContiguousBlocks, ContiguousBlocks> blocks{{kLength}, {kLength}};
    BatchInputs<float> in = inputs(x, x, x);
    in.query_offsets = in.key_offsets = offsets;
    const Tensor<float> o = CausalOverRanks::run_alone(in, p, blocks);
    add_gradients(CausalForm(), GradientArguments<BatchInputs<float>>{in, x, {.q = dx}, {}}, p,
                  blocks);

    std::vector<Index> local_offsets{0}, tokens;
    for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
      const Index length = offsets[s + 1] - offsets[s];
      const auto first = random_split(rng, (length + kLength - 1) / kLength, comm.size());
      const auto r = static_cast<std::size_t>(comm.rank());
      const Index end = std::min(first[r + 1] * kLength, length);
      for (Index t = std::min(first[r] * kLength, length); t < end; ++t) {
        tokens.push_back(offsets[s] + t);
      }
      local_offsets.push_back(static_cast<Index>(tokens.size()));
    }
    const Index n = local_offsets.back();
    Tensor<float> local({1, n, kHeads, kWidth}), out = local, dq = local;
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
          local.view()(0, t, h, j) = x(0, tokens[static_cast<std::size_t>(t)], h, j);
        }
      }
    }
    BatchInputs<float> mine = inputs(local, local, local);
    mine.query_offsets = mine.key_offsets = local_offsets;
    CausalOverRanks::run(comm, mine, p, blocks, out);
    CausalOverRanks::add(comm, GradientArguments<BatchInputs<float>>{mine, local, {.q = dq}, {}}, p,
                         blocks);
    for (Index t = 0; t < n; ++t) {
      expect_row(t, out, o);
      expect_row(t, dq, dx);
    }
    GradientBuffers<float> sums(p);
    const std::string message = message_of<option_error>([&] {
      CausalOverRanks::add(comm,
                           GradientArguments<BatchInputs<float>>{
                               mine, local, {}, {.mixing = sums.parameter_views().mixing}},
                           p, blocks);
    });
    if (comm.size() > 1) {
      EXPECT_NE(message.find("is set for sequences that are split differently"), std::string::npos);
    }
  });
}

/// A call of the bidirectional form that is right on rank 0 and wrong on the last rank.
template <class C, class Change>
std::string message_of_wrong_call(C& comm, Change&& change) {
  using Wrong = GradientProblem<float>;
  Wrong p = complete_problem<float>(BidirectionalForm());
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
    expect([](P& p) { p.coefficients(0, 1) *= -1, p.coefficients(0, 3) *= -1; },
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
    const std::string refusal =
        "mhla::distributed::bidirectional: v has shape [5, 2], expected [6, any] (a row for each "
        "of k)";
    const std::string got =
        message_of_wrong_call(comm, [](P& p) { p.tensors[kV].conservativeResize(5, 2); });
    EXPECT_EQ(got, comm.rank() == last
                       ? refusal
                       : "mhla::distributed::bidirectional: arguments were refused" + on + " (" +
                             refusal + "), expected what every rank takes");
  });
}

TYPED_TEST_P(RanksContract, RanksThatCallDifferentFormsAreToldSo) {
  TypeParam::run([](auto& comm) {
    if (comm.size() == 1) return;
    const auto p = complete_problem<float>(CausalForm());
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

TYPED_TEST_P(RanksContract, PartitionsOnOneRankAndFunctionsOnAnotherAreToldSo) {
  TypeParam::run([](auto& comm) {
    if (comm.size() == 1) return;
    const Matrix<float> q = Matrix<float>::Ones(8, 3);
    const MixingMatrix<float> more(Matrix<float>::Ones(2 * comm.size() + 2, 2 * comm.size() + 2));
    Matrix<float> out(8, 3);
    const auto call = [&](const auto& blocks) {
      return message_of<error>([&] {
        distributed::bidirectional(comm, inputs(q, q, q), blocks, more, Operator(), out);
      });
    };
    EXPECT_EQ(comm.rank() == 0 ? call(Contiguous(8, 4)) : call(ContiguousBlocks{4}),
              "mhla::distributed::bidirectional: blocks has partitions, not functions, 0 on rank "
              "1, expected 1 as on rank 0");
  });
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
                            PartitionsOnOneRankAndFunctionsOnAnotherAreToldSo,
                            StreamsHaveTheBitsOfOneMachine);

}  // namespace mhla::test
