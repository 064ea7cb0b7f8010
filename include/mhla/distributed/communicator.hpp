#pragma once

/// \file
/// Requirements of a transport of data between ranks: the processes, devices or threads that share
/// a sequence. Models are thread_ranks.hpp (threads of one process), mpi.hpp and nccl.hpp; a user's
/// class serves as well.
///
/// A communicator adds nothing: a sum whose order depends on the number of ranks would have other
/// bits for another number. Rows to sum are gathered, and the library sums them in the order of
/// blocks.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <iterator>
#include <span>
#include <stdexcept>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {

/// A rank that did not answer in time, or died, or a transport that failed. The communicator
/// refuses every later call.
struct communication_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline namespace MHLA_TARGET {
namespace distributed {

/// An array whose rows belong to the ranks in turn. Every rank has memory for all rows.
struct SharedRows {
  std::byte* data;          ///< row 0
  std::size_t row_bytes;    ///< bytes of a row, all of which are sent
  std::size_t padding = 0;  ///< bytes from the end of a row to the next; need not be sent

  std::size_t stride() const { return row_bytes + padding; }
  std::byte* row(Index i) const { return data + static_cast<std::size_t>(i) * stride(); }
};

/// Rows [begin, end) of every array of an exchange, from or to another rank, `peer`.
struct PeerRows {
  Index peer;
  Index begin;
  Index end;
};

/// True if `first` splits `rows` over ranks: rank r has rows [first[r], first[r + 1]).
inline bool is_split(std::span<const Index> first, Index ranks, Index rows) {
  return std::ssize(first) == ranks + 1 && first.front() == 0 && first.back() == rows &&
         std::is_sorted(first.begin(), first.end());
}

/// An all_gather as an exchange, for transports that have no faster one.
struct GatherRows {
  std::vector<PeerRows> sends, receives;

  GatherRows(Index rank, std::span<const Index> first) {
    const auto r = static_cast<std::size_t>(rank);
    for (std::size_t p = 0; p + 1 < first.size(); ++p) {
      if (p == r) continue;
      sends.push_back({static_cast<Index>(p), first[r], first[r + 1]});
      receives.push_back({static_cast<Index>(p), first[p], first[p + 1]});
    }
  }
};

/// A transfer in flight. done() makes progress and returns true once all rows are sent and
/// received; wait() returns then. The destructor of a transfer in flight also waits, and throws
/// nothing.
template <class X>
concept Transfer = std::movable<X> && requires(X& x) {
  { x.done() } -> std::same_as<bool>;
  x.wait();
};

/// A rank among size() ranks that call the same functions in the same order.
///
///     agree(record, records)              the records of all ranks, [size, bytes of a record]
///     all_gather(arrays, first)           rows [first[r], first[r + 1]) of rank r, to all ranks
///     exchange(arrays, sends, receives)   some rows to some ranks
///
/// Laws. Records are in host memory, of one length everywhere; agree() returns when all have come.
/// The arrays of a transfer have the same number, row bytes and padding on all ranks. `first` has
/// size() + 1 entries, the same on all ranks. Rows that r sends to s are the rows that s receives
/// from r, in the order of the lists. Until a transfer is done, its arrays stay alive, sent rows do
/// not change and received rows are not read. The lists are free when the call returns. A later
/// transfer may be done first. Bytes arrive unchanged. If a rank does not take part within
/// timeout() seconds, all three throw communication_error, which names that rank if the transport
/// can tell.
///
/// Device transfers are stream-ordered. A transfer begins after earlier work in the stream, and
/// wait() blocks the stream, not the host. A missing rank is then the error of the next call in
/// which the host waits: agree() or a function of the communicator.
template <class C>
concept Communicator = requires(C& c, std::span<const std::byte> record,
                                std::span<std::byte> records, std::span<const SharedRows> arrays,
                                std::span<const Index> first, std::span<const PeerRows> sends,
                                std::span<const PeerRows> receives) {
  { c.rank() } -> std::convertible_to<Index>;
  { c.size() } -> std::convertible_to<Index>;
  { c.timeout() } -> std::convertible_to<double>;
  c.agree(record, records);
  { c.all_gather(arrays, first) } -> Transfer;
  { c.exchange(arrays, sends, receives) } -> Transfer;
};

}  // namespace distributed
}  // namespace MHLA_TARGET
}  // namespace mhla
