#pragma once

/// \file
/// A communicator without others: what a call takes with it is the work of one rank alone.

#include <algorithm>
#include <span>

#include "mhla/distributed/communicator.hpp"

namespace mhla::bench {

/// Rank `rank` of `size`, as if the others said what this one says. A row that would come is a copy
/// of one that this rank sends, made at once; where it sends none, zeros.
class InstantRank {
 public:
  struct Copied {
    bool done() { return true; }
    void wait() {}
  };

  InstantRank(Index rank, Index size) : rank_(rank), size_(size) {}
  Index rank() const { return rank_; }
  Index size() const { return size_; }
  double timeout() const { return 0; }

  void agree(std::span<const std::byte> record, std::span<std::byte> records) {
    for (Index r = 0; r < size_; ++r) {
      std::ranges::copy(record, records.data() + static_cast<std::size_t>(r) * record.size());
    }
  }
  Copied all_gather(std::span<const distributed::SharedRows> arrays, std::span<const Index> first) {
    const auto r = static_cast<std::size_t>(rank_);
    copy(arrays, first[r], 0, first[r]);
    copy(arrays, first[r], first[r + 1], first.back());
    return {};
  }
  Copied exchange(std::span<const distributed::SharedRows> arrays,
                  std::span<const distributed::PeerRows> sends,
                  std::span<const distributed::PeerRows> receives) {
    for (const auto& rows : receives) {
      sends.empty() ? clear(arrays, rows) : copy(arrays, sends.front().begin, rows.begin, rows.end);
    }
    return {};
  }

 private:
  static void copy(std::span<const distributed::SharedRows> arrays, Index source, Index begin,
                   Index end) {
    for (const auto& array : arrays) {
      for (Index row = begin; row < end; ++row) {
        std::copy_n(array.row(source), array.row_bytes, array.row(row));
      }
    }
  }
  static void clear(std::span<const distributed::SharedRows> arrays,
                    const distributed::PeerRows& rows) {
    for (const auto& array : arrays) {
      for (Index row = rows.begin; row < rows.end; ++row) {
        std::fill_n(array.row(row), array.row_bytes, std::byte{});
      }
    }
  }

  Index rank_, size_;
};
static_assert(distributed::Communicator<InstantRank>);

}  // namespace mhla::bench
