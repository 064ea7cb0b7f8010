// Compiles the host code with CUDA 12.1's version number. Newer functions are renamed, so that any
// use is an error.

#include <cuda_runtime.h>
#undef CUDART_VERSION
#define CUDART_VERSION 12010
#undef cudaGetDriverEntryPointByVersion
#define cudaGetDriverEntryPointByVersion since_cuda_12_5

#include "mhla/cuda/launch/tensor_map.cuh"
