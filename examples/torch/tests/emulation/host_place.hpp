#pragma once

/// \file
/// Where emulated calls run: memory of PyTorch's CPU, without a stream (csrc/cuda/launch.hpp).

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <mhla/core/workspace.hpp>
#include <optional>

namespace mhla_torch {

class HostPlace {
 public:
  using Tensor = torch::stable::Tensor;

  static bool takes(const Tensor& t) { return t.is_cpu(); }

  explicit HostPlace(const Tensor& like) : like_(like) {}

  std::int32_t device() const { return 0; }
  void* stream() const { return nullptr; }

  /// Returns memory at a multiple of 256 bytes, full of 0xff.
  mhla::Workspace workspace(std::size_t bytes) {
    workspace_ = torch::stable::new_empty(like_, {static_cast<mhla::Index>(bytes) + 256},
                                          torch::headeronly::ScalarType::Byte);
    torch::stable::fill_(*workspace_, 255);
    const auto begin = reinterpret_cast<std::uintptr_t>(workspace_->mutable_data_ptr());
    return {reinterpret_cast<std::byte*>((begin + 255) / 256 * 256), bytes};
  }

 private:
  Tensor like_;
  std::optional<Tensor> workspace_;
};

}  // namespace mhla_torch
