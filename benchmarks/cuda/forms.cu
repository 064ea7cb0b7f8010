// The forms of one (D, E): MHLA_WIDTH and MHLA_VALUE_WIDTH.

#include "cuda/forms.hpp"
#include "mhla/cuda/attention/bidirectional.cuh"
#include "mhla/cuda/attention/causal.cuh"

namespace mhla::cuda_bench {
namespace {

using Number = Eigen::bfloat16;

const Number* numbers(const Bits* bits) { return reinterpret_cast<const Number*>(bits); }

template <int D, int E>
cuda::Inputs<Number> inputs(const Call& c) {
  const Index n = c.blocks.tokens();
  return {bnhd(numbers(c.q), c.batch, n, c.heads, D), bnhd(numbers(c.k), c.batch, n, c.heads, D),
          bnhd(numbers(c.v), c.batch, n, c.heads, E)};
}

template <int E>
TensorView<Number> output(const Call& c) {
  return bnhd(reinterpret_cast<Number*>(c.o), c.batch, Index{c.blocks.tokens()}, c.heads, Index{E});
}

const char* kernels(const cuda::Plan& plan) {
  if (plan.form == cuda::Form::kQuadratic) {
    if (plan.quadratic == cuda::QuadraticKernel::kSplit) return "split keys";
    return plan.quadratic == cuda::QuadraticKernel::kSm90a ? "sm_90a" : "sm_80";
  }
  if (plan.form == cuda::Form::kFused) {
    return plan.fused == cuda::Arch::kSm90a ? "sm_90a" : "sm_80";
  }
  const bool summary = plan.summary == cuda::Arch::kSm90a;
  const bool read_out = plan.read_out == cuda::Arch::kSm90a;
  if (plan.form != cuda::Form::kThreeStage || (!summary && !read_out)) return "sm_80";
  return summary && read_out ? "sm_90a" : "sm_80, 90a";
}

}  // namespace

template <int D, int E>
Planned Forms<D, E>::plan(const Call& c, const cuda::Device& device) {
  const cuda::Plan plan =
      c.causal ? cuda::causal_plan<D, E>(inputs<D, E>(c), c.blocks, c.op, output<E>(c), device)
               : cuda::bidirectional_plan<D, E>(inputs<D, E>(c), c.blocks, c.blocks, c.op,
                                                output<E>(c), device);
  return {cuda::name(plan.form), plan.reason, kernels(plan), plan.workspace_bytes};
}

template <int D, int E>
void Forms<D, E>::run(const Call& c, const cuda::Device& device, cudaStream_t stream) {
  const Index m = c.blocks.blocks();
  const MatrixView<const float> mixing(c.mixing, m, m, m);
  const Workspace workspace(static_cast<std::byte*>(c.workspace), c.workspace_bytes);
  if (c.causal) {
    cuda::causal<D, E>(inputs<D, E>(c), c.blocks, mixing, c.op, output<E>(c), workspace, device,
                       stream);
  } else {
    cuda::bidirectional<D, E>(inputs<D, E>(c), c.blocks, c.blocks, mixing, c.op, output<E>(c),
                              workspace, device, stream);
  }
}

template struct Forms<MHLA_WIDTH, MHLA_VALUE_WIDTH>;

}  // namespace mhla::cuda_bench
