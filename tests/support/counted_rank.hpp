#pragma once

/// \file
/// A rank that counts the bytes of its transfers.

#include <cstddef>
#include <span>

#include "mhla/distributed/communicator.hpp"

namespace mhla::test {

template <distributed::Communicator C>
class CountedRank {
 public:
  explicit CountedRank(C& rank) : rank_(&rank) {}

  Index rank() const { return rank_->rank(); }
  Index size() const { return rank_->size(); }
  double timeout() const { return rank_->timeout(); }
  void agree(std::span<const std::byte> record, std::span<std::byte> records) {
    rank_->agree(record, records);
  }
  auto all_gather(std::span<const distributed::SharedRows> arrays, std::span<const Index> first) {
    const auto r = static_cast<std::size_t>(rank());
    const Index count = first[r + 1] - first[r];
    sent += count * (size() - 1) * bytes(arrays);
    received += (first.back() - count) * bytes(arrays);
    gathers = true;
    return rank_->all_gather(arrays, first);
  }
  auto exchange(std::span<const distributed::SharedRows> arrays,
                std::span<const distributed::PeerRows> sends,
                std::span<const distributed::PeerRows> receives) {
    for (const auto& rows : sends) sent += (rows.end - rows.begin) * bytes(arrays);
    for (const auto& rows : receives) received += (rows.end - rows.begin) * bytes(arrays);
    return rank_->exchange(arrays, sends, receives);
  }

  Index sent = 0, received = 0;
  bool gathers = false;

 private:
  static Index bytes(std::span<const distributed::SharedRows> arrays) {
    std::size_t sum = 0;
    for (const auto& rows : arrays) sum += rows.row_bytes;
    return static_cast<Index>(sum);
  }

  C* rank_;
};

}  // namespace mhla::test
