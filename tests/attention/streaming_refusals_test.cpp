// Errors of streams, thrown before any state or output changes.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mhla/attention/streaming.hpp"
#include "mhla/policy/learned_feature_map.hpp"
#include "support/crowd.hpp"
#include "support/message_of.hpp"
#include "support/outputs.hpp"

namespace mhla::test {
namespace {

Streaming<float> stream_of(const StreamingSizes& sizes) {
  return {sizes, uniform_causal<float>(3)};
}

TEST(StreamingRefusals, TooManyTokensAreRefusedBeforeAnythingChanges) {
  const auto stream = stream_of({.width = 2, .values = 2, .block_length = 4});
  EXPECT_EQ(stream.capacity(), 12);
  auto state = stream.start();
  const Matrix<float> x = Matrix<float>::Ones(13, 2);
  Matrix<float> out = unwritten<float>(13, 2);
  const auto append = [&](Index count) {
    const MatrixView<const float> rows = x.topRows(count);
    stream.append(state, {.q = rows, .k = rows, .v = rows}, out.topRows(count));
  };
  append(5);
  std::vector<std::byte> before(stream.state_bytes()), after(stream.state_bytes());
  state.save(before);
  EXPECT_EQ(message_of<option_error>([&] { append(8); }),
            "mhla::Streaming::append: in has 8 tokens after 5, expected at most 12 in all (3 rows "
            "of the mixing matrix times 4 tokens)");
  state.save(after);
  EXPECT_EQ(before, after);
  EXPECT_TRUE(out.bottomRows(8).array().isNaN().all());
  append(7);
  EXPECT_EQ(state.position(), 12);
}

TEST(StreamingRefusals, WidthsAreThoseOfTheStream) {
  const auto stream = stream_of({.width = 2, .values = 3, .block_length = 4});
  auto state = stream.start();
  const auto text = [&](Index width, Index values) {
    const Matrix<float> x = Matrix<float>::Ones(4, width), v = Matrix<float>::Ones(4, values);
    Matrix<float> out(4, values);
    return message_of<shape_error>([&] { stream.append(state, inputs(x, x, v), out); });
  };
  EXPECT_EQ(text(3, 3), "mhla::Streaming::append: q has shape [4, 3], expected [any, 2]");
  EXPECT_EQ(text(2, 2), "mhla::Streaming::append: v has shape [4, 2], expected [4, 3]");
  EXPECT_EQ(text(2, 3), "no exception");
}

TEST(StreamingRefusals, SizesAndMixingMatricesThatCannotBe) {
  for (const StreamingSizes& sizes :
       {StreamingSizes{.width = 2, .values = 3, .block_length = 0},
        {.width = -1, .values = 3, .block_length = 4},
        {.width = 2, .values = -1, .block_length = 4},
        {.width = 2, .values = 3, .block_length = 4, .normalizer_width = -1}}) {
    EXPECT_EQ(message_of<option_error>([&] { stream_of(sizes); }),
              "mhla::Streaming: sizes are width " + std::to_string(sizes.width) + ", values " +
                  std::to_string(sizes.values) + ", block_length " +
                  std::to_string(sizes.block_length) + ", normalizer_width " +
                  std::to_string(sizes.normalizer_width) +
                  ", expected widths >= 0 and block_length >= 1");
  }
  EXPECT_EQ(message_of<shape_error>([] {
              Streaming<float>({.width = 2, .values = 3, .block_length = 2},
                               MixingMatrix<float>(Matrix<float>::Ones(2, 3)));
            }),
            "mhla::Streaming: mixing has shape [2, 3], expected [2, 2] (query blocks, key blocks)");
  const Operator wide{T2R<float>(Matrix<float>::Identity(3, 3))};
  EXPECT_EQ(message_of<shape_error>([&] {
              Streaming<float, decltype(wide)>({.width = 2, .values = 3, .block_length = 2},
                                               uniform_causal<float>(3), wide);
            }),
            "mhla::T2R: x has width 2, expected 3 (the width of the weight)");
}

TEST(StreamingRefusals, MoreBytesThanFitIndexAreRefused) {
  const auto stream = stream_of({.width = 2, .values = 2, .block_length = 4});
  const auto bytes = static_cast<Index>(stream.append_workspace_bytes());
  constexpr Index kMost = std::numeric_limits<Index>::max();
  EXPECT_EQ(append_workspace_bytes(stream, Crowd{kMost / bytes}),
            static_cast<std::size_t>(kMost / bytes * bytes));
  EXPECT_EQ(message_of<shape_error>([&] { append_workspace_bytes(stream, Crowd{kMost}); }),
            "mhla::append: workspace has shape " + detail::shape_text({kMost, bytes}) +
                ", expected a product that fits std::ptrdiff_t");
  EXPECT_EQ(message_of<shape_error>([] {
              stream_of({.width = 2, .values = 2, .block_length = kMost});
            }).substr(0, 41),
            "mhla::Streaming: capacity has shape [3, 9");
}

TEST(StreamingRefusals, HeadsWithoutAMixingMatrixAndStatesOfOtherHeads) {
  const Streaming<float> stream({.width = 2, .values = 2, .block_length = 4},
                                per_head(uniform_causal<float>(3), 2));
  for (const Index head : {-1, 2}) {
    EXPECT_EQ(message_of<option_error>([&] { stream.start(head); }),
              "mhla::Streaming::start: head is " + std::to_string(head) +
                  ", expected a head of the mixing matrix, which has 2");
  }
  EXPECT_THROW(stream_of({.width = 2, .values = 2, .block_length = 4}).start(-1), option_error);
  const std::vector<float> data(48, 1);
  std::vector<float> result(48, NAN);
  const Shape shape{2, 6, 2, 2};
  const auto in = inputs(data.data(), data.data(), data.data(), shape);
  const auto out = bnhd(result.data(), shape);
  std::vector<StreamingState<float>> states{stream.start(0), stream.start(1), stream.start(0),
                                            stream.start(0)};
  EXPECT_EQ(message_of<option_error>([&] { append(stream, std::span(states), in, out); }),
            "mhla::append: states has a state of head 0 at 3, expected one of head 1");
  for (const float number : result) EXPECT_TRUE(std::isnan(number));
  states[3] = stream.start(1);
  EXPECT_NO_THROW(append(stream, std::span(states), in, out));
}

TEST(StreamingRefusals, MixingMatricesPerSequence) {
  EXPECT_EQ(message_of<shape_error>([] {
              Streaming<float>({.width = 2, .values = 2, .block_length = 4},
                               MixingMatrix<float>(Pattern(3, 3), 2, 5));
            }),
            "mhla::Streaming: mixing has 5 x 2 matrices, expected one, or one per head: a stream "
            "for each sequence");
}

TEST(StreamingRefusals, ABatchIsRefusedAsAWhole) {
  const auto stream = stream_of({.width = 2, .values = 2, .block_length = 4});
  const std::vector<float> data(48, 1);
  std::vector<float> result(48, NAN);
  const Shape shape{2, 12, 1, 2};
  const auto in = inputs(data.data(), data.data(), data.data(), shape);
  const auto out = bnhd(result.data(), shape);
  std::vector<StreamingState<float>> states(2, stream.start()), three(3, stream.start());
  EXPECT_EQ(message_of<shape_error>([&] { append(stream, std::span(three), in, out); }),
            "mhla::append: states has 3 entries, expected 2 (sequences times heads)");
  const Matrix<float> x = Matrix<float>::Ones(1, 2);
  Matrix<float> one(1, 2);
  std::vector<std::byte> kept(1);
  const std::string keeps = "append: kept is set, expected none: a stream keeps nothing";
  EXPECT_EQ(
      message_of<option_error>([&] { append(stream, std::span(states), in, out, {.kept = kept}); }),
      "mhla::" + keeps);
  EXPECT_EQ(message_of<option_error>(
                [&] { stream.append(states[1], inputs(x, x, x), one, {.kept = kept}); }),
            "mhla::Streaming::" + keeps);
  stream.append(states[1], inputs(x, x, x), one);  // no room for 12 more
  EXPECT_THROW(append(stream, std::span(states), in, out), option_error);
  EXPECT_EQ(states[0].position(), 0);
  EXPECT_EQ(states[1].position(), 1);
  for (const float number : result) EXPECT_TRUE(std::isnan(number));
}

}  // namespace
}  // namespace mhla::test
