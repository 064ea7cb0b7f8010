#pragma once

/// \file
/// Arrays whose rows are sent between ranks, with contents that identify array and row.

#include <cstddef>
#include <span>
#include <vector>

#include "mhla/distributed/communicator.hpp"

namespace mhla::test {

using distributed::SharedRows;

/// Contents of byte i of a row, which depend on a round, an array and a row, not on the row's
/// owner.
inline std::byte byte_of(std::size_t round, std::size_t array, Index row, std::size_t i) {
  return static_cast<std::byte>(7 + 31 * round + 53 * array + 101 * static_cast<std::size_t>(row) +
                                i % 251);
}

/// Arrays of one rank: its rows are filled, rows of other ranks are missing.
class RankArrays {
 public:
  static constexpr std::byte kNothing{0};

  /// \param padding  of all arrays, bytes
  RankArrays(std::span<const std::size_t> row_bytes, Index rows, std::size_t round = 0,
             std::size_t padding = 0)
      : round_(round) {
    for (const std::size_t bytes : row_bytes) {
      data_.emplace_back((bytes + padding) * static_cast<std::size_t>(rows), kNothing);
    }
    for (std::size_t a = 0; a < data_.size(); ++a) {
      shared_.push_back({data_[a].data(), row_bytes[a], padding});
    }
  }
  std::span<const SharedRows> shared() const { return shared_; }

  /// Writes rows [begin, end), which belong to this rank.
  void fill(Index begin, Index end) {
    visit(begin, end, [&](std::size_t a, Index row, std::size_t i, std::byte& byte) {
      byte = byte_of(round_, a, row, i);
    });
  }
  /// Number of bytes of the rows that differ from their owner's.
  Index wrong(Index begin, Index end) {
    Index count = 0;
    visit(begin, end, [&](std::size_t a, Index row, std::size_t i, std::byte& byte) {
      count += byte != byte_of(round_, a, row, i);
    });
    return count;
  }
  /// Number of bytes of the rows that were written.
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

  std::size_t round_;
  std::vector<std::vector<std::byte>> data_;
  std::vector<SharedRows> shared_;
};

/// first[r] of uneven shares; a share is empty if `share` returns 0.
inline std::vector<Index> firsts(Index ranks, auto&& share) {
  std::vector<Index> first{0};
  for (Index r = 0; r < ranks; ++r) first.push_back(first.back() + share(r));
  return first;
}

}  // namespace mhla::test
