#pragma once

/// \file
/// A form that is called again and again on tensors of the same shapes and strides.
///
///     auto call = prepare_bidirectional<64, 64>(in, blocks, blocks, op, out, device);
///     ... call.plan().workspace_bytes of device memory ...
///     call.run(in, mixing, out, workspace, stream);       // each time
///
/// What depends on shapes alone is done once: the plan, what the program has for the device, the
/// shared memory of the kernels. What the copy engine is told about a tensor is encoded by the
/// driver again only where that has moved. A run costs the host its checks and the launches; the
/// functions bidirectional() and causal() are a preparation and a run.

#include <cuda_runtime.h>

#include <type_traits>

#include "mhla/cuda/attention/fitting_plan.cuh"
#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/rotary_inputs.cuh"
#include "mhla/cuda/attention/same_layout.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/map_cache.cuh"
#include "mhla/cuda/launch/stream.cuh"

namespace mhla::cuda {
inline namespace MHLA_CUDA_ARCHS {

/// A prepared form. Its runs may be captured, and be in flight together; they are made one after
/// another, by any thread whose current device is the one it was prepared on.
/// \tparam R  NoRotary or Rotary
template <int D, int E, bool kCausal, DeviceScalar T, class R = NoRotary>
class Prepared {
  static constexpr bool kRotary = std::is_same_v<R, Rotary>;
  static_assert(!kRotary || D != 72, "rotary embedding has kernels for D of 64 and 128");

 public:
  /// As prepare_bidirectional() and prepare_causal(). \param key_blocks  query_blocks where kCausal
  Prepared(const Inputs<T>& in, const TokenBlocks& query_blocks, const TokenBlocks& key_blocks,
           const Operator& op, TensorView<T> out, const Device& device, const R& rotary = {})
      : problem_(make_problem(in, query_blocks, key_blocks, op, out, rotary)),
        device_(device),
        plan_(detail::fitting(kName, cuda::plan<D, E>(problem_, device), device)) {}

  const Plan& plan() const { return plan_; }

  /// Puts the computation of `out` into a stream, on the terms of bidirectional() and causal().
  /// \param in, out  of the shapes and strides that it was prepared for, anywhere in memory
  /// \throws shape_error, option_error for what does not fit, before anything is launched;
  ///         cuda_error if CUDA refuses a launch, or what it was prepared for is not the device's.
  void run(const Inputs<T>& in, MatrixView<const float> mixing, TensorView<T> out,
           Workspace workspace, cudaStream_t stream, const R& rotary = {}) {
    const Problem problem =
        make_problem(in, problem_.query_blocks, problem_.key_blocks, problem_.op, out, rotary);
    detail::expect_data(kName, in, out);
    detail::expect_angles(kName, problem);
    detail::expect_same_layout(kName, problem, problem_);
    const MixingArray coefficients = detail::mixing_array(kName, mixing, problem);
    unsigned char* const begin = detail::workspace_begin(kName, workspace, plan_.workspace_bytes);
    mhla::cuda::run<kernel_scalar_t<T>, D, E, kCausal, kRotary>(
        plan_, problem, coefficients, begin, device_, Stream(stream, device_.kernels(), known_));
    known_.ready = true;
  }

 private:
  static constexpr const char* kName = kCausal ? "cuda::causal" : "cuda::bidirectional";

  static Problem make_problem(const Inputs<T>& in, const TokenBlocks& query_blocks,
                              const TokenBlocks& key_blocks, const Operator& op, TensorView<T> out,
                              const R& rotary) {
    Problem problem =
        detail::make_problem<D, E>(kName, in, query_blocks, key_blocks, kCausal, op, out);
    detail::add_rotary(kName, rotary, D, problem);
    return problem;
  }

  Problem problem_;
  Device device_;
  Plan plan_;
  Known known_;
};

/// Plans bidirectional() for tensors of these shapes and strides; their data is not read, and may
/// be null. \throws shape_error, option_error as bidirectional() does.
template <int D, int E, DeviceScalar T, class R = NoRotary>
Prepared<D, E, false, T, R> prepare_bidirectional(const Inputs<T>& in,
                                                  const TokenBlocks& query_blocks,
                                                  const TokenBlocks& key_blocks, const Operator& op,
                                                  std::type_identity_t<TensorView<T>> out,
                                                  const Device& device, const R& rotary = {}) {
  return {in, query_blocks, key_blocks, op, out, device, rotary};
}

/// The same for causal().
template <int D, int E, DeviceScalar T, class R = NoRotary>
Prepared<D, E, true, T, R> prepare_causal(const Inputs<T>& in, const TokenBlocks& blocks,
                                          const Operator& op,
                                          std::type_identity_t<TensorView<T>> out,
                                          const Device& device, const R& rotary = {}) {
  return {in, blocks, blocks, op, out, device, rotary};
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda
