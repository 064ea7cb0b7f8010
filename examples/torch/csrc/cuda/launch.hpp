#pragma once

/// \file
/// Where calls run on CUDA: the device of their tensors, and PyTorch's stream and memory there.

#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/launch/error.cuh>
#include <optional>
#include <stdexcept>
#include <string>

namespace mhla_torch {

/// Device, stream and memory of a call. The device is the current one during the object's lifetime.
/// Memory may be freed right after a launch, because the allocator reuses it in the same stream
/// only.
class CudaPlace {
 public:
  using Tensor = torch::stable::Tensor;

  static bool takes(const Tensor& t) { return t.is_cuda(); }

  /// \param like  tensor on the device
  explicit CudaPlace(const Tensor& like) : like_(like), guard_(like.get_device_index()) {
    // The guard sets the device of PyTorch's runtime. This library links a runtime of its own.
    mhla::cuda::expect_success(cudaSetDevice(device()), "cudaSetDevice");
    if (aoti_torch_get_current_cuda_stream(device(), &stream_) != AOTI_TORCH_SUCCESS) {
      throw std::runtime_error("mhla: PyTorch has no current stream of cuda:" +
                               std::to_string(device()));
    }
  }

  std::int32_t device() const { return like_.get_device_index(); }
  void* stream() const { return stream_; }  ///< a cudaStream_t

  /// Returns memory that lives as long as this object, or until the next call.
  mhla::Workspace workspace(std::size_t bytes) {
    workspace_ = torch::stable::new_empty(like_, {static_cast<mhla::Index>(bytes)},
                                          torch::headeronly::ScalarType::Byte);
    return {static_cast<std::byte*>(workspace_->mutable_data_ptr()), bytes};
  }

 private:
  Tensor like_;
  torch::stable::accelerator::DeviceGuard guard_;
  void* stream_ = nullptr;
  std::optional<Tensor> workspace_;
};

}  // namespace mhla_torch
