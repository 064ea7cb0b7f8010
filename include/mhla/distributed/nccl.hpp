#pragma once

/// \file
/// Ranks that are GPUs: arrays in device memory, moved by NCCL 2.14 or newer.
///
///     ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
///     config.blocking = 0;
///     ncclComm_t comm;           // id: of ncclGetUniqueId on one rank, carried by MPI or a file
///     ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
///     NcclRank gpu(comm, stream);
///     ...
///     gpu.synchronize();         // instead of cudaStreamSynchronize(stream)
///
/// Transfers have a separate stream, so that they run concurrently with kernels. The host waits in
/// agree(), in synchronize() and while NCCL connects ranks for the first time; each wait ends after
/// timeout() seconds. A blocking communicator (NCCL's default without that config) waits inside
/// NCCL for a rank that is not connected yet, without a limit.

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <span>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/distributed/communicator.hpp"
#include "mhla/distributed/nccl_connection.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace distributed {
namespace detail {

/// Rows in flight in the stream of transfers.
class NcclTransfer {
 public:
  NcclTransfer(NcclConnection& connection, CudaEvent done)
      : connection_(&connection), done_(std::move(done)) {}
  NcclTransfer(NcclTransfer&&) = default;
  NcclTransfer& operator=(NcclTransfer&& other) noexcept {
    std::swap(connection_, other.connection_);
    std::swap(done_, other.done_);
    return *this;
  }
  ~NcclTransfer() {
    try {
      wait();
    } catch (const communication_error&) {  // the next call of the rank throws it
    }
  }

  bool done() {
    if (done_ && connection_->passed(done_.get())) done_.reset();
    return !done_;
  }
  void wait() {
    if (const CudaEvent done = std::move(done_)) connection_->hold(done.get());
  }

 private:
  NcclConnection* connection_;
  CudaEvent done_;  // null once moved from, done or waited for
};
static_assert(Transfer<NcclTransfer>);

}  // namespace detail

/// A GPU among size(). One thread at a time calls it, with that device as its current device. It
/// outlives its transfers. All ranks end their transfers, and wait at most timeout() seconds for
/// each other.
class NcclRank {
 public:
  /// \param comm     owned by the rank from now on; its initialisation may still be in progress
  /// \param stream   runs the kernels that write and read the arrays, on that device; outlives the
  ///     rank
  /// \param timeout  largest number of seconds to wait for other ranks
  /// \throws communication_error if NCCL or CUDA fails
  NcclRank(ncclComm_t comm, cudaStream_t stream, double timeout = 30)
      : connection_(comm, stream, timeout) {}

  Index rank() const { return connection_.rank(); }
  Index size() const { return connection_.size(); }
  double timeout() const { return connection_.timeout(); }
  cudaStream_t stream() const { return connection_.stream(); }

  /// Gathers records through a device buffer of the longest record. Earlier transfers are done
  /// then.
  void agree(std::span<const std::byte> record, std::span<std::byte> records);
  /// Equal shares use ncclAllGather; others use an ncclBroadcast from each rank. NCCL forwards a
  /// broadcast from GPU to GPU. With sends to each rank, all copies would leave the machine that
  /// has the row.
  detail::NcclTransfer all_gather(std::span<const SharedRows> arrays, std::span<const Index> first);
  detail::NcclTransfer exchange(std::span<const SharedRows> arrays, std::span<const PeerRows> sends,
                                std::span<const PeerRows> receives);

  /// Returns when all work in the stream is done.
  /// \throws communication_error if a transfer failed or a rank is missing; later results of the
  ///     stream are invalid then
  void synchronize() {
    connection_.settle();
    connection_.check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  }

 private:
  /// Bytes with padding, which is sent too: NCCL sends contiguous memory.
  static std::size_t bytes(const SharedRows& array, Index begin, Index end) {
    return static_cast<std::size_t>(end - begin) * array.stride();
  }
  std::byte* reserve(std::size_t bytes);

  detail::DeviceBytes records_;  // freed when the connection has ended: to free them may wait
  std::size_t reserved_ = 0;
  detail::NcclConnection connection_;
};
static_assert(Communicator<NcclRank>);

// ------------------------------------------------------------------------------------------------

/// Returns device memory for records.
inline std::byte* NcclRank::reserve(std::size_t bytes) {
  if (bytes > reserved_) {
    records_.reset();
    void* memory = nullptr;
    connection_.check(cudaMalloc(&memory, bytes), "cudaMalloc");
    records_.reset(static_cast<std::byte*>(memory));
    reserved_ = bytes;
  }
  return records_.get();
}

inline void NcclRank::agree(std::span<const std::byte> record, std::span<std::byte> records) {
  const cudaStream_t transfers = connection_.transfers();
  connection_.settle();  // cudaFree and copies of host memory may wait, and would for ever
  std::byte* const all = reserve(records.size());
  std::byte* const of_rank = all + static_cast<std::size_t>(rank()) * record.size();
  connection_.check(
      cudaMemcpyAsync(of_rank, record.data(), record.size(), cudaMemcpyHostToDevice, transfers),
      "cudaMemcpyAsync");
  connection_.group([&](const auto& put) {
    put(ncclAllGather(of_rank, all, record.size(), ncclUint8, connection_.comm(), transfers),
        "ncclAllGather");
  });
  connection_.settle();  // as above
  connection_.check(
      cudaMemcpyAsync(records.data(), all, records.size(), cudaMemcpyDeviceToHost, transfers),
      "cudaMemcpyAsync");
  connection_.check(cudaStreamSynchronize(transfers), "cudaStreamSynchronize");
}

inline detail::NcclTransfer NcclRank::all_gather(std::span<const SharedRows> arrays,
                                                 std::span<const Index> first) {
  const ncclComm_t comm = connection_.comm();
  const cudaStream_t transfers = connection_.transfers();
  const auto share = [&](Index r) {
    const auto at = static_cast<std::size_t>(r);
    return std::pair(first[at], first[at + 1]);
  };
  bool equal = true;
  for (Index r = 0; r < size(); ++r) {
    equal = equal && share(r).second - share(r).first == first[1] - first[0];
  }
  const auto gather = [&](const SharedRows& array, const auto& put) {
    const auto [begin, end] = share(rank());
    put(ncclAllGather(array.row(begin), array.row(first[0]), bytes(array, begin, end), ncclUint8,
                      comm, transfers),
        "ncclAllGather");
  };
  const auto broadcast = [&](const SharedRows& array, const auto& put) {
    for (Index r = 0; r < size(); ++r) {
      const auto [begin, end] = share(r);
      std::byte* const rows = array.row(begin);
      put(ncclBroadcast(rows, rows, bytes(array, begin, end), ncclUint8, static_cast<int>(r), comm,
                        transfers),
          "ncclBroadcast");
    }
  };
  return {connection_, connection_.start([&](const auto& put) {
            for (const SharedRows& array : arrays) {
              equal ? gather(array, put) : broadcast(array, put);
            }
          })};
}

inline detail::NcclTransfer NcclRank::exchange(std::span<const SharedRows> arrays,
                                               std::span<const PeerRows> sends,
                                               std::span<const PeerRows> receives) {
  const ncclComm_t comm = connection_.comm();
  const cudaStream_t transfers = connection_.transfers();
  const auto visit = [](const SharedRows& array, std::span<const PeerRows> all, auto&& f) {
    for (const auto& [peer, begin, end] : all) {
      const std::size_t count = bytes(array, begin, end);
      if (count > 0) f(array.row(begin), count, static_cast<int>(peer));  // NCCL may fail on none
    }
  };
  return {connection_, connection_.start([&](const auto& put) {
            for (const SharedRows& array : arrays) {
              visit(array, sends, [&](const std::byte* from, std::size_t count, int peer) {
                put(ncclSend(from, count, ncclUint8, peer, comm, transfers), "ncclSend");
              });
              visit(array, receives, [&](std::byte* to, std::size_t count, int peer) {
                put(ncclRecv(to, count, ncclUint8, peer, comm, transfers), "ncclRecv");
              });
            }
          })};
}

}  // namespace distributed
}  // namespace MHLA_TARGET
}  // namespace mhla
