#pragma once

/// \file
/// Arrays whose rows travel between ranks, with contents that tell whose they are.

#include <cstddef>
#include <span>
#include <vector>

#include "mhla/distributed/communicator.hpp"

namespace mhla::test {

using distributed::SharedRows;

/// What byte i of a row holds: of a round, an array and a row, whoever owns that.
inline std::byte byte_of(std::size_t round, std::size_t array, Index row, std::size_t i) {
  return static_cast<std::byte>(7 + 31 * round + 53 * array + 101 * static_cast<std::size_t>(row) +
                                i % 251);
}

/// Arrays as one rank sees them: its own rows are there, the others' are to come.
class RankArrays {
 public:
  static constexpr std::byte kNothing{0};

  /// \param padding  of all arrays, bytes
  RankArrays(std::span<const std::size_t> row_bytes, Index rows, std::size_t round = 0,
             std::size_t padding = 0)
      : rows_(rows), round_(round) {
    for (const std::size_t bytes : row_bytes) {
      data_.emplace_back((bytes + padding) * static_cast<std::size_t>(rows), kNothing);
    }
    for (std::size_t a = 0; a < data_.size(); ++a) {
      shared_.push_back({data_[a].data(), row_bytes[a], padding});
    }
  }
  std::span<const SharedRows> shared() const { return shared_; }

  /// Writes rows [begin, end), which this rank owns.
  void own(Index begin, Index end) {
    visit(begin, end, [&](std::size_t a, Index row, std::size_t i, std::byte& byte) {
      byte = byte_of(round_, a, row, i);
    });
  }
  /// How many bytes of the rows are not their owner's.
  Index wrong(Index begin, Index end) {
    Index count = 0;
    visit(begin, end, [&](std::size_t a, Index row, std::size_t i, std::byte& byte) {
      count += byte != byte_of(round_, a, row, i);
    });
    return count;
  }
  /// How many bytes of the rows something was written to.
  Index written(Index begin, Index end) {
    Index count = 0;
    visit(begin, end, [&](auto, auto, auto, std::byte& byte) { count += byte != kNothing; });
    return count;
  }

 private:
  void visit(Index begin, Index end, auto&& f) {
    for (std::size_t a = 0; a < data_.size(); ++a) {
      const std::size_t bytes = shared_[a].row_bytes;
      for (Index row = begin; row < end; ++row) {
        std::byte* at = shared_[a].row(row);
        for (std::size_t i = 0; i < bytes; ++i) f(a, row, i, at[i]);
      }
    }
  }

  Index rows_;
  std::size_t round_;
  std::vector<std::vector<std::byte>> data_;
  std::vector<SharedRows> shared_;
};

/// first[r] of shares that are uneven, and empty where `share` says 0.
inline std::vector<Index> firsts(Index ranks, auto&& share) {
  std::vector<Index> first{0};
  for (Index r = 0; r < ranks; ++r) first.push_back(first.back() + share(r));
  return first;
}

}  // namespace mhla::test
