#include "mhla/attention/streaming_state.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/attention/streaming.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

Streaming<float> stream_of(Index width, Index values) {
  return {{.width = width, .values = values, .block_length = 4}, uniform_causal<float>(3)};
}

/// A state after six tokens, two of them in its second block.
StreamingState<float> used_state(const Streaming<float>& stream, Index width, Index values) {
  Random rng(1);
  const Matrix<float> x = rng.matrix<float>(6, width), v = rng.matrix<float>(6, values);
  Matrix<float> out(6, values);
  auto state = stream.start();
  stream.append(state, {.q = x, .k = x, .v = v}, out);
  return state;
}

TEST(StreamingState, ASavedStateIsTheSameStateAgain) {
  const auto stream = stream_of(2, 3);
  const auto state = used_state(stream, 2, 3);
  std::vector<std::byte> bytes(stream.state_bytes()), again(stream.state_bytes());
  state.save(bytes);
  auto restored = stream.start();
  restored.restore(bytes);
  EXPECT_EQ(restored.position(), 6);
  restored.save(again);
  EXPECT_EQ(bytes, again);
}

TEST(StreamingState, BytesThatAreNoStateAreRefusedAndChangeNothing) {
  const auto stream = stream_of(2, 3), other = stream_of(3, 2);
  const auto state = used_state(stream, 2, 3);
  std::vector<std::byte> bytes(stream.state_bytes()), before(stream.state_bytes());
  state.save(before);
  std::vector<std::byte> other_bytes(other.state_bytes());
  used_state(other, 3, 2).save(other_bytes);
  other_bytes.resize(stream.state_bytes());
  auto target = state;
  EXPECT_EQ(
      message_of<option_error>([&] { target.restore(other_bytes); }),
      "mhla::StreamingState::restore: from holds a state of another stream, or none, expected "
      "a state saved by a stream of these sizes");
  for (std::size_t i = 0; i < sizeof(detail::StateHeader); ++i) {
    auto broken = before;
    broken[i] ^= std::byte{0x80};  // a size, or a position out of range
    EXPECT_THROW(target.restore(broken), option_error) << i;
  }
  EXPECT_THROW(target.restore(std::span(before).first(before.size() - 1)), option_error);
  EXPECT_THROW(target.save(std::span(bytes).first(8)), option_error);
  target.save(bytes);
  EXPECT_EQ(bytes, before);
}

/// Byte `offset` of a header field of a saved state.
template <class Field>
std::size_t offset_of(Field detail::StateHeader::*field) {
  const detail::StateHeader header;
  return static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&(header.*field)) -
                                  reinterpret_cast<const std::byte*>(&header));
}

TEST(StreamingState, StatesOfEarlierVersionsAreRefused) {
  const auto stream = stream_of(2, 3);
  std::vector<std::byte> saved(stream.state_bytes());
  auto state = used_state(stream, 2, 3);
  state.save(saved);
  EXPECT_EQ(std::memcmp(saved.data(), "mhlast10", 8), 0);
  auto old = saved;
  std::memcpy(old.data(), "mhlast09", 8);
  EXPECT_THROW(state.restore(old), option_error);
  // Layout of version 04: two more counts.
  std::memcpy(old.data(), "mhlast04", 8);
  const auto end = old.begin() + static_cast<std::ptrdiff_t>(sizeof(detail::StateHeader));
  old.insert(end, 2 * sizeof(std::int64_t), std::byte{});
  EXPECT_THROW(state.restore(old), option_error);
  state.restore(saved);
  EXPECT_EQ(state.position(), 6);
}

TEST(StreamingState, AStateOfAnotherHeadIsRefused) {
  const StreamingSizes sizes{.width = 2, .values = 3, .block_length = 4};
  const Streaming<float> stream(sizes, per_head(uniform_causal<float>(3), 2));
  EXPECT_EQ(stream.heads(), 2);
  EXPECT_EQ(stream.start(1).head(), 1);
  std::vector<std::byte> saved(stream.state_bytes());
  stream.start(1).save(saved);
  auto other = stream.start(), same = stream.start(1);
  EXPECT_THROW(other.restore(saved), option_error);
  EXPECT_NO_THROW(same.restore(saved));
  EXPECT_EQ(stream_of(2, 3).start(7).head(), 0);  // all heads share the matrix
}

TEST(StreamingState, AStateOfAnotherInstructionSetIsRefusedByItsName) {
  const auto stream = stream_of(2, 3);
  std::vector<std::byte> saved(stream.state_bytes());
  auto state = used_state(stream, 2, 3);
  state.save(saved);
  const char other[] = "sse9";
  std::memcpy(saved.data() + offset_of(&detail::StateHeader::instruction_set), other,
              sizeof(other));
  const std::string refusal =
      "mhla::StreamingState::restore: from was saved by a build for another instruction set, "
      "'sse9', expected one for '" +
      std::string(kInstructionSet) + "', as this build is";
  EXPECT_EQ(message_of<option_error>([&] { state.restore(saved); }), refusal);
  saved.resize(saved.size() + 64);  // another memory layout
  EXPECT_EQ(message_of<option_error>([&] { state.restore(saved); }), refusal);
}

TEST(StreamingState, CountsThatCannotBeAreRefused) {
  const auto stream = stream_of(2, 3);
  std::vector<std::byte> saved(stream.state_bytes());
  auto state = used_state(stream, 2, 3);
  state.save(saved);
  const auto restore_with = [&](auto field, std::int64_t value) {
    auto bytes = saved;
    std::memcpy(bytes.data() + offset_of(field), &value, sizeof(value));
    state.restore(bytes);
  };
  using Header = detail::StateHeader;
  for (const std::int64_t value : {-1, 3, 1 << 20}) {  // of two keys
    EXPECT_THROW(restore_with(&Header::in_running, value), option_error) << value;
  }
  for (const std::int64_t value : {-1, 1, 5}) {  // fewer than R holds, more than a block
    EXPECT_THROW(restore_with(&Header::open_keys, value), option_error) << value;
  }
  for (const std::int64_t value : {-1, 13}) {
    EXPECT_THROW(restore_with(&Header::position, value), option_error) << value;
  }
  stream.start().save(saved);
  EXPECT_THROW(restore_with(&Header::position, 13), option_error);
  EXPECT_NO_THROW(restore_with(&Header::position, 12));
  used_state(stream, 2, 3).save(saved);
  EXPECT_NO_THROW(restore_with(&Header::in_running, 0));
  EXPECT_NO_THROW(restore_with(&Header::position, 11));
  for (const std::int64_t value : {4, 5, 12}) {  // no token or one token of a block, with two keys
    EXPECT_THROW(restore_with(&Header::position, value), option_error) << value;
  }
}

TEST(StreamingState, AnotherStreamsStateIsRefused) {
  const Matrix<float> x = Matrix<float>::Ones(1, 2), v = Matrix<float>::Ones(1, 3);
  Matrix<float> out(1, 3);
  const auto text = [&](const auto& stream, auto state) {
    return message_of<option_error>([&] { stream.append(state, {.q = x, .k = x, .v = v}, out); });
  };
  const std::string refusal =
      "mhla::Streaming::append: state was made by another stream, expected one made by start()";
  EXPECT_EQ(text(stream_of(2, 3), stream_of(3, 2).start()), refusal);
  const auto decaying = [](const DecayMixing<float>& mixing) {
    return Streaming<float, Operator<>, DecayMixing<float>>(
        {.width = 2, .values = 3, .block_length = 4}, mixing);
  };
  const auto one = decaying({{1}, {0.5F}}), two = decaying({{1, 1}, {0.5F, 0.25F}});
  EXPECT_EQ(text(one, two.start()), refusal);
  EXPECT_EQ(text(one, one.start()), "no exception");

  const Operator plain{Identity{}, Identity{}, NoNormalizer{}};
  const Streaming<float, Operator<Identity, Identity, NoNormalizer>> without_sums(
      {.width = 2, .values = 3, .block_length = 4}, uniform_causal<float>(3), plain);
  EXPECT_EQ(text(stream_of(2, 3), without_sums.start()), refusal);
  EXPECT_EQ(text(without_sums, stream_of(2, 3).start()), refusal);
  auto moved = one.start();
  const auto here = std::move(moved);
  EXPECT_EQ(message_of<option_error>([&] {
              one.append(moved, {.q = x, .k = x, .v = v}, out);  // NOLINT(bugprone-use-after-move)
            }),
            refusal);
}

}  // namespace
}  // namespace mhla::test
