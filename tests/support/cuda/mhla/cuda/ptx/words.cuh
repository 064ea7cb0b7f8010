#pragma once

/// \file
/// Groups of 32-bit registers with two 16-bit numbers each, the first in the low half.

#include <cstdint>

namespace mhla::cuda::ptx {

struct alignas(8) Words2 {
  std::uint32_t x[2];
};
struct alignas(16) Words4 {
  std::uint32_t x[4];
};

}  // namespace mhla::cuda::ptx
