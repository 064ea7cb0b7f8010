#pragma once

/// \file
/// A text as bytes, from any file: a part for training, and a held-out part.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/fingerprint.hpp"
#include "../support/random.hpp"
#include "settings.hpp"

namespace write_text {

using Bytes = std::span<const std::uint8_t>;

class Text {
 public:
  /// \throws std::runtime_error naming the file unless there is a held-out sequence.
  Text(const std::filesystem::path& path, Index context) : context_(context) {
    std::ifstream file(path, std::ios::binary);
    file.peek();  // fails for files that cannot be read, such as folders
    const bool read = file.is_open() && !file.bad();
    if (read) bytes_.assign(std::istreambuf_iterator<char>(file), {});
    const auto size = static_cast<Index>(bytes_.size()), least = kParts * (context + 1);
    if (!read || size < least) {
      throw std::runtime_error(
          path.string() + (read ? " has " + std::to_string(size) + " bytes, expected at least " +
                                      std::to_string(least) + " for this --context"
                                : " cannot be read, expected a text"));
    }
  }

  /// All but the last twentieth.
  Bytes training() const { return Bytes(bytes_).first(bytes_.size() - held_out().size()); }
  Bytes held_out() const { return Bytes(bytes_).last(bytes_.size() / kParts); }

  /// The sequences of a step, N bytes and the next byte, from random places. Places depend on seed
  /// and step alone, so a training can resume at any step.
  std::vector<Bytes> batch(Index seed, Index step, Index count) const {
    examples::Random random(examples::Random(static_cast<std::uint64_t>(seed)).bits() ^
                            static_cast<std::uint64_t>(step));
    std::vector<Bytes> sequences;
    for (Index i = 0; i < count; ++i) {
      const Index begin = random.below(std::ssize(training()) - context_);
      sequences.push_back(training().subspan(static_cast<std::size_t>(begin),
                                             static_cast<std::size_t>(context_ + 1)));
    }
    return sequences;
  }
  /// The first `count` consecutive sequences of the held-out part; 0: all.
  std::vector<Bytes> held_out_sequences(Index count) const {
    return held_out_sequences(count, context_);
  }
  /// The first `count` held-out sequences of another length.
  std::vector<Bytes> held_out_sequences(Index count, Index length) const {
    std::vector<Bytes> sequences;
    const auto size = static_cast<std::size_t>(length);
    for (std::size_t begin = 0; begin + size < held_out().size(); begin += size) {
      if (count > 0 && std::ssize(sequences) == count) break;
      sequences.push_back(held_out().subspan(begin, size + 1));
    }
    return sequences;
  }

  /// Size and hash that identify this text.
  nlohmann::json to_json() const {
    return {{"bytes", bytes_.size()}, {"fnv1a", examples::fnv1a(bytes_)}};
  }

 private:
  static constexpr Index kParts = 20;  // one part is held out

  std::vector<std::uint8_t> bytes_;
  Index context_;
};

}  // namespace write_text
