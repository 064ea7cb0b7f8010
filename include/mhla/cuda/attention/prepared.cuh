#pragma once

/// \file
/// A form that is called repeatedly on tensors of the same shapes and strides.
///
///     auto call = prepare_bidirectional<64, 64>(in, blocks, blocks, op, out, device);
///     ... call.plan().workspace_bytes of device memory ...
///     call.run(in, mixing, out, workspace, stream);       // each time
///
/// The constructor plans, without a call of CUDA. The first run chooses the machine code and sets
/// the shared memory limits of kernels. A run that has a pattern where the last had none, or the
/// reverse, does so again. A run checks its arguments and launches. The driver encodes a tensor map
/// again only if its tensor has moved. bidirectional() and causal() are a preparation and a run.

#include <cuda_runtime.h>

#include <type_traits>

#include "mhla/cuda/attention/fitting_plan.cuh"
#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/make_problem.cuh"
#include "mhla/cuda/attention/mixing_inputs.cuh"
#include "mhla/cuda/attention/rotary_inputs.cuh"
#include "mhla/cuda/attention/same_layout.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/map_cache.cuh"
#include "mhla/cuda/launch/stream.cuh"

namespace mhla::cuda {
inline namespace MHLA_CUDA_ARCHS {

/// A prepared form. Runs may be captured and may be in flight together. Calls of run() must not
/// overlap, but any thread may make them if its current device is the one of the preparation.
/// \tparam R  NoRotary or Rotary
/// \tparam O  Operator or MappedOperator
template <int D, int E, bool kCausal, DeviceScalar T, class R = NoRotary, AnyOperator O = Operator>
class Prepared {
  static constexpr bool kRotary = std::is_same_v<R, Rotary>;
  static_assert(detail::has_rotary_kernels<D, T, R>());

 public:
  /// Plans as prepare_bidirectional() and prepare_causal() do.
  /// \param key_blocks  equal to query_blocks if kCausal
  Prepared(const Inputs<T>& in, const TokenBlocks& query_blocks, const TokenBlocks& key_blocks,
           const O& op, TensorView<T> out, const Device& device, const R& rotary = {})
      : op_(op),
        problem_(make_problem(in, query_blocks, key_blocks, op, out, rotary)),
        device_(device),
        plan_(detail::fitting(kName, cuda::plan<D, E>(problem_, device), device)) {}

  const Plan& plan() const { return plan_; }

  /// Enqueues the computation of `out` into a stream, as bidirectional() and causal() do.
  /// \param in, out  Shapes and strides of the preparation, at any addresses.
  /// \throws shape_error, option_error for arguments that do not fit, before any launch; cuda_error
  ///         if CUDA refuses a launch.
  void run(const Inputs<T>& in, const MixingMatrices<const float>& mixing, TensorView<T> out,
           Workspace workspace, cudaStream_t stream, const R& rotary = {}) {
    const Problem problem = make_problem(in, problem_.callers_query_blocks(),
                                         problem_.callers_key_blocks(), op_, out, rotary);
    detail::expect_same_layout(kName, problem, problem_);
    launch(problem, in, mixing, out, workspace, stream);
  }
  /// The same for the very tensors that it was prepared with.
  void run_prepared(const Inputs<T>& in, const MixingMatrices<const float>& mixing,
                    TensorView<T> out, Workspace workspace, cudaStream_t stream) {
    launch(problem_, in, mixing, out, workspace, stream);
  }

 private:
  static constexpr const char* kName = kCausal ? "cuda::causal" : "cuda::bidirectional";

  static Problem make_problem(const Inputs<T>& in, const TokenBlocks& query_blocks,
                              const TokenBlocks& key_blocks, const O& op, TensorView<T> out,
                              const R& rotary) {
    Problem problem =
        detail::make_problem<D, E>(kName, in, query_blocks, key_blocks, kCausal, op, out);
    detail::add_rotary(kName, rotary, D, problem);
    return problem;
  }

  /// \param problem  that of `in` and `out`
  void launch(const Problem& problem, const Inputs<T>& in,
              const MixingMatrices<const float>& mixing, TensorView<T> out, Workspace workspace,
              cudaStream_t stream) {
    detail::expect_data(kName, in, out);
    detail::expect_angles(kName, problem);
    const MixingArray coefficients = detail::mixing_array(kName, mixing, problem);
    unsigned char* const begin = detail::workspace_begin(kName, workspace, plan_.workspace_bytes);
    cache_.begin(coefficients);
    mhla::cuda::run<kernel_scalar_t<T>, D, E, kCausal, kRotary>(
        plan_, problem, coefficients, begin, device_, Stream(stream, device_.kernels(), cache_),
        op_);
    cache_.ready = true;
  }

  O op_;
  Problem problem_;
  Device device_;
  Plan plan_;
  LaunchCache cache_;
};

/// Plans bidirectional() for tensors of these shapes and strides. Their data is not read, and may
/// be null.
/// \throws shape_error, option_error as bidirectional() does.
template <int D, int E, DeviceScalar T, class R = NoRotary, AnyOperator O = Operator>
Prepared<D, E, false, T, R, O> prepare_bidirectional(const Inputs<T>& in,
                                                     const TokenBlocks& query_blocks,
                                                     const TokenBlocks& key_blocks, const O& op,
                                                     std::type_identity_t<TensorView<T>> out,
                                                     const Device& device, const R& rotary = {}) {
  return {in, query_blocks, key_blocks, op, out, device, rotary};
}

/// Plans causal() for tensors of these shapes and strides.
template <int D, int E, DeviceScalar T, class R = NoRotary, AnyOperator O = Operator>
Prepared<D, E, true, T, R, O> prepare_causal(const Inputs<T>& in, const TokenBlocks& blocks,
                                             const O& op, std::type_identity_t<TensorView<T>> out,
                                             const Device& device, const R& rotary = {}) {
  return {in, blocks, blocks, op, out, device, rotary};
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda
