#pragma once

/// \file
/// ptx/mbarrier.cuh in the emulator.

#include <cstdint>

namespace mhla::cuda::ptx {

void make_barrier(std::uint32_t barrier, std::uint32_t arrivals);
void publish_barriers();
void arrive(std::uint32_t barrier);
void arrive_and_expect(std::uint32_t barrier, std::uint32_t bytes);
void wait_for(std::uint32_t barrier, std::uint32_t parity);

}  // namespace mhla::cuda::ptx
