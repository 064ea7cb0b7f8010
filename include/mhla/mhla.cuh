#pragma once

/// \file
/// Table of contents of the CUDA library, for sources that nvcc compiles: the forms on device
/// tensors. Single headers compile faster. The headers of cuda/{ptx,tile,kernel,launch} are parts
/// of the forms.

#include "mhla/cuda/attention/bidirectional.cuh"
#include "mhla/cuda/attention/causal.cuh"
#include "mhla/cuda/attention/distributed.cuh"
#include "mhla/cuda/attention/gradient.cuh"
#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/mixing_inputs.cuh"
#include "mhla/cuda/attention/most_blocks.cuh"
#include "mhla/cuda/attention/pattern.cuh"
#include "mhla/cuda/attention/prepared.cuh"
#include "mhla/cuda/attention/streaming.cuh"
#include "mhla/cuda/attention/tangent.cuh"
