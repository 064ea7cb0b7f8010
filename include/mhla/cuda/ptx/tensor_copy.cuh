#pragma once

/// \file
/// Boxes of a tensor of five dimensions, to shared memory and from there by the copy engine. PTX
/// ISA: cp.async.bulk.tensor, prefetch.tensormap, sm_90. One thread starts a copy for all.
///
/// The tensor map (launch/tensor_map.cuh) fixes the tensor, the box and the swizzle. Rows of a box
/// lie one behind another. Where they have 128 bytes, the 16-byte piece j of row r lies in place
/// j ^ (r % 8), if the box begins at a multiple of 1024; others are as they are, and the box begins
/// at a multiple of 128. What a box has outside the tensor is read as zeros, and not written.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

/// What the driver's encoder fills; a kernel gets it as a __grid_constant__ parameter.
struct alignas(128) TensorMap {
  std::uint64_t opaque[16];
};

/// Where a box begins, innermost dimension first.
struct BoxOrigin {
  std::int32_t x[5];
};

}  // namespace mhla::cuda

namespace mhla::cuda::ptx {

/// A cache policy: what is copied with it leaves the second cache before what is copied without.
MHLA_DEVICE std::uint64_t createpolicy_evict_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Starts to load a box; its bytes, zeros too, are counted by the barrier.
MHLA_DEVICE void cp_async_bulk_tensor(std::uint32_t to, const TensorMap& map, const BoxOrigin& at,
                                      std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
      "l"(&map), "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]), "r"(barrier)
      : "memory");
}

/// The same with a cache policy.
MHLA_DEVICE void cp_async_bulk_tensor(std::uint32_t to, const TensorMap& map, const BoxOrigin& at,
                                      std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
      "l"(&map), "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]), "r"(barrier),
      "l"(policy)
      : "memory");
}

/// Starts to store a box, with a cache policy. What other threads wrote to it is seen after their
/// fence_proxy_async, and a barrier. The thread waits for it in groups.
MHLA_DEVICE void cp_async_bulk_tensor_store(const TensorMap& map, const BoxOrigin& at,
                                            std::uint32_t from, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group.L2::cache_hint "
      "[%0, {%1, %2, %3, %4, %5}], [%6], %7;" ::"l"(&map),
      "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]), "r"(from), "l"(policy)
      : "memory");
}

/// The same without a cache policy.
MHLA_DEVICE void cp_async_bulk_tensor_store(const TensorMap& map, const BoxOrigin& at,
                                            std::uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group "
      "[%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(&map),
      "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]), "r"(from)
      : "memory");
}

/// Makes a group of the boxes that the thread stores since the last group.
MHLA_DEVICE void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until at most kPending of the thread's latest groups are still read from shared memory.
template <int kPending>
MHLA_DEVICE void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Starts to load a tensor map for the copies after.
MHLA_DEVICE void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// The thread's own accesses to shared memory before come before what the copy engine and wgmma do
/// after; the fence, then a barrier.
MHLA_DEVICE void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace mhla::cuda::ptx
