#pragma once

/// \file
/// The state of a stream: memory of known size that can be copied, saved and restored.
///
/// Saved form: a header with the instruction set, the sizes and the position, then the memory, in
/// this machine's byte order and as this target lays it out. A state of another stream or of a
/// build for another instruction set is refused.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {

/// Name in a saved state, with zeros after it.
using StateName = std::array<char, 24>;
constexpr StateName state_name(std::string_view text) {
  StateName name{};
  for (std::size_t i = 0; i < text.size(); ++i) name.at(i) = text[i];
  return name;
}

/// Throws unless a state was saved by a build for this instruction set.
inline void expect_instruction_set(const char* function, const StateName& saved) {
  if (saved == state_name(kInstructionSet)) return;
  const std::string_view text(saved.data(), saved.size());
  fail_option(function, "from",
              "was saved by a build for another instruction set, " +
                  printable(text.substr(0, text.find('\0'))),
              "one for " + printable(kInstructionSet) + ", as this build is");
}

/// Stream parameters, which must match on restore, and the current position.
struct StateHeader {
  char magic[8] = {'m', 'h', 'l', 'a', 's', 't', '1', '0'};
  StateName instruction_set = state_name(kInstructionSet);
  std::int64_t scalar_bytes = 0;
  std::int64_t width = 0, values = 0, block_length = 0, normalizer_width = 0;
  std::int64_t capacity = 0;  // tokens
  std::int64_t terms = 0;     // R of a decaying mixing matrix
  std::int64_t features = 0, normalizer_features = 0;
  std::int64_t sum_features = 0;  // of the sums that the normaliser reads
  std::int64_t head = 0;          // with a mixing matrix of its own, or 0
  std::int64_t step = 0;          // blocks of a step, 0 of a stream token by token
  std::int64_t position = 0;      // tokens seen
  std::int64_t open_keys = 0;     // kept keys of the open block
  std::int64_t in_running = 0;    // of them, those that all of R holds (streaming.hpp)
  std::int64_t first_block = 0;   // of the summaries of steps that are kept (step_window.hpp)
};

/// Head of a new state. Throws if the stream has mixing matrices of other heads alone.
inline Index state_head(const char* function, Index head, Index matrices) {
  if (head < 0 || (matrices > 1 && head >= matrices)) {
    fail_option(function, "head", "is " + std::to_string(head),
                "a head of the mixing matrix, which has " + std::to_string(matrices));
  }
  return matrices > 1 ? head : 0;
}

}  // namespace detail

/// The state of one head of one sequence. Copies are independent. Streaming::start makes it.
template <Accumulator A>
class StreamingState {
 public:
  /// An empty state of a stream with this header and this much memory.
  StreamingState(const detail::StateHeader& header, std::size_t memory_bytes)
      : header_(header), memory_(lines(memory_bytes)) {}

  /// Bytes of the saved form of a state with this much memory.
  static constexpr std::size_t bytes_with(std::size_t memory_bytes) {
    return sizeof(detail::StateHeader) + lines(memory_bytes) * sizeof(Line);
  }

  /// Head whose mixing matrix the stream reads, 0 if heads share one.
  Index head() const { return static_cast<Index>(header_.head); }
  /// Tokens seen so far.
  Index position() const { return static_cast<Index>(header_.position); }

  /// Bytes of the saved form.
  std::size_t bytes() const { return sizeof(header_) + memory_.size() * sizeof(Line); }

  /// Writes the saved form.
  /// \throws option_error unless `to` has bytes() bytes.
  void save(std::span<std::byte> to) const;

  /// Replaces this state by the one saved in `from`; unchanged on error.
  /// \throws option_error unless `from` was saved by a state of the same head, of a stream of the
  ///         same sizes, in a build for the same instruction set.
  void restore(std::span<const std::byte> from);

 private:
  template <Scalar T, class Op, class Mixing>
  friend class Streaming;
  template <Scalar T, class Blocks, class Op, class Mixing>
  friend class BlockStreaming;

  struct alignas(detail::kBufferAlignment) Line {
    std::byte bytes[detail::kBufferAlignment];
  };

  static constexpr std::size_t lines(std::size_t bytes) {
    return (bytes + sizeof(Line) - 1) / sizeof(Line);
  }

  /// True if the other header is of the same stream, at any position.
  bool same_stream(detail::StateHeader other) const {
    other.position = header_.position;
    other.open_keys = header_.open_keys;
    other.in_running = header_.in_running;
    other.first_block = header_.first_block;
    return std::memcmp(&other, &header_, sizeof(other)) == 0;
  }
  std::byte* memory() { return reinterpret_cast<std::byte*>(memory_.data()); }

  detail::StateHeader header_;
  std::vector<Line, Allocator<Line>>
      memory_;  // cache lines, so that copies have the same alignment
};

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Throws unless the states of a batch are those of heads first, first + step, ... per sequence.
template <Accumulator A>
void expect_state_heads(std::span<const StreamingState<A>> states, Index heads) {
  const auto head = [&](Index pair) { return states[static_cast<std::size_t>(pair)].head(); };
  const Index step = heads > 1 && !states.empty() ? std::max<Index>(1, head(1) - head(0)) : 1;
  for (Index pair = 0; pair < std::ssize(states); ++pair) {
    const Index expected = head(0) + pair % heads * step;
    if (head(pair) == expected) continue;
    fail_option("append", "states",
                "has a state of head " + std::to_string(head(pair)) + " at " + std::to_string(pair),
                "one of head " + std::to_string(expected));
  }
}

}  // namespace detail

template <Accumulator A>
void StreamingState<A>::save(std::span<std::byte> to) const {
  if (to.size() != bytes()) {
    detail::fail_option("StreamingState::save", "to", "has " + std::to_string(to.size()) + " bytes",
                        std::to_string(bytes()));
  }
  std::memcpy(to.data(), &header_, sizeof(header_));
  std::memcpy(to.data() + sizeof(header_), memory_.data(), bytes() - sizeof(header_));
}

template <Accumulator A>
void StreamingState<A>::restore(std::span<const std::byte> from) {
  constexpr const char* kName = "StreamingState::restore";
  detail::StateHeader saved;
  if (from.size() >= sizeof(saved)) {
    std::memcpy(&saved, from.data(), sizeof(saved));
    const bool state = std::memcmp(saved.magic, header_.magic, sizeof(saved.magic)) == 0;
    if (state) detail::expect_instruction_set(kName, saved.instruction_set);
  }
  if (from.size() != bytes()) {
    detail::fail_option(kName, "from", "has " + std::to_string(from.size()) + " bytes",
                        std::to_string(bytes()));
  }
  if (!same_stream(saved) || saved.position < 0 || saved.position > header_.capacity ||
      saved.open_keys < 0 || saved.open_keys > saved.position % saved.block_length ||
      saved.in_running < 0 || saved.in_running > saved.open_keys || saved.first_block < 0 ||
      (saved.step == 0 && saved.first_block > 0)) {
    detail::fail_option(kName, "from", "holds a state of another stream, or none",
                        "a state saved by a stream of these sizes");
  }
  header_ = saved;
  std::memcpy(memory_.data(), from.data() + sizeof(saved), bytes() - sizeof(saved));
}

}  // namespace MHLA_TARGET
}  // namespace mhla
