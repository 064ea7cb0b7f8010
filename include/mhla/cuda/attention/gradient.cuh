#pragma once

/// \file
/// Gradients of the forms on a device. gradient/bidirectional.hpp and gradient/causal.hpp define
/// them, and launch/gradient_run.cuh lists the ways to compute them.
///
///     auto call = prepare_bidirectional_gradient<64, 64>(in, blocks, blocks, op, dout, gradients,
///                                                        device);
///     call.run(in, mixing, dout, gradients, workspace, stream, {}, {.out = out});
///
/// Factors are rounded to the tensors' type: features, dN = scale dO / den, summaries, mixtures and
/// gradients of features. Sums are float. cuda/README.md gives the error bound. Bits are the same
/// in every run. A token whose dO is all zero adds exactly 0 to every gradient. kernel/widths.cuh
/// lists the pairs (D, E).

#include <cuda_runtime.h>

#include <type_traits>

#include "mhla/cuda/attention/fitting_plan.cuh"
#include "mhla/cuda/attention/gradient_inputs.cuh"
#include "mhla/cuda/attention/mixing_inputs.cuh"
#include "mhla/cuda/attention/prepared.cuh"
#include "mhla/cuda/launch/gradient.cuh"

namespace mhla::cuda::detail {

/// Returns the plan if its kernels fit.
/// \throws option_error where a kernel of a product does not fit into the device's shared memory.
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

/// A prepared gradient. Runs may be captured and may be in flight together. Calls of run() must not
/// overlap, but any thread may make them if its current device is the one of the preparation.
/// \tparam R  NoRotary or Rotary
/// \tparam O  Operator, or MappedOperator of maps with derivatives
template <int D, int E, bool kCausal, DeviceScalar T, class R = NoRotary, AnyOperator O = Operator>
class PreparedGradient {
  static constexpr bool kRotary = std::is_same_v<R, Rotary>;
  static_assert(detail::has_rotary_kernels<D, T, R>());
  template <class M>
  static constexpr bool kHasDerivative =
      std::is_same_v<M, FeatureMap> || DifferentiableElementwiseMap<M>;
  static_assert(kHasDerivative<decltype(O::query_map)> && kHasDerivative<decltype(O::key_map)>,
                "gradients need float derivative(float) const of a feature map of one's own");

 public:
  /// Takes the arguments of prepare_bidirectional_gradient().
  /// \param key_blocks  equal to query_blocks if kCausal
  PreparedGradient(const Inputs<T>& in, const TokenBlocks& query_blocks,
                   const TokenBlocks& key_blocks, const O& op, TensorView<const T> dout,
                   const Gradients<T>& gradients, const Device& device, const R& rotary = {},
                   const Kept<T>& kept = {})
      : op_(op),
        problem_(make(in, query_blocks, key_blocks, op, dout, gradients, rotary, kept)),
        device_(device),
        plan_(detail::fitting_gradient(
            kName, gradient_plan<D, E, kCausal, kRotary>(problem_, device), device)) {}

  const GradientPlan& plan() const { return plan_; }

  /// Enqueues the computation of gradients into a stream, as bidirectional_gradient() does.
  /// \param in, dout, gradients, kept  Shapes and strides of the preparation, at any addresses.
  void run(const Inputs<T>& in, const MixingMatrices<const float>& mixing, TensorView<const T> dout,
           const Gradients<T>& gradients, Workspace workspace, cudaStream_t stream,
           const R& rotary = {}, const Kept<T>& kept = {}) {
    const Problem& forward = problem_.forward;
    const GradientProblem problem =
        make(in, forward.callers_query_blocks(), forward.callers_key_blocks(), op_, dout, gradients,
             rotary, kept);
    detail::expect_same_gradient(kName, problem, problem_);
    launch(problem, in, mixing, dout, gradients, workspace, stream, kept);
  }
  /// The same for the very tensors that it was prepared with.
  void run_prepared(const Inputs<T>& in, const MixingMatrices<const float>& mixing,
                    TensorView<const T> dout, const Gradients<T>& gradients, Workspace workspace,
                    cudaStream_t stream, const Kept<T>& kept) {
    launch(problem_, in, mixing, dout, gradients, workspace, stream, kept);
  }

 private:
  static constexpr const char* kName =
      kCausal ? "cuda::causal_gradient" : "cuda::bidirectional_gradient";

  static GradientProblem make(const Inputs<T>& in, const TokenBlocks& query_blocks,
                              const TokenBlocks& key_blocks, const O& op, TensorView<const T> dout,
                              const Gradients<T>& gradients, const R& rotary, const Kept<T>& kept) {
    GradientProblem problem = detail::make_gradient<D, E>(kName, in, query_blocks, key_blocks,
                                                          kCausal, op, dout, gradients, kept);
    detail::add_rotary(kName, rotary, D, problem.forward);
    return problem;
  }

  /// \param problem  that of the tensors
  void launch(const GradientProblem& problem, const Inputs<T>& in,
              const MixingMatrices<const float>& mixing, TensorView<const T> dout,
              const Gradients<T>& gradients, Workspace workspace, cudaStream_t stream,
              const Kept<T>& kept) {
    detail::expect_gradient_data(kName, in, dout, gradients, kept);
    detail::expect_angles(kName, problem.forward);
    const MixingArray coefficients = detail::mixing_array(kName, mixing, problem.forward);
    unsigned char* const begin = detail::workspace_begin(kName, workspace, plan_.workspace_bytes);
    cache_.begin(coefficients);
    run_gradient<kernel_scalar_t<T>, D, E, kCausal, kRotary>(
        plan_, problem, coefficients, begin, device_, Stream(stream, device_.kernels(), cache_),
        op_);
    cache_.ready = true;
  }

  O op_;
  GradientProblem problem_;
  Device device_;
  GradientPlan plan_;
  LaunchCache cache_;
};

/// Plans bidirectional_gradient() for tensors of these shapes and strides. Their data is not read,
/// and may be null.
/// \throws shape_error, option_error as bidirectional_gradient() does.
template <int D, int E, DeviceScalar T, class R = NoRotary, AnyOperator O = Operator>
PreparedGradient<D, E, false, T, R, O> prepare_bidirectional_gradient(
    const Inputs<T>& in, const TokenBlocks& query_blocks, const TokenBlocks& key_blocks,
    const O& op, std::type_identity_t<TensorView<const T>> dout,
    const std::type_identity_t<Gradients<T>>& gradients, const Device& device, const R& rotary = {},
    const std::type_identity_t<Kept<T>>& kept = {}) {
  return {in, query_blocks, key_blocks, op, dout, gradients, device, rotary, kept};
}

/// Plans causal_gradient() for tensors of these shapes and strides.
template <int D, int E, DeviceScalar T, class R = NoRotary, AnyOperator O = Operator>
PreparedGradient<D, E, true, T, R, O> prepare_causal_gradient(
    const Inputs<T>& in, const TokenBlocks& blocks, const O& op,
    std::type_identity_t<TensorView<const T>> dout,
    const std::type_identity_t<Gradients<T>>& gradients, const Device& device, const R& rotary = {},
    const std::type_identity_t<Kept<T>>& kept = {}) {
  return {in, blocks, blocks, op, dout, gradients, device, rotary, kept};
}

/// Enqueues the gradients of bidirectional() into a stream. Gradients are written, not added to
/// earlier contents. The function allocates nothing and does not wait, and the stream may be
/// captured. All memory is device memory, and may be freed or reused after this work in stream
/// order.
/// \param in, query_blocks, key_blocks, mixing, op, rotary  Arguments of the forward call.
/// \param dout       [B, Nq, H, E], gradients of its outputs.
/// \param gradients  Wanted gradients; they must not overlap the inputs.
/// \param workspace  At least the plan's workspace_bytes, aligned to 256 bytes.
/// \param device     `current_device()`.
/// \param kept       The forward's outputs; absent outputs are computed again.
/// \throws shape_error, option_error for arguments that do not fit, before any launch; cuda_error
///         if the program has no code of `device` for the current device, or CUDA refuses a launch.
template <int D, int E, DeviceScalar T, class R = NoRotary, AnyOperator O = Operator>
void bidirectional_gradient(const Inputs<T>& in, const TokenBlocks& query_blocks,
                            const TokenBlocks& key_blocks,
                            const MixingMatrices<const float>& mixing, const O& op,
                            std::type_identity_t<TensorView<const T>> dout,
                            const std::type_identity_t<Gradients<T>>& gradients,
                            Workspace workspace, const Device& device, cudaStream_t stream,
                            const R& rotary = {}, const std::type_identity_t<Kept<T>>& kept = {}) {
  prepare_bidirectional_gradient<D, E>(in, query_blocks, key_blocks, op, dout, gradients, device,
                                       rotary, kept)
      .run_prepared(in, mixing, dout, gradients, workspace, stream, kept);
}

/// Enqueues the gradients of causal() into a stream. The gradient of a mixing matrix larger than
/// [M, M] is written in the leading [M, M] alone, with 0 above the diagonal.
template <int D, int E, DeviceScalar T, class R = NoRotary, AnyOperator O = Operator>
void causal_gradient(const Inputs<T>& in, const TokenBlocks& blocks,
                     const MixingMatrices<const float>& mixing, const O& op,
                     std::type_identity_t<TensorView<const T>> dout,
                     const std::type_identity_t<Gradients<T>>& gradients, Workspace workspace,
                     const Device& device, cudaStream_t stream, const R& rotary = {},
                     const std::type_identity_t<Kept<T>>& kept = {}) {
  prepare_causal_gradient<D, E>(in, blocks, op, dout, gradients, device, rotary, kept)
      .run_prepared(in, mixing, dout, gradients, workspace, stream, kept);
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda
