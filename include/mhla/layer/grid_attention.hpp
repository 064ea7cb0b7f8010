#pragma once

/// \file
/// Attention of the vision and video layers: MHLA over the blocks of a grid, or softmax attention.

#include <cstddef>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/softmax.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/softmax.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The forms of one layer. Softmax reads neither blocks, op and mixing matrices nor kept summaries.
template <Accumulator T, class Op>
struct GridAttention {
  bool softmax;
  const Grid& blocks;
  Op op;

  std::size_t kept_bytes(const BatchInputs<T>& in) const {
    return softmax ? 0 : bidirectional_kept_bytes(in, blocks, op);
  }
  std::size_t workspace_bytes(const BatchInputs<T>& in, const ExecutorRef& executor) const {
    if (softmax) return softmax_workspace_bytes(in, executor);
    return bidirectional_workspace_bytes(in, blocks, op, executor);
  }
  std::size_t gradient_workspace_bytes(const BatchInputs<T>& in,
                                       const ExecutorRef& executor) const {
    if (softmax) return softmax_gradient_workspace_bytes(in, executor);
    const MixingView<const T> mixing(nullptr, Pattern(blocks.blocks(), blocks.blocks()));
    return bidirectional_gradient_workspace_bytes(in, blocks, mixing, op, executor);
  }

  void run(const BatchInputs<T>& in, const MixingView<const T>& mixing, const TensorView<T>& out,
           const Call& call) const {
    if (softmax) return softmax_bidirectional(in, out, {}, call);
    bidirectional(in, blocks, mixing, op, out, call);
  }
  void add_gradients(const BatchInputs<T>& in, const MixingView<const T>& mixing,
                     const TensorView<T>& dout, const BatchGradients<T>& gradients,
                     const MixingView<T>& dmixing, const Call& call) const {
    if (softmax) return softmax_bidirectional_gradient(in, dout, gradients, {}, call);
    bidirectional_gradient(in, blocks, mixing, op, dout, gradients, {.mixing = dmixing}, call);
  }
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
