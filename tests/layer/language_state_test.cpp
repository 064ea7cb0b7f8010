#include "mhla/layer/language_state.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "mhla/layer/language_layer.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

using Layer = LanguageLayer<float>;

const LanguageOptions kOptions{
    .heads = 2, .channels = 8, .chunk = 4, .chunks = 3, .short_convolution = true};

/// A state of two sequences that have seen three tokens and one.
LanguageState<float> used_state(const Layer& layer) {
  auto state = layer.start(2);
  const Matrix<float> x = Matrix<float>::Ones(4, 8);
  Matrix<float> y(4, 8);
  const std::vector<Index> offsets{0, 3, 4};
  layer.append(state, x, offsets, y);
  return state;
}

std::vector<std::byte> saved(const LanguageState<float>& state) {
  std::vector<std::byte> bytes(state.bytes());
  state.save(bytes);
  return bytes;
}

TEST(LanguageState, RefusesBytesOfAnotherStateAndStaysAsItWas) {
  auto state = used_state(Layer(kOptions));
  const auto before = saved(state);
  const auto refusal = [&](const std::vector<std::byte>& from) {
    const std::string text = message_of<option_error>([&] { state.restore(from); });
    EXPECT_EQ(saved(state), before);
    return text;
  };
  const std::string another =
      "mhla::LanguageState::restore: from holds a state of another layer, or none, expected the " +
      std::to_string(before.size()) + " bytes of a layer with the same options";
  EXPECT_EQ(refusal({}), another);
  auto longer = before;
  longer.push_back({});
  EXPECT_EQ(refusal(longer), another);
  for (const auto change : {+[](LanguageOptions& o) { o.feature_map = "elu"; },
                            +[](LanguageOptions& o) { o.rotary_base = 100; },
                            +[](LanguageOptions& o) { o.key_heads = 1; },
                            +[](LanguageOptions& o) { o.convolution_taps = 3; },
                            +[](LanguageOptions& o) { o.heads = 1, o.channels = 4; },
                            +[](LanguageOptions& o) { o.channels = 16, o.expand_k = 0.25; }}) {
    LanguageOptions options = kOptions;
    change(options);
    EXPECT_EQ(refusal(saved(Layer(options).start(2))), another);
  }
  EXPECT_EQ(refusal(saved(Layer(kOptions).start(3))),
            "mhla::LanguageState::restore: from holds 3 sequences, expected 2, the batch of this "
            "state");
  auto foreign = before;
  std::memcpy(foreign.data() + 8, "sse9", 5);
  EXPECT_EQ(refusal(foreign),
            "mhla::LanguageState::restore: from was saved by a build for another instruction set, "
            "'sse9', expected one for '" +
                std::string(kInstructionSet) + "', as this build is");
  // The last head of the first sequence has seen no token.
  auto uneven = before;
  const auto other = saved(Layer(kOptions).start(2));
  const std::size_t head =
      Streaming<float, Operator<Identity, Identity, NoNormalizer>>(
          {.width = 2, .values = 4, .block_length = 4}, uniform_causal<float>(3), {})
          .state_bytes();
  const std::size_t begin = sizeof(detail::LanguageStateHeader) + head;
  std::memcpy(uneven.data() + begin, other.data() + begin, head);
  EXPECT_EQ(refusal(uneven),
            "mhla::LanguageState::restore: from has heads of sequence 0 at several positions, "
            "expected one position");
  std::vector<std::byte> few(before.size() - 1);
  EXPECT_EQ(message_of<option_error>([&] { state.save(few); }),
            "mhla::LanguageState::save: to has " + std::to_string(few.size()) +
                " bytes, expected " + std::to_string(before.size()));
}

TEST(LanguageState, NamesSequencesThatItHasNot) {
  const auto state = used_state(Layer(kOptions));
  for (const Index b : {-1, 2}) {
    const std::string is =
        "sequence is " + std::to_string(b) + ", expected 0 or more, below the " + "batch of 2";
    EXPECT_EQ(message_of<option_error>([&] {
                state.select(std::vector<Index>{0, b});
              }),
              "mhla::LanguageState::select: " + is);
    EXPECT_EQ(message_of<option_error>([&] { state.position(b); }),
              "mhla::LanguageState::position: " + is);
  }
}

TEST(LanguageState, OffsetsThatDoNotFitAreRefused) {
  const Layer layer(kOptions);
  auto state = used_state(layer);
  const auto before = saved(state);
  const auto refusal = [&](Index rows, const std::vector<Index>& offsets) {
    const Matrix<float> x = Matrix<float>::Ones(rows, 8);
    Matrix<float> y(rows, 8);
    const std::string text = message_of<error>([&] { layer.append(state, x, offsets, y); });
    EXPECT_EQ(saved(state), before);
    return text;
  };
  EXPECT_EQ(refusal(4, {0, 4}),
            "mhla::LanguageLayer::append: offsets has 2 entries, expected 3, one more than the "
            "state's batch");
  EXPECT_EQ(refusal(4, {0, 3, 2}),
            "mhla::LanguageLayer::append: offsets has 2 at 2, expected at least 3");
  EXPECT_EQ(refusal(4, {0, 3, 5}),
            "mhla::LanguageLayer::append: offsets has 5 at 2, expected 4, the number of tokens");
  EXPECT_EQ(refusal(13, {0, 1, 13}),
            "mhla::LanguageLayer::append: x has 12 tokens of sequence 1 after 1, expected at most "
            "12 in all (chunks times their length)");
}

}  // namespace
}  // namespace mhla::test
