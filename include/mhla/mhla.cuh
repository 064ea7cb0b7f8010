#pragma once

/// \file
/// Table of contents of the CUDA library, for sources that nvcc compiles: the forms on device
/// tensors. Single headers compile faster. What they stand on is in cuda/: ptx, tile, kernel,
/// launch.

#include "mhla/cuda/attention/bidirectional.cuh"
#include "mhla/cuda/attention/causal.cuh"
#include "mhla/cuda/attention/distributed.cuh"
#include "mhla/cuda/attention/gradient.cuh"
#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/prepared.cuh"
#include "mhla/cuda/attention/streaming.cuh"
