#pragma once

/// \file
/// Launch of the kernels of plan.blocks of a gradient (gradient_plan.cuh):
///
///     summary -> (rounded_mixing) -> mixing, or decay_mixing         S and S~
///       -> block_gradient of queries                                 dphi(Q), or dq, and dS~
///       -> (rounded_mixing) -> mixing by m^T, or decay_mixing        dS
///       -> block_gradient of keys                                    dphi(K), or dk, and dv
///       -> summary_products, or decay_products                       parts of dm
///
/// With plan.staged they read the call's tensors and z. Otherwise they read features and dN, and
/// other kernels take care of denominators.

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/block_gradient_sm80.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/gradient_layout.cuh"
#include "mhla/cuda/launch/gradient_parameters.cuh"
#include "mhla/cuda/launch/mixing_gradient.cuh"
#include "mhla/cuda/launch/stages.cuh"

namespace mhla::cuda {

/// Launches the kernels into a stream, after those that transpose the mixing matrix and make dN.
template <class T, int D, int E, bool kCausal, bool kRotary>
class BlockGradientRun {
  using Layout = GradientLayout<D, E, kCausal, kRotary>;
  static constexpr bool kAny = D == E && D <= kWidestBlockGradient && !kIsFloat<T>;

 public:
  explicit BlockGradientRun(const Layout& layout) : l_(layout) {}

  template <class Stream>
  void operator()(const Stream& stream) const {
    if constexpr (kAny) {
      constexpr Precision P = Precision::kSingle;
      const Problem problem = l_.stages();
      const WorkspaceArrays summaries = l_.stage_arrays(), gradients = l_.gradient_arrays();
      const FusedGradientParameters of = detail::fused_gradient_parameters(l_, problem);
      const Plan plan = detail::planned<D, E>(problem, l_.device, Form::kThreeStage, "a gradient");
      detail::run_summaries<T, D, E, P>(plan, summary_stage(problem, summaries), l_.pairs(),
                                        l_.device, stream);
      detail::run_mixing<T, D, E, P>(problem, l_.mixed(), summaries, l_.device, stream,
                                     Start::kEarly);
      stream.template run<BlockGradientSm80<T, D, false>>(
          {of, summaries.mixtures, gradients.summaries}, l_.pairs(), Start::kEarly);
      if (of.wants_keys()) {
        detail::run_mixing<T, D, E, P>(l_.backward(), l_.transposed(), gradients, l_.device, stream,
                                       Start::kInOrder);
        stream.template run<BlockGradientSm80<T, D, true>>({of, gradients.mixtures}, l_.pairs(),
                                                           Start::kEarly);
      }
      if (!l_.wants_mixing()) return;
      MixingGradientRun<T, D, E, kCausal, kRotary>{l_}.multiply(0, summaries.summaries,
                                                                gradients.summaries, stream);
    }
  }

 private:
  const Layout& l_;
};

}  // namespace mhla::cuda
