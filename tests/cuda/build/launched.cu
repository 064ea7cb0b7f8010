// Empty functions named after the kernels of the launch layer, for check_code.py.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/gradient.cuh"
#include "mhla/cuda/launch/prefill.cuh"
#include "mhla/cuda/launch/tangent.cuh"

namespace mhla::cuda::build {

template <class K>
__global__ void launched() {}

/// A stream that instantiates the empty functions of the launched kernels.
struct Listing {
  template <class Kernel>
  void run(const typename Kernel::Params&, std::int32_t, Start = Start::kInOrder) const {
    function = &launched<Kernel>;
  }
  TensorMap tensor_map(const TensorBox&) const { return {}; }

  mutable void (*function)() = nullptr;
};

}  // namespace mhla::cuda::build

namespace mhla::cuda {

#define MHLA_LAUNCHED(type, causal, rotary)                                                       \
  template void run<type, build::kWidth, build::kValueWidth, causal, rotary, build::Listing>(     \
      const Plan&, const Problem&, MixingArray, unsigned char*, const Device&,                    \
      const build::Listing&);                                                                     \
  template void run_gradient<type, build::kWidth, build::kValueWidth, causal, rotary>(            \
      const GradientPlan&, const GradientProblem&, MixingArray, unsigned char*, const Device&,    \
      const build::Listing&);                                                                     \
  template void run_tangent<type, build::kWidth, build::kValueWidth, causal, rotary>(             \
      const TangentPlan&, const TangentProblem&, MixingArray, unsigned char*, const Device&,      \
      const build::Listing&);
MHLA_LAUNCHED(bfloat16, false, false)
MHLA_LAUNCHED(bfloat16, true, false)
MHLA_LAUNCHED(half, false, false)
MHLA_LAUNCHED(half, true, false)
#if MHLA_WIDTH <= 128
MHLA_LAUNCHED(float, false, false)
MHLA_LAUNCHED(float, true, false)
#endif
#if MHLA_WIDTH % 16 == 0
MHLA_LAUNCHED(bfloat16, false, true)
MHLA_LAUNCHED(bfloat16, true, true)
MHLA_LAUNCHED(half, false, true)
MHLA_LAUNCHED(half, true, true)
#endif

#define MHLA_PREFILLED(type)                                                                     \
  template void run_prefill<type, build::kWidth, build::kValueWidth, build::Listing>(            \
      const Plan&, const Problem&, const StreamingStepParameters&, std::int32_t, unsigned char*, \
      const Device&, const build::Listing&);
MHLA_PREFILLED(bfloat16)
MHLA_PREFILLED(half)

}  // namespace mhla::cuda
