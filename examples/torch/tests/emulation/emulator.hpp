#pragma once

/// \file
/// A stream of the library whose kernels run in the emulator at once, on memory of PyTorch's CPU.

#include <cstddef>
#include <cstdint>
#include <mhla/core/matrix.hpp>
#include <mhla/core/tensor.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/attention/inputs.cuh>
#include <mhla/cuda/attention/mixing_inputs.cuh>
#include <mhla/cuda/kernel/pattern_bits.cuh>
#include <mhla/cuda/launch/problem.cuh>
#include <mhla/cuda/launch/stages.cuh>
#include <set>
#include <span>
#include <string>

#include "emulator/async_box.hpp"
#include "emulator/device.hpp"

namespace mhla_torch {

/// Device and stream. Kernels may access tracked memory alone. Absent arguments are not tracked.
class Emulation {
 public:
  /// The device that calls are planned for.
  static constexpr mhla::cuda::Device kTarget{mhla::cuda::Arch::kSm80, 2};

  /// \param bytes  of an element of the call's tensors
  explicit Emulation(mhla::Index bytes) : bytes_(bytes) {}

  /// Lets kernels access elements.
  template <class Byte>
  void track(const char* name, const mhla::TensorView<Byte>& x) {
    if (x.data == nullptr) return;
    mhla::Index last = 0, count = 1;
    for (std::size_t axis = 0; axis < 4; ++axis) {
      last += (x.shape[axis] - 1) * x.strides[axis];
      count *= x.shape[axis];
    }
    if (count > 0) track(name, x.data, bytes_ * (last + 1));
  }
  template <class A>
  void track(const char* name, std::span<A> x) {
    track(name, x.data(), static_cast<mhla::Index>(x.size_bytes()));
  }
  template <class A>
  void track(const char* name, const mhla::MatrixView<A>& x) {
    if (x.rows > 0) track(name, x.data, 4 * ((x.rows - 1) * x.row_stride + x.cols));
  }
  /// Lets kernels access the matrices of the items and heads of q.
  template <class A, class Byte>
  void track(const char* name, const mhla::cuda::MixingMatrices<A>& x,
             const mhla::TensorView<Byte>& q) {
    if (x.rows == 0 || q.batch() == 0 || q.heads() == 0) return;
    const mhla::Index first = (q.batch() - 1) * x.item_stride + (q.heads() - 1) * x.head_stride;
    track(name, x.data, 4 * (first + (x.rows - 1) * x.row_stride + x.cols));
    if (x.pattern == nullptr) return;
    const mhla::cuda::PatternBits bits{static_cast<std::int32_t>(x.rows),
                                       static_cast<std::int32_t>(x.cols)};
    track("pattern", x.pattern, 4 * bits.size());
  }
  void track(const char* name, const mhla::BatchMask& x) {
    if (x.rows == 0 || x.cols == 0) return;
    track(name, x.keep, (x.rows - 1) * x.row_stride + (x.cols - 1) * x.col_stride + 1);
  }
  unsigned char* track(const char* name, mhla::Workspace memory) {
    track(name, memory.data(), static_cast<mhla::Index>(memory.size()));
    return reinterpret_cast<unsigned char*>(memory.data());
  }

  // The interface of mhla::cuda::Stream.
  template <class Kernel>
  void run(const typename Kernel::Params& parameters, std::int32_t pairs,
           mhla::cuda::Start start = mhla::cuda::Start::kInOrder) const {
    device_.launch<Kernel>(Kernel::grid(parameters, pairs), parameters,
                           start == mhla::cuda::Start::kEarly);
  }
  mhla::cuda::TensorMap tensor_map(const mhla::cuda::TensorBox& box) const {
    return emulator::tensor_map(box);
  }

 private:
  void track(const char* name, const void* begin, mhla::Index bytes) {
    if (bytes <= 0 || !tracked_.insert(begin).second) return;
    device_.track(name, begin, static_cast<std::size_t>((bytes + 3) / 4 * 4),
                  emulator::Access::kReadWrite);
  }

  mhla::Index bytes_;
  mutable emulator::Device device_{1};
  std::set<const void*> tracked_;
};

}  // namespace mhla_torch
