#pragma once

/// \file
/// Connection of a rank of nccl.hpp: a communicator of NCCL, a stream for its transfers, and the
/// time limit of waits on the host.

#include <cuda_runtime.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/distributed/communicator.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace distributed::detail {

struct CudaDelete {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  void operator()(std::byte* memory) const { cudaFree(memory); }
};
using CudaStream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, CudaDelete>;
using CudaEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, CudaDelete>;
using DeviceBytes = std::unique_ptr<std::byte, CudaDelete>;

/// Every function throws communication_error if NCCL or CUDA fails, and from then on.
class NcclConnection {
 public:
  /// Returns when the communicator is made.
  NcclConnection(ncclComm_t comm, cudaStream_t stream, double timeout);
  NcclConnection(NcclConnection&&) = delete;
  ~NcclConnection();

  int rank() const { return rank_; }
  int size() const { return size_; }
  double timeout() const { return timeout_; }
  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }
  cudaStream_t transfers() const { return transfers_.get(); }

  void expect_no_failure() const {
    if (!failure_.empty()) throw communication_error("mhla::distributed: " + failure_);
  }
  void check(cudaError_t status, const char* call) {
    if (status == cudaSuccess) return;
    forget();
    fail(std::string(call) + " failed: " + cudaGetErrorName(status) + " (" +
         cudaGetErrorString(status) + ")");
  }
  /// Clears CUDA's last error.
  static void forget() { static_cast<void>(cudaGetLastError()); }
  /// Waits until an asynchronous call ends.
  void check(ncclResult_t result, const char* call);

  /// Issues the calls put(result, name) of `calls` to the stream of transfers, as one group.
  template <class Calls>
  void group(const Calls& calls);
  /// Issues a group after earlier work in the stream of kernels.
  /// \return an event after the transfer
  template <class Calls>
  CudaEvent start(const Calls& calls);
  /// True if the event has passed; fails with transfers in flight.
  bool passed(cudaEvent_t event);
  /// Makes the stream of kernels wait for the event.
  void hold(cudaEvent_t event) {
    expect_no_failure();
    check(cudaStreamWaitEvent(stream_, event, 0), "cudaStreamWaitEvent");
  }
  /// Returns when all transfers are done. The time limit of other ranks starts when the stream of
  /// kernels reaches the last transfer.
  void settle();

 private:
  using Clock = std::chrono::steady_clock;

  bool late(Clock::time_point begin) const {
    return std::chrono::duration<double>(Clock::now() - begin).count() > timeout_;
  }
  ncclResult_t state() const;
  CudaEvent new_event();
  void record(cudaEvent_t event, cudaStream_t stream) {
    check(cudaEventRecord(event, stream), "cudaEventRecord");
  }
  /// Records the failure, and ends NCCL kernels that wait for other ranks.
  [[noreturn]] void fail(const std::string& why) {
    failure_ = "rank " + std::to_string(rank_) + ": " + why;
    ncclCommAbort(std::exchange(comm_, nullptr));
    throw communication_error("mhla::distributed: " + failure_);
  }

  ncclComm_t comm_;
  cudaStream_t stream_;
  double timeout_;
  int rank_ = -1;
  int size_ = 0;
  std::string failure_;
  CudaStream transfers_;
  CudaEvent ready_;    // the stream of kernels has come to the last transfer
  CudaEvent settled_;  // the transfers of settle() are done
};

// ------------------------------------------------------------------------------------------------

inline NcclConnection::NcclConnection(ncclComm_t comm, cudaStream_t stream, double timeout)
    : comm_(comm), stream_(stream), timeout_(timeout) {
  check(ncclInProgress, "ncclCommInitRankConfig");
  check(ncclCommUserRank(comm_, &rank_), "ncclCommUserRank");
  check(ncclCommCount(comm_, &size_), "ncclCommCount");
  cudaStream_t transfers = nullptr;
  check(cudaStreamCreateWithFlags(&transfers, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  transfers_.reset(transfers);
  ready_ = new_event();
  settled_ = new_event();
}

inline NcclConnection::~NcclConnection() {
  try {
    settle();
    check(ncclCommFinalize(comm_), "ncclCommFinalize");
    ncclCommDestroy(comm_);
  } catch (const communication_error&) {  // aborted
  }
}

inline void NcclConnection::check(ncclResult_t result, const char* call) {
  const auto begin = Clock::now();
  while (result == ncclInProgress) {
    if (late(begin)) {
      fail(std::string(call) + " did not end within " + std::to_string(timeout_) + " s");
    }
    std::this_thread::yield();
    result = state();
  }
  if (result != ncclSuccess) fail(std::string(call) + " failed: " + ncclGetErrorString(result));
}

/// Returns the communicator's state. An error may come from any earlier call.
inline ncclResult_t NcclConnection::state() const {
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
  return asked == ncclSuccess ? result : asked;
}

inline CudaEvent NcclConnection::new_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return CudaEvent(event);
}

template <class Calls>
void NcclConnection::group(const Calls& calls) {
  expect_no_failure();
  check(ncclGroupStart(), "ncclGroupStart");
  ncclResult_t refusal = ncclSuccess;
  const char* refused = nullptr;
  calls([&](ncclResult_t result, const char* call) {
    if (refused != nullptr || result == ncclSuccess || result == ncclInProgress) return;
    refusal = result;
    refused = call;
  });
  const ncclResult_t end = ncclGroupEnd();  // in any case: a group is of the thread
  if (refused != nullptr) check(refusal, refused);
  check(end, "ncclGroupEnd");
}

template <class Calls>
CudaEvent NcclConnection::start(const Calls& calls) {
  expect_no_failure();
  CudaEvent done = new_event();
  record(ready_.get(), stream_);
  check(cudaStreamWaitEvent(transfers(), ready_.get(), 0), "cudaStreamWaitEvent");
  group(calls);
  record(done.get(), transfers());
  return done;
}

inline bool NcclConnection::passed(cudaEvent_t event) {
  expect_no_failure();
  const cudaError_t status = cudaEventQuery(event);
  status == cudaErrorNotReady ? forget() : check(status, "cudaEventQuery");
  check(state(), "a transfer");
  return status == cudaSuccess;
}

inline void NcclConnection::settle() {
  expect_no_failure();
  record(settled_.get(), transfers());
  std::optional<Clock::time_point> ready;
  while (!passed(settled_.get())) {
    if (!ready && passed(ready_.get())) ready = Clock::now();
    if (ready && late(*ready)) {
      fail("not all ranks have come within " + std::to_string(timeout_) + " s");
    }
    std::this_thread::yield();
  }
}

}  // namespace distributed::detail
}  // namespace MHLA_TARGET
}  // namespace mhla
