#pragma once

/// \file
/// A simulated CUDA runtime and NCCL. Each thread has a device, whose memory is host memory and
/// whose streams are threads (cuda_stand_in.cpp). Transfers move data between the threads of a
/// process (nccl_stand_in.cpp). An action that would make NCCL or CUDA hang or read wrong data is a
/// breach.

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stand_in {

/// Communicators of all ranks.
/// \param blocking  if false, calls are asynchronous until their state has been queried
std::vector<ncclComm_t> communicators(int ranks, bool blocking);
/// Sets the answer of ncclCommGetAsyncError.
void fail(ncclComm_t comm, ncclResult_t error);

/// Launches a kernel: `work` is called when the stream reaches it.
void launch(cudaStream_t stream, std::function<void()> work);

/// Makes the next cudaMalloc fail.
void fail_next_allocation();

/// Returns and forgets all breaches; there must be none.
std::vector<std::string> breaches();
void add_breach(const std::string& what);
/// Number of live streams, events, arrays and communicators.
int live();
void count(int change);
/// True if bytes lie in an array of cudaMalloc, or host arrays count as such.
bool in_device(const void* begin, std::size_t bytes);
void take_arrays_of_the_host(bool take);

/// memmove that allows null pointers with 0 bytes.
inline void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

}  // namespace stand_in
