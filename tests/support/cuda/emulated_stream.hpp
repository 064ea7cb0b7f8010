#pragma once

/// \file
/// A stream of the emulator.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "emulator/async_box.hpp"
#include "emulator/device.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/launch/stages.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"

namespace cuda_test {

/// Takes kernels as cuda::Stream does, and runs them at once.
class EmulatedStream {
 public:
  /// \param shared_bytes  shared memory per thread block of the device
  explicit EmulatedStream(
      emulator::Device& device,
      std::int32_t shared_bytes = mhla::cuda::shared_limit(mhla::cuda::Arch::kSm90a))
      : device_(device), shared_bytes_(shared_bytes) {}

  template <class Kernel>
  void run(const typename Kernel::Params& parameters, std::int32_t pairs,
           mhla::cuda::Start start = mhla::cuda::Start::kInOrder) const {
    EXPECT_LE(Kernel::kSharedBytes, shared_bytes_);
    const unsigned blocks = Kernel::grid(parameters, pairs);
    const bool early = start == mhla::cuda::Start::kEarly;
    reports_.push_back(device_.launch<Kernel>(blocks, parameters, early));
    early_launches_ += early ? 1 : 0;
  }
  mhla::cuda::TensorMap tensor_map(const mhla::cuda::TensorBox& box) const {
    return emulator::tensor_map(box);
  }
  const std::vector<emulator::Report>& reports() const { return reports_; }
  int early_launches() const { return early_launches_; }

 private:
  emulator::Device& device_;
  std::int32_t shared_bytes_;
  mutable std::vector<emulator::Report> reports_;
  mutable int early_launches_ = 0;
};

}  // namespace cuda_test
