#pragma once

/// \file
/// Aborts a grid. PTX ISA: trap. The next call of the runtime that waits reports a launch failure.

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

MHLA_DEVICE void trap() { asm volatile("trap;"); }

}  // namespace mhla::cuda::ptx
