#pragma once

/// \file
/// ptx/tensor_copy.cuh in the emulator.

#include <cstdint>

namespace mhla::cuda {

struct alignas(128) TensorMap {
  std::uint64_t opaque[16];
};
struct BoxOrigin {
  std::int32_t x[5];
};

}  // namespace mhla::cuda

namespace emulator {

void wait_stores_read(int pending);

}  // namespace emulator

namespace mhla::cuda::ptx {

void load_box(std::uint32_t to, const TensorMap& map, const BoxOrigin& at, std::uint32_t barrier);
void store_box(const TensorMap& map, const BoxOrigin& at, std::uint32_t from);
void commit_stores();
template <int kPending>
void wait_stores_read() {
  static_assert(kPending >= 0);
  emulator::wait_stores_read(kPending);
}
void prefetch_map(const TensorMap& map);
void fence_async();

}  // namespace mhla::cuda::ptx
