#pragma once

/// \file
/// Tangents of the forms on a device: outputs, and their derivative along directions of q, k, v and
/// the mixing matrix. This is forward mode, a Jacobian-vector product. tangent/bidirectional.hpp
/// defines tangents, and launch/tangent.cuh lists the kernels. A tangent is a sum of forms:
///
///     const Tangents<T> along{dq, dk, dv, {dm, M, M, M}};
///     const TangentPlan plan = bidirectional_tangent_plan<64, 64>(in, blocks, blocks, op, along,
///                                                                 out, tangent, device);
///     bidirectional_tangent<64, 64>(in, blocks, blocks, mixing, op, along, out, tangent,
///                                   workspace, device, stream);
///
/// Tangents take the feature maps of FeatureMap, key sums or no denominator, and all tokens. Causal
/// forms have no denominator. Other calls are refused. Outputs have the bits of the form.
///
/// Cost: the form, and for each direction another form and two passes over its tensors. Workspace:
/// tangents of features, an addend [B, Nq, H, E] per direction, and the workspace of one form.
/// Source: the product and the quotient rule on arXiv:2601.07832, eqs. (3) and (4).

#include <cuda_runtime.h>

#include <type_traits>

#include "mhla/cuda/attention/fitting_plan.cuh"
#include "mhla/cuda/attention/rotary_inputs.cuh"
#include "mhla/cuda/attention/tangent_inputs.cuh"
#include "mhla/cuda/launch/map_cache.cuh"
#include "mhla/cuda/launch/stream.cuh"
#include "mhla/cuda/launch/tangent.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda::detail {

/// One tangent call: its problem and its plan.
template <int D, int E, bool kCausal, DeviceScalar T, class R>
class TangentCall {
  static constexpr bool kRotary = std::is_same_v<R, Rotary>;
  static_assert(has_rotary_kernels<D, T, R>());
  static constexpr const char* kName =
      kCausal ? "cuda::causal_tangent" : "cuda::bidirectional_tangent";

 public:
  TangentCall(const Inputs<T>& in, const TokenBlocks& query_blocks, const TokenBlocks& key_blocks,
              const Operator& op, const Tangents<T>& tangents, TensorView<T> out,
              TensorView<T> tangent, const Device& device, const R& rotary)
      : problem_(make_tangent<D, E>(kName, in, query_blocks, key_blocks, kCausal, op, tangents, out,
                                    tangent)),
        device_(device) {
    add_rotary(kName, rotary, D, problem_.forward);
    plan_ = tangent_plan<D, E>(problem_, device);
    fitting(kName, plan_.outputs, device);
    for (const Along along : kDirections) {
      if (problem_.wants_along(along)) fitting(kName, plan_.parts[static_cast<int>(along)], device);
    }
  }

  const TangentPlan& plan() const { return plan_; }

  void run(const Inputs<T>& in, const MixingMatrices<const float>& mixing,
           const Tangents<T>& tangents, TensorView<T> out, TensorView<T> tangent,
           Workspace workspace, cudaStream_t stream) {
    expect_tangent_data(kName, in, tangents, out, tangent);
    expect_angles(kName, problem_.forward);
    const MixingArray coefficients = mixing_array(kName, mixing, problem_.forward);
    if (problem_.wants_along(Along::kMixing)) {
      problem_.mixing = mixing_array(kName, tangents.mixing, problem_.forward, "tangents.mixing");
    }
    unsigned char* const begin = workspace_begin(kName, workspace, plan_.workspace_bytes);
    LaunchCache cache;
    cache.begin(coefficients);
    run_tangent<kernel_scalar_t<T>, D, E, kCausal, kRotary>(
        plan_, problem_, coefficients, begin, device_, Stream(stream, device_.kernels(), cache));
  }

 private:
  TangentProblem problem_;
  Device device_;
  TangentPlan plan_;
};

}  // namespace mhla::cuda::detail

namespace mhla::cuda {
inline namespace MHLA_CUDA_ARCHS {

/// Plans bidirectional_tangent() for these arguments. The tensors' data is not read.
/// \throws shape_error, option_error as bidirectional_tangent() does.
template <int D, int E, DeviceScalar T, class R = NoRotary>
TangentPlan bidirectional_tangent_plan(const Inputs<T>& in, const TokenBlocks& query_blocks,
                                       const TokenBlocks& key_blocks, const Operator& op,
                                       const std::type_identity_t<Tangents<T>>& tangents,
                                       std::type_identity_t<TensorView<T>> out,
                                       std::type_identity_t<TensorView<T>> tangent,
                                       const Device& device, const R& rotary = {}) {
  return detail::TangentCall<D, E, false, T, R>(in, query_blocks, key_blocks, op, tangents, out,
                                                tangent, device, rotary)
      .plan();
}

/// Enqueues the computation of the outputs of bidirectional() and of their tangent into a stream.
/// The function allocates nothing on the device and does not wait, and the stream may be captured.
/// All memory is device memory, and may be freed or reused after this work in stream order.
/// \param in, query_blocks, key_blocks, mixing, op, rotary  Arguments of the forward call.
/// \param tangents   Directions.
/// \param out        [B, Nq, H, E], outputs; they must not overlap other arguments.
/// \param tangent    [B, Nq, H, E], derivative of the outputs along the directions.
/// \param workspace  At least the plan's workspace_bytes, aligned to 256 bytes.
/// \param device     `current_device()`.
/// \throws shape_error, option_error for arguments that do not fit, before any launch; cuda_error
///         if the program has no code of `device` for the current device, or CUDA refuses a launch.
template <int D, int E, DeviceScalar T, class R = NoRotary>
void bidirectional_tangent(const Inputs<T>& in, const TokenBlocks& query_blocks,
                           const TokenBlocks& key_blocks, const MixingMatrices<const float>& mixing,
                           const Operator& op, const std::type_identity_t<Tangents<T>>& tangents,
                           std::type_identity_t<TensorView<T>> out,
                           std::type_identity_t<TensorView<T>> tangent, Workspace workspace,
                           const Device& device, cudaStream_t stream, const R& rotary = {}) {
  detail::TangentCall<D, E, false, T, R>(in, query_blocks, key_blocks, op, tangents, out, tangent,
                                         device, rotary)
      .run(in, mixing, tangents, out, tangent, workspace, stream);
}

/// Plans causal_tangent() for these arguments.
template <int D, int E, DeviceScalar T, class R = NoRotary>
TangentPlan causal_tangent_plan(const Inputs<T>& in, const TokenBlocks& blocks, const Operator& op,
                                const std::type_identity_t<Tangents<T>>& tangents,
                                std::type_identity_t<TensorView<T>> out,
                                std::type_identity_t<TensorView<T>> tangent, const Device& device,
                                const R& rotary = {}) {
  return detail::TangentCall<D, E, true, T, R>(in, blocks, blocks, op, tangents, out, tangent,
                                               device, rotary)
      .plan();
}

/// Enqueues the outputs of causal() and their tangent into a stream.
template <int D, int E, DeviceScalar T, class R = NoRotary>
void causal_tangent(const Inputs<T>& in, const TokenBlocks& blocks,
                    const MixingMatrices<const float>& mixing, const Operator& op,
                    const std::type_identity_t<Tangents<T>>& tangents,
                    std::type_identity_t<TensorView<T>> out,
                    std::type_identity_t<TensorView<T>> tangent, Workspace workspace,
                    const Device& device, cudaStream_t stream, const R& rotary = {}) {
  detail::TangentCall<D, E, true, T, R>(in, blocks, blocks, op, tangents, out, tangent, device,
                                        rotary)
      .run(in, mixing, tangents, out, tangent, workspace, stream);
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda
