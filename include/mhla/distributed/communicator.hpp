#pragma once

/// \file
/// What moves data between ranks: the processes, devices or threads that hold a sequence together.
/// Models are thread_ranks.hpp (threads of one process), mpi.hpp and nccl.hpp; yours is as good.
///
/// Nothing here adds: a sum whose order depends on the number of ranks has other bits for another
/// number. What must be summed is gathered, and summed by the library in the order of blocks.

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

/// An array whose rows ranks own in turn. Every rank has room for all rows.
struct SharedRows {
  std::byte* data;          ///< row 0
  std::size_t row_bytes;    ///< of a row, all of which travel
  std::size_t padding = 0;  ///< bytes from the end of a row to the next one; they need not travel

  std::size_t stride() const { return row_bytes + padding; }
  std::byte* row(Index i) const { return data + static_cast<std::size_t>(i) * stride(); }
};

/// Rows [begin, end) of every array of an exchange, from or to another rank, `peer`.
struct PeerRows {
  Index peer;
  Index begin;
  Index end;
};

/// Whether `first` is a split of `rows` over ranks: rank r has rows [first[r], first[r + 1]).
inline bool is_split(std::span<const Index> first, Index ranks, Index rows) {
  return std::ssize(first) == ranks + 1 && first.front() == 0 && first.back() == rows &&
         std::is_sorted(first.begin(), first.end());
}

/// An all_gather as an exchange, for transports that have no better.
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

/// A transfer under way. done() lets it go on and says whether all rows have come and gone; wait()
/// returns when they have. The destructor of one under way waits too, and throws nothing.
template <class X>
concept Transfer = std::movable<X> && requires(X& x) {
  { x.done() } -> std::same_as<bool>;
  x.wait();
};

/// One of size() ranks that call the same functions in the same order.
///
///     agree(record, records)              the records of all ranks, [size, bytes of a record]
///     all_gather(arrays, first)           rows [first[r], first[r + 1]) of rank r, to all ranks
///     exchange(arrays, sends, receives)   some rows to some ranks
///
/// Laws. Records are in host memory, of one length everywhere; agree() returns when all have come.
/// The arrays of a transfer are as many, and of rows and padding as long, everywhere; `first` has
/// size() + 1 entries, the same everywhere; what r sends to s is what s receives from r, in the
/// order of the lists. Until a transfer is done its arrays live, what it sends does not change and
/// what it receives is not read; the lists are free when the call returns. A later transfer may be
/// done first. Bytes arrive as they were. A rank that does not take part within timeout() seconds
/// makes all three throw communication_error, which names it where the transport can tell.
///
/// Of arrays in device memory a stream is the user: a transfer begins after what the stream holds,
/// and wait() holds up what comes next in the stream, not the host. A rank that is missing is then
/// the error of the next call that the host waits in, agree() or the communicator's own.
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
