#pragma once

/// \file
/// Tensor copies: boxes of a five-dimensional tensor, to and from shared memory. PTX ISA:
/// cp.async.bulk.tensor, prefetch.tensormap, sm_90. One thread starts a copy.
///
/// The tensor map (launch/tensor_map.cuh) fixes the tensor, the box and the swizzle. Rows of a box
/// are contiguous. Rows of 128 bytes are swizzled: 16-byte piece j of row r is in place j ^ (r %
/// 8), and the box begins at a multiple of 1024. Other rows are not swizzled, and the box begins at
/// a multiple of 128. Parts of a box outside the tensor are read as zeros, and not written.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

/// Opaque map that the driver encodes. A kernel gets it as a __grid_constant__ parameter.
struct alignas(128) TensorMap {
  std::uint64_t opaque[16];
};

/// Coordinates of a box, innermost dimension first.
struct BoxOrigin {
  std::int32_t x[5];
};

}  // namespace mhla::cuda

namespace mhla::cuda::ptx {

/// Returns a cache policy: its data leaves L2 before data without the policy.
MHLA_DEVICE std::uint64_t createpolicy_evict_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Starts to load a box. The barrier counts its bytes, including zeros.
MHLA_DEVICE void cp_async_bulk_tensor(std::uint32_t to, const TensorMap& map, const BoxOrigin& at,
                                      std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
      "l"(&map), "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]), "r"(barrier)
      : "memory");
}

/// Starts to load a box with a cache policy.
MHLA_DEVICE void cp_async_bulk_tensor(std::uint32_t to, const TensorMap& map, const BoxOrigin& at,
                                      std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
      "l"(&map), "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]), "r"(barrier),
      "l"(policy)
      : "memory");
}

/// Starts to store a box with a cache policy. Writes of other threads are visible to it after their
/// fence_proxy_async and a barrier. The thread waits for stores in groups.
MHLA_DEVICE void cp_async_bulk_tensor_store(const TensorMap& map, const BoxOrigin& at,
                                            std::uint32_t from, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group.L2::cache_hint "
      "[%0, {%1, %2, %3, %4, %5}], [%6], %7;" ::"l"(&map),
      "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]), "r"(from), "l"(policy)
      : "memory");
}

/// Starts to store a box without a cache policy.
MHLA_DEVICE void cp_async_bulk_tensor_store(const TensorMap& map, const BoxOrigin& at,
                                            std::uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group "
      "[%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(&map),
      "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]), "r"(from)
      : "memory");
}

/// Makes a group of the boxes that the thread stores since its last group.
MHLA_DEVICE void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until at most kPending of the thread's groups still read shared memory.
template <int kPending>
MHLA_DEVICE void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Starts to load a tensor map for later copies.
MHLA_DEVICE void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Orders the thread's earlier accesses to shared memory before later accesses of tensor copies and
/// wgmma. A barrier follows the fence.
MHLA_DEVICE void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace mhla::cuda::ptx
