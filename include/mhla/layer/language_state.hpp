#pragma once

/// \file
/// The state of a batch of sequences in a language layer or block (decoding_layer.hpp). It is a
/// value that can be copied, saved and restored. Its sequences can be selected and reordered.
///
///     std::vector<std::byte> bytes(state.bytes());
///     state.save(bytes);
///     auto later = layer.start(state.batch());
///     later.restore(bytes);
///     state = state.select(std::vector<Index>{1, 1, 0});  // as beam search does
///
/// The layer that restores a state must have the options and parameters of the layer that saved it.
/// The saved form is a header with the instruction set, the batch and the layer's options. Then
/// come the saved form of each head (streaming_state.hpp) and the last inputs of the convolutions.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/attention/streaming.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/layer/language_decoding.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {

/// Header of a saved state. It leaves out options that the headers of the heads determine.
struct LanguageStateHeader {
  char magic[8] = {'m', 'h', 'l', 'a', 'l', 'm', '0', '1'};
  StateName instruction_set = state_name(kInstructionSet);
  StateName feature_map{};
  std::int64_t batch = 0, heads = 0, key_heads = 0, channels = 0, kept = 0;
  double rotary_base = 0;
};

}  // namespace detail

/// State of a batch of sequences, each with its own length. It has the mixing matrix, packed
/// projections and feature maps of the layer at the start of the state. Copies are independent, but
/// share these. A layer's start() makes it.
template <Accumulator A>
class LanguageState {
 public:
  Index batch() const { return batch_; }
  /// Returns the tokens of the longest sequence so far.
  Index position() const;
  /// Returns the tokens of one sequence so far.
  /// \throws option_error for a sequence outside the batch.
  Index position(Index sequence) const {
    expect_sequence("LanguageState::position", sequence);
    return head(0, sequence).position();
  }
  /// Returns the most tokens of a sequence.
  Index capacity() const { return shared_->stream.capacity(); }

  /// Returns the state of sequences[0], sequences[1], ... of this state, which may repeat.
  /// \throws option_error for a sequence outside the batch.
  LanguageState select(std::span<const Index> sequences) const;

  /// Bytes of the saved form.
  std::size_t bytes() const;
  /// Writes the saved form.
  /// \throws option_error unless `to` has bytes() bytes.
  void save(std::span<std::byte> to) const;
  /// Replaces this state by the one saved in `from`. It is unchanged after an error.
  /// \throws option_error unless `from` was saved by a state of as many sequences, of a layer with
  ///         the same options, in a build for the same instruction set.
  void restore(std::span<const std::byte> from);

 private:
  template <class F>
  friend class DecodingLayer;
  using Shared = detail::LanguageDecoding<A>;

  LanguageState(std::shared_ptr<const Shared> shared, Index batch)
      : shared_(std::move(shared)), batch_(batch) {
    const detail::LanguageSizes& sizes = shared_->sizes;
    for (Index group = 0; group < sizes.groups(); ++group) {
      for (Index n = 0; n < batch * sizes.key_heads; ++n) {
        heads_.push_back(shared_->stream.start(group + n % sizes.key_heads * sizes.groups()));
      }
    }
    const Index rows = batch * shared_->kept();
    tails_ = {Matrix<A>::Zero(rows, sizes.heads * sizes.width),
              Matrix<A>::Zero(rows, sizes.key_heads * sizes.width),
              Matrix<A>::Zero(rows, sizes.key_heads * sizes.values)};
  }

  Index key_heads() const { return shared_->sizes.key_heads; }
  Index groups() const { return shared_->sizes.groups(); }
  const StreamingState<A>& head(Index group, Index sequence, Index key_head = 0) const {
    const Index place = (group * batch_ + sequence) * key_heads() + key_head;
    return heads_[static_cast<std::size_t>(place)];
  }
  void expect_sequence(const char* function, Index sequence) const {
    if (sequence >= 0 && sequence < batch_) return;
    detail::fail_option(function, "sequence", "is " + std::to_string(sequence),
                        "0 or more, below the batch of " + std::to_string(batch_));
  }
  detail::LanguageStateHeader header() const;

  std::shared_ptr<const Shared> shared_;
  Index batch_;
  std::vector<StreamingState<A>> heads_;  // [groups, B, Hk]
  std::array<Matrix<A>, 3> tails_;        // of q, k, v [B*(K-1), channels]
};

// ------------------------------------------------------------------------------------------------

template <Accumulator A>
Index LanguageState<A>::position() const {
  Index longest = 0;
  for (Index b = 0; b < batch_; ++b) longest = std::max(longest, head(0, b).position());
  return longest;
}

template <Accumulator A>
LanguageState<A> LanguageState<A>::select(std::span<const Index> sequences) const {
  for (const Index b : sequences) expect_sequence("LanguageState::select", b);
  LanguageState selected(shared_, std::ssize(sequences));
  auto to_head = selected.heads_.begin();
  for (Index group = 0; group < groups(); ++group) {
    for (const Index b : sequences) {
      for (Index h = 0; h < key_heads(); ++h) *to_head++ = head(group, b, h);
    }
  }
  const Index kept = shared_->kept();
  for (std::size_t i = 0; i < tails_.size(); ++i) {
    Index to = 0;
    for (const Index b : sequences) {
      selected.tails_[i].middleRows(kept * to++, kept) = tails_[i].middleRows(kept * b, kept);
    }
  }
  return selected;
}

template <Accumulator A>
detail::LanguageStateHeader LanguageState<A>::header() const {
  const LanguageOptions& o = shared_->options;
  return {.feature_map = detail::state_name(o.feature_map),
          .batch = batch_,
          .heads = o.heads,
          .key_heads = key_heads(),
          .channels = o.channels,
          .kept = shared_->kept(),
          .rotary_base = o.rotary_base};
}

template <Accumulator A>
std::size_t LanguageState<A>::bytes() const {
  std::size_t bytes = sizeof(detail::LanguageStateHeader);
  bytes += heads_.size() * shared_->stream.state_bytes();
  for (const Matrix<A>& tail : tails_) bytes += static_cast<std::size_t>(tail.size()) * sizeof(A);
  return bytes;
}

template <Accumulator A>
void LanguageState<A>::save(std::span<std::byte> to) const {
  if (to.size() != bytes()) {
    detail::fail_option("LanguageState::save", "to", "has " + std::to_string(to.size()) + " bytes",
                        std::to_string(bytes()));
  }
  const auto next = [&](std::size_t count) {
    const std::span<std::byte> part = to.first(count);
    to = to.subspan(count);
    return part;
  };
  const detail::LanguageStateHeader saved = header();
  std::memcpy(next(sizeof(saved)).data(), &saved, sizeof(saved));
  for (const StreamingState<A>& head : heads_) head.save(next(head.bytes()));
  for (const Matrix<A>& tail : tails_) {
    const auto numbers =
        std::as_bytes(std::span(tail.data(), static_cast<std::size_t>(tail.size())));
    std::copy(numbers.begin(), numbers.end(), next(numbers.size()).begin());
  }
}

template <Accumulator A>
void LanguageState<A>::restore(std::span<const std::byte> from) {
  constexpr const char* kName = "LanguageState::restore";
  const auto refuse = [&](const std::string& got, const std::string& expected) {
    detail::fail_option(kName, "from", got, expected);
  };
  const detail::LanguageStateHeader layer_header = header();
  detail::LanguageStateHeader saved{.magic = {}};
  if (from.size() >= sizeof(saved)) std::memcpy(&saved, from.data(), sizeof(saved));
  const bool state = std::memcmp(saved.magic, layer_header.magic, sizeof(layer_header.magic)) == 0;
  if (state) {
    detail::expect_instruction_set(kName, saved.instruction_set);
    if (saved.batch != batch_) {
      refuse("holds " + std::to_string(saved.batch) + " sequences",
             std::to_string(batch_) + ", the batch of this state");
    }
  }
  if (std::memcmp(&saved, &layer_header, sizeof(layer_header)) != 0 || from.size() != bytes()) {
    refuse("holds a state of another layer, or none",
           "the " + std::to_string(bytes()) + " bytes of a layer with the same options");
  }
  const auto next = [&](std::size_t count) {
    const std::span<const std::byte> part = from.first(count);
    from = from.subspan(count);
    return part;
  };
  next(sizeof(saved));
  LanguageState restored = *this;
  for (StreamingState<A>& head : restored.heads_) head.restore(next(head.bytes()));
  for (std::size_t place = 0; place < restored.heads_.size(); ++place) {
    const Index b = static_cast<Index>(place) / key_heads() % batch_;
    if (restored.heads_[place].position() != restored.head(0, b).position()) {
      refuse("has heads of sequence " + std::to_string(b) + " at several positions",
             "one position");
    }
  }
  for (Matrix<A>& tail : restored.tails_) {
    const auto numbers =
        std::as_writable_bytes(std::span(tail.data(), static_cast<std::size_t>(tail.size())));
    const std::span<const std::byte> stored = next(numbers.size());
    std::copy(stored.begin(), stored.end(), numbers.begin());
  }
  *this = std::move(restored);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
