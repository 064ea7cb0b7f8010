#pragma once

/// \file
/// Routes of rows between ranks, for arrays with a row per block, by the coefficients of the mixing
/// matrix. If every rank reads all rows, all are sent to all; otherwise only rows that are read.
/// Partial mixtures, reduced and scattered, would send less where query blocks are few, but their
/// sums would depend on the split.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/distributed/communicator.hpp"
#include "mhla/policy/partition.hpp"
#include "mhla/policy/pattern.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The blocks of all ranks: rank r has [first[r], first[r + 1]).
using Borders = std::vector<Index>;

inline BlockShare share_of(const Borders& first, Index rank) {
  const auto r = static_cast<std::size_t>(rank);
  return {first[r], first[r + 1] - first[r], first.back()};
}

/// Rows [begin, end) of an array.
struct PartOfRows {
  Index begin, end;
};
/// Part p of the rows of a rank, cut into `parts`.
inline PartOfRows part_of(const BlockShare& share, Index p, Index parts) {
  return {share.first + share.count * p / parts, share.first + share.count * (p + 1) / parts};
}

/// Smallest number of bytes of a transfer between all ranks, per rank but one: 10 us of NVLink (450
/// GB/s). This is a few times what NCCL takes to forward rows from one GPU to the next. Assumed,
/// not measured.
inline constexpr std::uint64_t kTransferBytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kMostTransfers = 4;

/// Number of transfers that `bytes` of all ranks are cut into between GPUs. Some are in flight
/// while kernels write or read others.
inline std::uint64_t transfers_of(std::uint64_t bytes, std::uint64_t ranks) {
  const std::uint64_t fits = ranks > 1 ? bytes / (kTransferBytes * (ranks - 1)) : 1;
  return std::clamp<std::uint64_t>(fits, 1, kMostTransfers);
}

class Route {
 public:
  Route() = default;
  /// Sends all rows to all ranks.
  explicit Route(const Borders& first) : first_(first) {}
  /// \param first  borders of the ranks' rows
  /// \param reads  reads(r, mark) calls mark(begin, end) for runs of rows that rank r reads
  template <class Reads>
  Route(const Borders& first, Index rank, Reads&& reads);

  /// True if all rows go to all ranks, by all_gather; otherwise rows go by exchange.
  bool all() const { return all_; }
  Index rows_sent() const { return sent_; }
  Index rows_received() const { return received_; }

  /// Largest number of rows of a rank.
  Index most_rows() const;
  PartOfRows own_part(Index p, Index parts) const {
    return part_of(share_of(first_, rank_), p, parts);
  }

  /// Starts the transfer of rows of all arrays.
  template <distributed::Communicator C>
  auto start(C& comm, std::span<const distributed::SharedRows> arrays) const {
    return all_ ? comm.all_gather(arrays, first_) : comm.exchange(arrays, sends_, receives_);
  }
  /// Starts the transfer of part p of every rank's rows. The Route must have readers.
  template <distributed::Communicator C>
  auto start(C& comm, std::span<const distributed::SharedRows> arrays, Index p, Index parts) const {
    if (parts == 1) return start(comm, arrays);
    return comm.exchange(arrays, in_part(sends_, true, p, parts),
                         in_part(receives_, false, p, parts));
  }

 private:
  /// Returns the rows of `rows` that lie in part p of their owners' rows.
  std::vector<distributed::PeerRows> in_part(const std::vector<distributed::PeerRows>& rows,
                                             bool from_this_rank, Index p, Index parts) const;

  Borders first_;
  Index rank_ = 0;
  std::vector<distributed::PeerRows> sends_, receives_;
  bool all_ = true;
  Index sent_ = 0, received_ = 0;
};

/// Route of summaries to the ranks whose query blocks read them.
inline Route summary_route(const Pattern& pattern, Reach reach, const Borders& queries,
                           const Borders& keys, Index rank) {
  return {keys, rank, [&](Index reader, auto&& mark) {
            const auto share = share_of(queries, reader);
            for (Index i = share.first; i < share.first + share.count; ++i) {
              if (pattern.sparse()) {
                const auto list = readable_list(pattern, i, reach, keys.back());
                for (Index n = 0; n < list.count; ++n) mark(list.blocks[n], list.blocks[n] + 1);
              } else {
                const auto span = readable(pattern, i, reach, keys.back());
                mark(span.begin, span.end);
              }
            }
          }};
}

/// Route of gradients of mixtures to the ranks of the key blocks that the mixtures hold.
inline Route mixture_route(const Pattern& pattern, Reach reach, const Borders& queries,
                           const Borders& keys, Index rank) {
  return {queries, rank, [&](Index reader, auto&& mark) {
            const auto share = share_of(keys, reader);
            for (Index b = share.first; b < share.first + share.count; ++b) {
              if (pattern.sparse()) {
                const auto list = reader_list(pattern, b, reach, queries.back());
                for (Index n = 0; n < list.count; ++n) mark(list.blocks[n], list.blocks[n] + 1);
              } else {
                const auto span = readers(pattern, b, reach, queries.back());
                mark(span.begin, span.end);
              }
            }
          }};
}

// ------------------------------------------------------------------------------------------------

template <class Reads>
Route::Route(const Borders& first, Index rank, Reads&& reads) : first_(first), rank_(rank) {
  const Index size = static_cast<Index>(first.size()) - 1;
  const auto local = share_of(first, rank);
  std::vector<Index> changes;  // change in the number of runs per row, from the row before
  for (Index reader = 0; reader < size; ++reader) {
    // Once some rank does not need all rows, only this rank's rows matter for other readers.
    const bool whole = reader == rank || all_;
    const Index begin = whole ? 0 : local.first,
                end = whole ? local.all : local.first + local.count;
    changes.assign(static_cast<std::size_t>(end - begin + 1), 0);
    reads(reader, [&](Index from, Index to) {
      if (std::max(from, begin) >= std::min(to, end)) return;
      ++changes[static_cast<std::size_t>(std::max(from, begin) - begin)];
      --changes[static_cast<std::size_t>(std::min(to, end) - begin)];
    });
    for (std::size_t i = 1; i < changes.size(); ++i) changes[i] += changes[i - 1];
    const auto is_read = [&](Index row) {
      return changes[static_cast<std::size_t>(row - begin)] > 0;
    };
    for (Index peer = 0; peer < size; ++peer) {
      if (peer == reader || !(whole || peer == rank)) continue;
      const auto share = share_of(first, peer);
      const Index last = share.first + share.count;
      for (Index row = share.first; row < last;) {
        if (!is_read(row)) {
          all_ = false;
          ++row;
          continue;
        }
        const Index from = row;
        while (row < last && is_read(row)) ++row;
        if (reader == rank) receives_.push_back({peer, from, row});
        if (peer == rank) sends_.push_back({reader, from, row});
      }
    }
  }
  for (const distributed::PeerRows& rows : sends_) sent_ += rows.end - rows.begin;
  for (const distributed::PeerRows& rows : receives_) received_ += rows.end - rows.begin;
}

inline Index Route::most_rows() const {
  Index most = 0;
  for (std::size_t r = 0; r + 1 < first_.size(); ++r) {
    most = std::max(most, first_[r + 1] - first_[r]);
  }
  return most;
}

inline std::vector<distributed::PeerRows> Route::in_part(
    const std::vector<distributed::PeerRows>& rows, bool from_this_rank, Index p,
    Index parts) const {
  std::vector<distributed::PeerRows> result;
  for (const auto& [peer, begin, end] : rows) {
    const PartOfRows part = part_of(share_of(first_, from_this_rank ? rank_ : peer), p, parts);
    const Index from = std::max(begin, part.begin), to = std::min(end, part.end);
    if (from < to) result.push_back({peer, from, to});
  }
  return result;
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
