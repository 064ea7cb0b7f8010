#pragma once

/// \file
/// Ranks that are processes of MPI (3.0 or newer: Open MPI, MPICH):
///
///     MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
///     MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
///     mhla::distributed::MpiRank rank(MPI_COMM_WORLD);
///
/// Links mhla::mpi, COMPONENTS mpi of the package. README.md of the folder says how to launch
/// ranks.

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/distributed/communicator.hpp"
#include "mhla/distributed/mpi_transfer.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace distributed {

/// This process among those of an MPI communicator. It uses a copy of the communicator, so that its
/// messages match no others. All ranks make an MpiRank, and call its functions, in the same order.
/// Each rank calls from the thread that initialised MPI, or from another if MPI granted
/// MPI_THREAD_SERIALIZED. Arrays are in host memory. An MpiRank outlives its transfers.
///
/// Messages have at most 16 MiB. A transfer is late when none of its messages has ended for
/// timeout() seconds. Errors of MPI are thrown. MPICH passes errors of transfers in flight to the
/// error handler of MPI_COMM_WORLD; if that does not return, they end the program.
///
/// After a communication_error MPI may still write to arrays of transfers in flight, and
/// MPI_Finalize may wait for ever: end the program with MPI_Abort.
class MpiRank {
 public:
  /// \param timeout  seconds
  /// \throws communication_error if MPI is not running, or if not all ranks come in time
  explicit MpiRank(MPI_Comm comm, double timeout = 30);
  MpiRank(const MpiRank&) = delete;
  MpiRank& operator=(const MpiRank&) = delete;
  ~MpiRank();

  Index rank() const { return link_.rank; }
  Index size() const { return link_.size; }
  double timeout() const { return link_.timeout; }

  /// Receives size() - 1 messages, one from each rank. MPI_Iallgather and log2(size()) rounds send
  /// fewer messages, but forward records through other ranks: a waiting rank could not name a
  /// missing one. MPI_Iallgather took 8 us instead of 13 on 2 ranks of one machine, and 56 instead
  /// of 105 on 7.
  void agree(std::span<const std::byte> record, std::span<std::byte> records);
  /// Sends the rows of this rank to each other rank in one step, with the total bytes of a ring.
  detail::MpiTransfer all_gather(std::span<const SharedRows> arrays, std::span<const Index> first);
  /// Sends one message per peer in `sends`, for any number of arrays and rows.
  detail::MpiTransfer exchange(std::span<const SharedRows> arrays, std::span<const PeerRows> sends,
                               std::span<const PeerRows> receives);

 private:
  void copy(MPI_Comm comm);

  detail::MpiLink link_;
};
static_assert(Communicator<MpiRank>);

// ------------------------------------------------------------------------------------------------

inline MpiRank::MpiRank(MPI_Comm comm, double timeout) {
  link_.timeout = timeout;
  int begun = 0;
  int ended = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  if (!begun || ended) {
    link_.fail("an MpiRank is between MPI_Init_thread and MPI_Finalize");
  }
  copy(comm);
  link_.expect(MPI_Comm_set_errhandler(link_.comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int rank = 0;
  int size = 0;
  link_.expect(MPI_Comm_rank(link_.comm, &rank), "MPI_Comm_rank");
  link_.expect(MPI_Comm_size(link_.comm, &size), "MPI_Comm_size");
  link_.rank = rank;
  link_.size = size;
}

inline void MpiRank::copy(MPI_Comm comm) {
  auto copy = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  link_.expect(MPI_Comm_idup(comm, copy.get(), &request), "MPI_Comm_idup");
  const detail::Deadline deadline(link_.timeout);
  while (true) {
    const bool passed = deadline.passed();
    int ended = 0;
    link_.expect(MPI_Test(&request, &ended, MPI_STATUS_IGNORE), "MPI_Comm_idup");
    if (ended) break;
    if (passed) {
      [[maybe_unused]] MPI_Comm* lost = copy.release();  // MPI may still write it
      link_.fail("not all ranks made an MpiRank within " + std::to_string(link_.timeout) + " s");
    }
    std::this_thread::yield();
  }
  link_.comm = *copy;
}

inline MpiRank::~MpiRank() {
  int ended = 0;
  MPI_Finalized(&ended);
  // Transfers in flight after a failure keep the communicator.
  if (!ended && link_.failure.empty()) MPI_Comm_free(&link_.comm);
}

inline void MpiRank::agree(std::span<const std::byte> record, std::span<std::byte> records) {
  std::copy(record.begin(), record.end(),
            records.data() + static_cast<std::size_t>(rank()) * record.size());
  std::vector<Index> first(static_cast<std::size_t>(size()) + 1);
  std::iota(first.begin(), first.end(), Index{0});
  const SharedRows rows{records.data(), record.size()};
  all_gather({&rows, 1}, first).wait();
}

inline detail::MpiTransfer MpiRank::exchange(std::span<const SharedRows> arrays,
                                             std::span<const PeerRows> sends,
                                             std::span<const PeerRows> receives) {
  link_.refuse_after_failure();
  detail::MpiTransfer transfer(link_);
  transfer.begin(arrays, receives, true);
  transfer.begin(arrays, sends, false);
  return transfer;
}

inline detail::MpiTransfer MpiRank::all_gather(std::span<const SharedRows> arrays,
                                               std::span<const Index> first) {
  const GatherRows rows(rank(), first);
  return exchange(arrays, rows.sends, rows.receives);
}

}  // namespace distributed
}  // namespace MHLA_TARGET
}  // namespace mhla
