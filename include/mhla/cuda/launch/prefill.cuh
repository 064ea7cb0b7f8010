#pragma once

/// \file
/// The first tokens of streams, all at once: the causal form in three stages, whose summaries are
/// those of the state, and what sets the rest of it.
///
///     summary -> mixing -> causal_read_out -> streaming_prefill

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/streaming_prefill_sm80.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/launch/workspace.cuh"

namespace mhla::cuda {

/// Sends the kernels of a planned prefill to a stream, as run() does those of a form.
/// \param plan      prefill_plan(problem, device)
/// \param prefill   of problem.batch sequences; the tensors are those of the problem
template <class T, int D, int E, class Stream>
void run_prefill(const Plan& plan, const Problem& problem,
                 const StreamingPrefillParameters& prefill, unsigned char* workspace,
                 const Device& device, const Stream& stream) {
  const std::int32_t pairs = problem.pairs();
  if (pairs == 0) return;
  const StreamingState& state = prefill.stream.state;
  const std::int32_t blocks = prefill.stream.blocks.blocks();
  Rooms rooms = rooms_of<D, E>(problem, device);
  rooms.summaries = 0;
  WorkspaceArrays arrays = workspace_arrays<D, E>(problem, rooms, workspace);
  const std::int64_t first = std::int64_t{prefill.first} * problem.heads * blocks;
  const bool key_sums = arrays.summaries.key_sum != nullptr;
  arrays.summaries = {
      state.summaries.high + first * (2 * D * E), state.summaries.low + first * (2 * D * E),
      key_sums ? state.summaries.key_sum + first * D : nullptr, state.summaries.scale, blocks};
  arrays.mixtures.scale = state.summaries.scale;
  const auto run_all = [&]<Precision P>() {
    detail::run_three_stages<T, D, E, P, true>(plan, problem, prefill.stream.mixing, arrays, device,
                                               stream, Start::kInOrder);
    stream.template run<StreamingPrefillSm80<T, D, E, P>>(prefill, pairs, Start::kInOrder);
  };
  if (problem.op.summaries == Precision::kPair) {
    run_all.template operator()<Precision::kPair>();
  } else {
    run_all.template operator()<Precision::kSingle>();
  }
}

}  // namespace mhla::cuda
