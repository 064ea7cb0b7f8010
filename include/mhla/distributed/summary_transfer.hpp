#pragma once

/// \file
/// Transfer of a head's summaries, or of the gradients of its mixtures, to other ranks. A large
/// share is cut into parts of blocks, so that a rank sends while it works on. Each part is sent
/// once its blocks are written. The last part is cut into arrays, slabs of features, which are
/// mixed once received.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/distributed/communicator.hpp"
#include "mhla/distributed/route.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Approximate smallest number of bytes of a part: a millisecond of 2 Gb/s, and many times the cost
/// of a message.
inline constexpr Index kPartBytes = Index{1} << 18;
inline constexpr Index kMostParts = 8;

/// Number of parts of the shares of a split, whose largest share has `most_rows` rows.
inline Index parts_of(Index most_rows, Index row_bytes) {
  return std::clamp(most_rows * row_bytes / kPartBytes, Index{1}, kMostParts);
}

/// The arrays that for_each(f) hands to f(rows, columns).
template <class ForEach>
std::vector<distributed::SharedRows> shared_rows(ForEach&& for_each) {
  std::vector<distributed::SharedRows> arrays;
  for_each([&](auto rows, Index columns) {
    const auto bytes = [&](Index n) { return static_cast<std::size_t>(n) * sizeof(*rows.data); };
    arrays.push_back(
        {reinterpret_cast<std::byte*>(rows.data), bytes(columns), bytes(rows.stride - columns)});
  });
  return arrays;
}

template <class C>
using TransferOf = decltype(std::declval<Route>().start(std::declval<C&>(), {}));

template <class C>
class SummaryTransfer {
 public:
  /// Call before the head writes its rows of these arrays. Transfers of the previous head have
  /// ended.
  void begin(const Route& route, std::vector<distributed::SharedRows> arrays) {
    transfers_.clear();
    route_ = &route;
    arrays_ = std::move(arrays);
    started_ = 0;
    std::size_t row = 0;
    for (const auto& array : arrays_) row += array.row_bytes;
    parts_ = parts_of(route.most_rows(), static_cast<Index>(row));
    for (auto& count : written_) count = 0;
  }
  /// Notes that block b of the share is written. Any thread may call it.
  void wrote(Index b) {
    Index part = 0;
    while (route_->own_part(part, parts_).end <= route_->own_part(0, parts_).begin + b) ++part;
    written_[static_cast<std::size_t>(part)].fetch_add(1, std::memory_order_release);
  }
  /// Starts the parts whose blocks are all written; parts start in order.
  void start_written(C& comm) {
    while (started_ < parts_) {
      const PartOfRows part = route_->own_part(started_, parts_);
      const auto written =
          written_[static_cast<std::size_t>(started_)].load(std::memory_order_acquire);
      if (written < part.end - part.begin) return;
      start_part(comm);
    }
  }
  /// Starts the remaining parts: no rank reads rows that are not written by now.
  void start_rest(C& comm) {
    while (started_ < parts_) start_part(comm);
  }

  /// Returns when array i is received. A rank that receives nothing does not wait.
  void await(Index i) {
    if (route_->rows_received() == 0) return;
    const auto last = static_cast<std::size_t>(parts_ - 1);
    for (std::size_t part = 0; part < last; ++part) transfers_[part].wait();
    transfers_[last + (parts_ > 1 ? static_cast<std::size_t>(i) : 0)].wait();
  }
  /// Returns when all arrays are received.
  void await() {
    if (route_->rows_received() > 0) wait();
  }
  /// Returns when all rows are sent and received.
  void wait() {
    for (auto& transfer : transfers_) transfer.wait();
  }
  void poll() {
    for (auto& transfer : transfers_) static_cast<void>(transfer.done());
  }

 private:
  void start_part(C& comm) {
    const std::span<const distributed::SharedRows> arrays(arrays_);
    const bool apart = parts_ > 1 && started_ + 1 == parts_;
    for (std::size_t i = 0; i < (apart ? arrays.size() : 1); ++i) {
      transfers_.push_back(
          route_->start(comm, apart ? arrays.subspan(i, 1) : arrays, started_, parts_));
    }
    ++started_;
  }

  const Route* route_ = nullptr;
  std::vector<distributed::SharedRows> arrays_;
  Index parts_ = 0, started_ = 0;
  std::array<std::atomic<Index>, static_cast<std::size_t>(kMostParts)> written_{};  // blocks
  std::vector<TransferOf<C>> transfers_;  // in the order in which they started
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
