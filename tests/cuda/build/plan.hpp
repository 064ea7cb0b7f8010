#pragma once

/// \file
/// What a kernel plans with, and what a multiprocessor has for it.

#include <algorithm>
#include <cstdint>

namespace mhla::cuda::build {

/// Instructions that a kernel is made of. It has those it names and no other ones of the list.
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
  int blocks;  ///< of a multiprocessor
  int registers;
  int shared_bytes;
  int needs;
  int fences;  ///< fence.proxy.async in the code, at least
};

/// Registers a thread may have so that `blocks` blocks fit: 65536 in units of 8 a thread, at most
/// 255.
constexpr int register_limit(int threads, int blocks) {
  return std::min(65536 / (threads * blocks) / 8 * 8, 255);
}

/// Shared memory in bytes: what a block may have, and what all of a multiprocessor's have together,
/// where each takes 1024 more.
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
