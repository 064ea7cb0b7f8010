#pragma once

/// \file
/// The plan of a kernel, and the resources of a multiprocessor.

#include <algorithm>
#include <cstdint>

namespace mhla::cuda::build {

/// Instructions of a kernel. A kernel has all instructions that it names, and no others of this
/// list.
enum Needs : int {
  kMma = 1,             ///< mma.sync
  kWgmma = 2,           ///< wgmma
  kMatrices = 4,        ///< ldmatrix
  kCopies = 8,          ///< cp.async
  kTensorLoads = 16,    ///< cp.async.bulk.tensor to shared memory, counted by mbarriers
  kWaits = 32,          ///< griddepcontrol.wait; not on sm_80
  kLaunches = 64,       ///< griddepcontrol.launch_dependents; not on sm_80
  kTensorStores = 128,  ///< cp.async.bulk.tensor from shared memory, in groups
  kHints = 256,         ///< cache policies of tensor copies
};

/// The last template arguments of an entry function, in their order.
struct Plan {
  int threads;
  int blocks;  ///< per multiprocessor
  int registers;
  int shared_bytes;
  int needs;
  int fences;  ///< least number of fence.proxy.async in the code
};

/// Most registers per thread that let `blocks` blocks fit: 65536 in units of 8 per thread, at most
/// 255.
constexpr int register_limit(int threads, int blocks) {
  return std::min(65536 / (threads * blocks) / 8 * 8, 255);
}

/// Shared memory in bytes: the limit of a block, and of all blocks of a multiprocessor, each of
/// which takes 1024 bytes more.
struct SharedMemory {
  int block;
  int multiprocessor;
};
constexpr SharedMemory shared_memory(int arch) {
  switch (arch) {
    case 80:
      return {166912, 167936};
    case 90:
    case 100:
      return {232448, 233472};
    default:  // 86, 89, 120
      return {101376, 102400};
  }
}

}  // namespace mhla::cuda::build
