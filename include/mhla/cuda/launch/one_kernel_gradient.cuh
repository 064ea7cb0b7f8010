#pragma once

/// \file
/// Launch of the kernels that compute all gradients of a bidirectional form: one for few tokens
/// (quadratic_gradient_sm80.cuh), and one for few blocks (fused_gradient_sm80.cuh). They write
/// parts of the mixing matrix's gradient.

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/fused_gradient_sm80.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/quadratic_gradient_sm80.cuh"
#include "mhla/cuda/launch/gradient_layout.cuh"
#include "mhla/cuda/launch/gradient_parameters.cuh"
#include "mhla/cuda/launch/gradient_plan.cuh"
#include "mhla/cuda/tile/factors.cuh"

namespace mhla::cuda {

/// Launches the kernel of a plan into a stream.
template <class T, int D, int E, bool kCausal, bool kRotary>
class OneKernelGradientRun {
  using Layout = GradientLayout<D, E, kCausal, kRotary>;
  static constexpr bool kAny = D == E && !kCausal && !kRotary && !kIsFloat<T>;

 public:
  explicit OneKernelGradientRun(const Layout& layout) : l_(layout) {}

  template <class Stream>
  void operator()(const Stream& stream) const {
    if (l_.plan.quadratic) {
      run_quadratic(stream);
    } else if (l_.plan.fused) {
      run_fused(stream);
    }
  }

 private:
  template <class Stream>
  void run_quadratic(const Stream& stream) const {
    if constexpr (kAny && QuadraticGradientConfig<D>::kFits) {
      if (l_.cross()) {
        stream.template run<QuadraticGradientSm80<T, D, true>>(quadratic(), l_.pairs());
      } else {
        stream.template run<QuadraticGradientSm80<T, D>>(quadratic(), l_.pairs());
      }
    }
  }

  template <class Stream>
  void run_fused(const Stream& stream) const {
    if constexpr (kAny && D <= kWidestFusedGradient) {
      detail::of_fused_gradient(l_.device, [&](auto limit) {
        constexpr int kLimit = limit();
        if constexpr (FusedGradientConfig<D, kLimit>::kFits) {
          stream.template run<FusedGradientSm80<T, D, kFusedGradientLimit<D, kLimit>>>(
              detail::fused_gradient_parameters(l_, l_.forward()), l_.pairs());
        }
      });
    }
  }

  QuadraticGradientParameters quadratic() const {
    const Problem& forward = l_.forward();
    return {detail::gradient_parameters(l_, forward),
            l_.computes_outputs() ? read_only(l_.arrays.out) : l_.problem.out,
            {forward.query_blocks},
            {forward.key_blocks}};
  }

  const Layout& l_;
};

}  // namespace mhla::cuda
