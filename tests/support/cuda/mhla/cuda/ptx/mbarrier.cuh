#pragma once

/// \file
/// ptx/mbarrier.cuh in the emulator.

#include <cstdint>

namespace mhla::cuda::ptx {

void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals);
void fence_mbarrier_init();
void mbarrier_arrive(std::uint32_t barrier);
void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes);
void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity);

}  // namespace mhla::cuda::ptx
