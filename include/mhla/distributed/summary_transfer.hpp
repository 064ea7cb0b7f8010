#pragma once

/// \file
/// The summaries of a head, or the gradients of its mixtures, on their way to other ranks. A large
/// share is cut, so that a rank sends while it works on: into parts of blocks, each sent once these
/// are written, and the last part into arrays, slabs of features, each mixed once it is there.

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

/// A part has about so many bytes, at least: a millisecond of 2 Gb/s, and many times the cost of a
/// message.
inline constexpr Index kPartBytes = Index{1} << 18;
inline constexpr Index kMostParts = 8;

/// Into how many parts the shares of a split are cut, whose largest has so many rows.
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
  /// Before the head writes its share's rows of these arrays. Those of the head before have ended.
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
  /// Block b of the share is written. On any thread.
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
  /// Starts the others: what is not written by now is read by none.
  void start_rest(C& comm) {
    while (started_ < parts_) start_part(comm);
  }

  /// Returns when array i is there. A rank that receives nothing waits for nothing.
  void await(Index i) {
    if (route_->rows_received() == 0) return;
    const auto last = static_cast<std::size_t>(parts_ - 1);
    for (std::size_t part = 0; part < last; ++part) transfers_[part].wait();
    transfers_[last + (parts_ > 1 ? static_cast<std::size_t>(i) : 0)].wait();
  }
  /// Returns when all arrays are there.
  void await() {
    if (route_->rows_received() > 0) wait();
  }
  /// Returns when all rows have come and gone.
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
