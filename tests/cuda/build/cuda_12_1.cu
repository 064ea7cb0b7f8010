// What CUDA 12.1 does not have, the host code does not need there: with the newest headers, of
// which what is newer cannot be used.

#include <cuda_runtime.h>
#undef CUDART_VERSION
#define CUDART_VERSION 12010
#undef cudaGetDriverEntryPointByVersion
#define cudaGetDriverEntryPointByVersion since_cuda_12_5

#include "mhla/cuda/launch/tensor_map.cuh"
