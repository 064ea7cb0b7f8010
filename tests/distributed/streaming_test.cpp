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
