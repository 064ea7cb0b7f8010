#pragma once

/// \file
/// Gradients of the forms on a device: the definitions are gradient/bidirectional.hpp and
/// gradient/causal.hpp, the ways to compute them are in launch/gradient.cuh.
///
///     auto call = prepare_bidirectional_gradient<64, 64>(in, blocks, blocks, op, dout, gradients,
///                                                        device);
///     call.run(in, mixing, dout, gradients, workspace, stream, {}, {.out = out});
///
/// Features, dN = scale dO / den, summaries, mixtures and the gradients of features are rounded to
/// the type of the tensors, sums are float: cuda/README.md gives the bound. Bits are the same each
/// time. A token whose dO is all zero adds exactly 0 to every gradient. (D, E) is one of (64, 64),
/// (72, 72), (128, 128), (128, 256).

#include <cuda_runtime.h>

#include <type_traits>

#include "mhla/cuda/attention/fitting_plan.cuh"
#include "mhla/cuda/attention/gradient_inputs.cuh"
#include "mhla/cuda/attention/prepared.cuh"
#include "mhla/cuda/launch/gradient.cuh"

namespace mhla::cuda::detail {

/// Returns a plan. \throws option_error where a kernel of a product does not fit into the device's
/// shared memory.
inline GradientPlan fitting_gradient(const char* function, const GradientPlan& plan,
                                     const Device& device) {
  for (const Plan* product : {&plan.outputs, &plan.queries, &plan.keys, &plan.values}) {
    fitting(function, *product, device);
  }
  return plan;
}

}  // namespace mhla::cuda::detail

namespace mhla::cuda {
inline namespace MHLA_CUDA_ARCHS {

/// A prepared gradient. Its runs may be captured, and be in flight together; they are made one
/// after another, by any thread whose current device is the one it was prepared on.
/// \tparam R  NoRotary or Rotary
template <int D, int E, bool kCausal, DeviceScalar T, class R = NoRotary>
class PreparedGradient {
  static constexpr bool kRotary = std::is_same_v<R, Rotary>;
  static_assert(!kRotary || D != 72, "rotary embedding has kernels for D of 64 and 128");
  using Layout = GradientLayout<D, E, kCausal, kRotary>;

 public:
  /// Takes the arguments of prepare_bidirectional_gradient(). \param key_blocks  query_blocks where
  /// kCausal
  PreparedGradient(const Inputs<T>& in, const TokenBlocks& query_blocks,
                   const TokenBlocks& key_blocks, const Operator& op, TensorView<const T> dout,
                   const Gradients<T>& gradients, const Device& device, const R& rotary = {},
                   const Kept<T>& kept = {})
      : problem_(make(in, query_blocks, key_blocks, op, dout, gradients, rotary, kept)),
        device_(device),
        plan_(detail::fitting_gradient(kName, Layout(problem_, {}, nullptr, device).plan, device)) {
  }

  const GradientPlan& plan() const { return plan_; }

  /// Puts the computation of gradients into a stream, on the terms of bidirectional_gradient().
  /// \param in, dout, gradients, kept  of the shapes and strides that it was prepared for, anywhere
  ///                                   in memory
  void run(const Inputs<T>& in, MatrixView<const float> mixing, TensorView<const T> dout,
           const Gradients<T>& gradients, Workspace workspace, cudaStream_t stream,
           const R& rotary = {}, const Kept<T>& kept = {}) {
    const Problem& forward = problem_.forward;
    const GradientProblem problem = make(in, forward.query_blocks, forward.key_blocks, forward.op,
                                         dout, gradients, rotary, kept);
    detail::expect_gradient_data(kName, in, dout, gradients, kept);
    detail::expect_angles(kName, problem.forward);
    detail::expect_same_gradient(kName, problem, problem_);
    const MixingArray coefficients = detail::mixing_array(kName, mixing, problem.forward);
    unsigned char* const begin = detail::workspace_begin(kName, workspace, plan_.workspace_bytes);
    const Layout layout(problem, coefficients, begin, device_);
    const GradientRun<kernel_scalar_t<T>, D, E, kCausal, kRotary> kernels(layout);
    kernels(Stream(stream, device_.kernels(), known_));
    known_.ready = true;
  }

 private:
  static constexpr const char* kName =
      kCausal ? "cuda::causal_gradient" : "cuda::bidirectional_gradient";

  static GradientProblem make(const Inputs<T>& in, const TokenBlocks& query_blocks,
                              const TokenBlocks& key_blocks, const Operator& op,
                              TensorView<const T> dout, const Gradients<T>& gradients,
                              const R& rotary, const Kept<T>& kept) {
    GradientProblem problem = detail::make_gradient<D, E>(kName, in, query_blocks, key_blocks,
                                                          kCausal, op, dout, gradients, kept);
    detail::add_rotary(kName, rotary, D, problem.forward);
    return problem;
  }

  GradientProblem problem_;
  Device device_;
  GradientPlan plan_;
  Known known_;
};

/// Plans bidirectional_gradient() for tensors of these shapes and strides; their data is not read,
/// and may be null. \throws shape_error, option_error as bidirectional_gradient() does.
template <int D, int E, DeviceScalar T, class R = NoRotary>
PreparedGradient<D, E, false, T, R> prepare_bidirectional_gradient(
    const Inputs<T>& in, const TokenBlocks& query_blocks, const TokenBlocks& key_blocks,
    const Operator& op, std::type_identity_t<TensorView<const T>> dout,
    const std::type_identity_t<Gradients<T>>& gradients, const Device& device, const R& rotary = {},
    const std::type_identity_t<Kept<T>>& kept = {}) {
  return {in, query_blocks, key_blocks, op, dout, gradients, device, rotary, kept};
}

/// The same for causal_gradient().
template <int D, int E, DeviceScalar T, class R = NoRotary>
PreparedGradient<D, E, true, T, R> prepare_causal_gradient(
    const Inputs<T>& in, const TokenBlocks& blocks, const Operator& op,
    std::type_identity_t<TensorView<const T>> dout,
    const std::type_identity_t<Gradients<T>>& gradients, const Device& device, const R& rotary = {},
    const std::type_identity_t<Kept<T>>& kept = {}) {
  return {in, blocks, blocks, op, dout, gradients, device, rotary, kept};
}

/// Puts the gradients of bidirectional() into a stream: they are written, not added. All memory is
/// the device's, and may be freed or reused after what the stream holds then. Allocates nothing and
/// waits for nothing; the stream may be captured.
/// \param in, query_blocks, key_blocks, mixing, op, rotary  those of the forward
/// \param dout       [B, Nq, H, E], gradients of its outputs
/// \param gradients  what is wanted; it must not overlap the inputs
/// \param workspace  at least the plan's workspace_bytes, at a multiple of 256
/// \param device     current_device()
/// \param kept       the forward's outputs, where they are there: they are computed again otherwise
/// \throws shape_error, option_error for what does not fit, before anything is launched; cuda_error
///         if `device` is not the current one's, or CUDA refuses a launch.
template <int D, int E, DeviceScalar T, class R = NoRotary>
void bidirectional_gradient(const Inputs<T>& in, const TokenBlocks& query_blocks,
                            const TokenBlocks& key_blocks, MatrixView<const float> mixing,
                            const Operator& op, std::type_identity_t<TensorView<const T>> dout,
                            const std::type_identity_t<Gradients<T>>& gradients,
                            Workspace workspace, const Device& device, cudaStream_t stream,
                            const R& rotary = {}, const std::type_identity_t<Kept<T>>& kept = {}) {
  prepare_bidirectional_gradient<D, E>(in, query_blocks, key_blocks, op, dout, gradients, device,
                                       rotary, kept)
      .run(in, mixing, dout, gradients, workspace, stream, rotary, kept);
}

/// The same of causal(). The gradient of a mixing matrix that is larger than [M, M] is written in
/// the leading [M, M] alone, with 0 above the diagonal.
template <int D, int E, DeviceScalar T, class R = NoRotary>
void causal_gradient(const Inputs<T>& in, const TokenBlocks& blocks, MatrixView<const float> mixing,
                     const Operator& op, std::type_identity_t<TensorView<const T>> dout,
                     const std::type_identity_t<Gradients<T>>& gradients, Workspace workspace,
                     const Device& device, cudaStream_t stream, const R& rotary = {},
                     const std::type_identity_t<Kept<T>>& kept = {}) {
  prepare_causal_gradient<D, E>(in, blocks, op, dout, gradients, device, rotary, kept)
      .run(in, mixing, dout, gradients, workspace, stream, rotary, kept);
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda
