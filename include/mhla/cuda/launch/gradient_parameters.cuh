#pragma once

/// \file
/// Parameters of kernels of whole gradients (kernel/gradient_parameters.cuh) from a layout.

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/fused_gradient_sm80_config.cuh"
#include "mhla/cuda/kernel/gradient_parameters.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/launch/gradient_layout.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda::detail {

/// \param problem  with q, k and v, or with what stands for them
template <class Layout>
GradientParameters gradient_parameters(const Layout& l, const Problem& problem) {
  const bool whole = l.one_kernel() || l.plan.staged;
  return {.q = problem.q,
          .k = problem.k,
          .v = problem.v,
          .dout = whole ? l.problem.dout : read_only(l.arrays.dn),
          .dq = whole ? l.problem.dq : l.arrays.dquery_features[0],
          .dk = whole ? l.problem.dk : l.arrays.dkey_features[0],
          .dv = l.problem.dv,
          .heads = problem.heads,
          .pairs = l.pairs(),
          .multiprocessors = l.thread_blocks(),
          .query_map = problem.op.query_map,
          .key_map = problem.op.key_map,
          .normalization = problem.normalization(),
          .mixing = l.mixing,
          .parts = l.arrays.mixing_parts,
          .matrices = l.matrices()};
}

template <class Layout>
FusedGradientParameters fused_gradient_parameters(const Layout& l, const Problem& problem) {
  return {gradient_parameters(l, problem),
          problem.query_blocks,
          problem.key_blocks,
          summary_scale(problem.query_blocks.slots()),
          summary_scale(problem.key_blocks.slots()),
          l.arrays.kept};
}

}  // namespace mhla::cuda::detail
