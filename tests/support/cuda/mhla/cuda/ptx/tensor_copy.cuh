#pragma once

/// \file
/// ptx/tensor_copy.cuh in the emulator.

#include <cstdint>

#include "emulator/accesses.hpp"

namespace mhla::cuda {

struct alignas(128) TensorMap {
  std::uint64_t opaque[16];
};
struct BoxOrigin {
  std::int32_t x[5];
};

}  // namespace mhla::cuda

namespace mhla::cuda::ptx {

std::uint64_t createpolicy_evict_first();
void cp_async_bulk_tensor(std::uint32_t to, const TensorMap& map, const BoxOrigin& at,
                          std::uint32_t barrier);
void cp_async_bulk_tensor(std::uint32_t to, const TensorMap& map, const BoxOrigin& at,
                          std::uint32_t barrier, std::uint64_t policy);
void cp_async_bulk_tensor_store(const TensorMap& map, const BoxOrigin& at, std::uint32_t from,
                                std::uint64_t policy);
void cp_async_bulk_tensor_store(const TensorMap& map, const BoxOrigin& at, std::uint32_t from);
void cp_async_bulk_commit_group();
template <int kPending>
void cp_async_bulk_wait_group_read() {
  emulator::cp_async_bulk_wait_group_read(kPending);
}
void prefetch_tensormap(const TensorMap& map);
void fence_proxy_async();

}  // namespace mhla::cuda::ptx
