#pragma once

/// \file
/// ptx/index.cuh in the emulator.

#include <cstdint>

namespace mhla::cuda::ptx {

std::uint32_t tid_x();
std::uint32_t ctaid_x();
std::uint32_t nctaid_x();

}  // namespace mhla::cuda::ptx
