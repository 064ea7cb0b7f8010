#include "mhla/distributed/streaming.hpp"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "mhla/distributed/thread_ranks.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// Message that a single rank gets for an output with these strides.
/// \param by_heads  true if heads are split, false if values are
std::string refusal(bool by_heads, const Shape& strides) {
  std::string said;
  distributed::run_ranks(1, [&](distributed::ThreadRank& rank) {
    const Streaming<float> stream({.width = 2, .values = 2, .block_length = 4},
                                  uniform_causal<float>(3));
    const std::vector<float> ones(8, 1);
    std::vector<float> result(64, 7);
    const Shape shape{1, 2, 2, 2};
    const auto in = inputs(ones.data(), ones.data(), ones.data(), shape);
    const TensorView<float> out(result.data(), shape, strides);
    const std::vector<Index> borders{0, 2};
    std::vector<StreamingState<float>> states(2, stream.start());
    said = message_of<option_error>([&] {
      if (by_heads) {
        distributed::append_heads(rank, borders, stream, std::span(states), in, out);
      } else {
        distributed::append_values(rank, borders, stream, std::span(states), in, out);
      }
    });
    EXPECT_EQ(states[0].position(), said == "no exception" ? 2 : 0);
  });
  return said;
}

TEST(RankStreams, RowsOfOutputsAreContiguous) {
  const Shape dense{8, 4, 2, 1}, padded_heads{12, 6, 3, 1}, padded_values{16, 8, 4, 2};
  const std::string contiguous = ", expected contiguous rows";
  EXPECT_EQ(refusal(true, dense), "no exception");
  EXPECT_EQ(refusal(true, padded_heads),
            "mhla::distributed::append_heads: out has strides [12, 6, 3, 1]" + contiguous);
  EXPECT_EQ(refusal(true, padded_values),
            "mhla::distributed::append_heads: out has strides [16, 8, 4, 2]" + contiguous);
  EXPECT_EQ(refusal(false, padded_heads), "no exception");
  EXPECT_EQ(refusal(false, padded_values),
            "mhla::distributed::append_values: out has strides [16, 8, 4, 2]" + contiguous);
}

/// Messages of two ranks, each of which appends one token with arguments of its own. No state may
/// change.
/// \param arguments  returns a stream and options of a call, for a rank
template <class Arguments>
std::vector<std::string> refusals_of_two(const Arguments& arguments) {
  std::vector<std::string> said(2);
  distributed::run_ranks(2, [&](distributed::ThreadRank& rank) {
    arguments(rank.rank(), [&]<class T>(T, const Call& call) {
      const Streaming<T> stream({.width = 2, .values = 2, .block_length = 4},
                                uniform_causal<accumulator_t<T>>(3));
      const Tensor<T> x({1, 1, 1, 2});
      Tensor<T> out({1, 1, 2, 2});
      const std::vector<Index> borders{0, 1, 2};
      std::vector<StreamingState<accumulator_t<T>>> states{stream.start()};
      said[static_cast<std::size_t>(rank.rank())] = message_of<option_error>([&] {
        distributed::append_heads(rank, borders, stream, std::span(states), inputs(x, x, x),
                                  out.view(), call);
      });
      EXPECT_EQ(states[0].position(), 0);
    });
  });
  return said;
}

TEST(RankStreams, AShortWorkspaceOnOneRankChangesNoState) {
  std::byte memory[1];
  const auto arguments = [&](Index rank, const auto& append) {
    append(1.f, rank == 0 ? Call{} : Call{.workspace = memory});
  };
  for (const std::string& said : refusals_of_two(arguments)) {
    EXPECT_NE(said.find("workspace"), said.npos) << said;
  }
}

TEST(RankStreams, RanksHaveOneType) {
  const auto arguments = [](Index rank, const auto& append) {
    rank == 0 ? append(1.f, Call{}) : append(Eigen::half(1), Call{});
  };
  for (const std::string& said : refusals_of_two(arguments)) {
    EXPECT_NE(said.find("bytes a number"), said.npos) << said;
  }
}

TEST(RankStreams, StatesOfHeadsOfAnotherRankAreRefused) {
  distributed::run_ranks(1, [&](distributed::ThreadRank& rank) {
    const Streaming<float> stream({.width = 2, .values = 2, .block_length = 4},
                                  per_head(uniform_causal<float>(3), 3));
    const Tensor<float> x({1, 2, 2, 2});
    Tensor<float> out(x.shape());
    const std::vector<Index> borders{0, 2};
    std::vector<StreamingState<float>> states{stream.start(1), stream.start(2)};
    EXPECT_EQ(message_of<option_error>([&] {
                distributed::append_heads(rank, borders, stream, std::span(states), inputs(x, x, x),
                                          out.view());
              }),
              "mhla::distributed::append_heads: states begins with head 1, expected head 0, the "
              "first of this rank");
  });
}

}  // namespace
}  // namespace mhla::test
