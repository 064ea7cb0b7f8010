#pragma once

/// \file
/// A CUDA runtime and an NCCL that stand in for the real ones: a device a thread, its memory the
/// host's, its streams threads (cuda_stand_in.cpp). Transfers move data between the threads of a
/// process (nccl_stand_in.cpp); what NCCL or CUDA would hang on or read wrongly is a breach.

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
/// \param blocking  otherwise calls go on by themselves, until their state has been asked for
std::vector<ncclComm_t> communicators(int ranks, bool blocking);
/// What ncclCommGetAsyncError says from now on.
void fail(ncclComm_t comm, ncclResult_t error);

/// A kernel: `work` is called when the stream has come to it.
void launch(cudaStream_t stream, std::function<void()> work);

/// There is no memory for the next cudaMalloc.
void fail_next_allocation();

/// What breaks the rules, of which there must be nothing; forgets it.
std::vector<std::string> breaches();
void add_breach(const std::string& what);
/// Streams, events, arrays and communicators that are there.
int live();
void count(int change);
/// Whether bytes lie in an array of cudaMalloc, or the host's arrays count as such.
bool in_device(const void* begin, std::size_t bytes);
void take_arrays_of_the_host(bool take);

/// memmove, also of nothing from nowhere.
inline void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

}  // namespace stand_in
