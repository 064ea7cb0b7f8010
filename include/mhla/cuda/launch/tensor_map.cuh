#pragma once

/// \file
/// Tensor maps: descriptions of tensors for tensor copies of sm_90. The driver encodes them. Its
/// function is looked up by name, so that programs need not link the driver.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstring>
#include <string>

#include "mhla/cuda/launch/error.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"

namespace mhla::cuda {

namespace detail {

/// Looks up a function of the driver as of CUDA 12.0. Before 12.5 the runtime returns the version
/// that it was built with.
inline cudaError_t driver_function(const char* name, void** function,
                                   cudaDriverEntryPointQueryResult* found) {
#if CUDART_VERSION >= 12050
  return cudaGetDriverEntryPointByVersion(name, function, 12000, cudaEnableDefault, found);
#else
  return cudaGetDriverEntryPoint(name, function, cudaEnableDefault, found);
#endif
}

/// cuTensorMapEncodeTiled of the installed driver.
inline auto tensor_map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    expect_success(driver_function("cuTensorMapEncodeTiled", &function, &found),
                   "cudaGetDriverEntryPoint(cuTensorMapEncodeTiled)");
    if (found != cudaDriverEntryPointSuccess || function == nullptr) {
      throw cuda_error("mhla::cuda: the driver has no cuTensorMapEncodeTiled");
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encoder;
}

}  // namespace detail

/// Encodes the tensor map of a box, with the box's swizzle and zeros outside the tensor. Any 16-bit
/// type works, since numbers are only moved. The L2 promotion is 128 bytes. Promotion to 256 bytes
/// read up to a third more from memory than copies of 128 bytes per token asked for.
/// \throws cuda_error if the driver refuses it.
inline TensorMap encode(const TensorBox& box) {
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap), "a tensor map is 128 bytes");
  CUtensorMap map;
  cuuint64_t extent[5], stride[4];
  cuuint32_t size[5], step[5];
  for (int i = 0; i < 5; ++i) {
    extent[i] = box.extent[i];
    size[i] = box.box[i];
    step[i] = 1;
    if (i < 4) stride[i] = box.stride[i];
  }
  const CUresult status = detail::tensor_map_encoder()(
      &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 5, box.base, extent, stride, size, step,
      CU_TENSOR_MAP_INTERLEAVE_NONE,
      box.swizzled() ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw cuda_error("mhla::cuda: cuTensorMapEncodeTiled failed: CUresult " +
                     std::to_string(static_cast<int>(status)));
  }
  TensorMap result;
  std::memcpy(&result, &map, sizeof(result));
  return result;
}

}  // namespace mhla::cuda
