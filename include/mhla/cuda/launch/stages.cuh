#pragma once

/// \file
/// Parameters of a form's kernels for a problem, and when the kernels may begin.

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/decay_mixing_sm80.cuh"
#include "mhla/cuda/kernel/intra_weights.cuh"
#include "mhla/cuda/kernel/joined_stages_sm80.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/launch/workspace.cuh"

namespace mhla::cuda {

/// Start of a kernel.
/// - kInOrder: after earlier work in the stream.
/// - kEarly: on sm_90a, as soon as blocks of the previous kernel allow it (ptx/barrier.cuh:
///   griddepcontrol). The kernel itself waits for the end of the previous one, which must be of the
///   same call.
enum class Start { kInOrder, kEarly };

constexpr DirectParameters direct_stage(const Problem& problem, MixingArray mixing) {
  return {.q = problem.q,
          .k = problem.k,
          .v = problem.v,
          .o = problem.o,
          .query_blocks = problem.query_blocks,
          .key_blocks = problem.key_blocks,
          .heads = problem.heads,
          .query_map = problem.op.query_map,
          .key_map = problem.op.key_map,
          .normalization = problem.normalization(),
          .mixing = mixing,
          .summary_scale = summary_scale(problem.key_blocks.slots()),
          .matrices = problem.matrices()};
}

constexpr SummaryParameters summary_stage(const Problem& problem, const WorkspaceArrays& arrays) {
  return {.k = problem.k,
          .v = problem.v,
          .blocks = problem.key_blocks,
          .heads = problem.heads,
          .map = problem.op.key_map,
          .out = arrays.summaries,
          .angles = problem.key_angles};
}

/// Rows of a tile before the first block of a causal problem that is part of a sequence. Their
/// mixtures are computed, but not read.
constexpr std::int32_t rows_ahead(const Problem& problem, std::int32_t before) {
  return problem.causal && !problem.decays() ? before % MixingParameters::kTile : 0;
}

/// Parameters of the mixing stage. Key sums are mixed if the mixtures have an array for them.
constexpr MixingParameters mixing_stage(const Problem& problem, const WorkspaceArrays& arrays,
                                        MixingArray mixing) {
  const std::int32_t ahead = rows_ahead(problem, mixing.before);
  MixingArray ahead_too = mixing.from(-ahead);
  ahead_too.before -= ahead;
  MixingParameters stage{.in = arrays.summaries,
                         .out = arrays.mixtures,
                         .mixing = ahead_too,
                         .rows = ahead + problem.query_blocks.blocks(),
                         .columns = problem.key_blocks.blocks(),
                         .earlier = problem.causal,
                         .rounded = arrays.rounded,
                         .heads = Divisor(problem.heads),
                         .matrices = problem.matrices()};
  if (arrays.mixtures.key_sum == nullptr) stage.in.key_sum = nullptr;
  return stage;
}

/// The decaying terms of a problem.
constexpr DecayArray decay_array(const Problem& problem, MixingArray terms) {
  const std::int32_t heads = problem.heads > 0 ? problem.heads : 1;
  return {terms, problem.op.decay_terms, Divisor(heads), problem.matrices()};
}

/// Parameters of the mixing stage with decaying terms.
constexpr DecayMixingParameters decay_mixing_stage(const Problem& problem,
                                                   const WorkspaceArrays& arrays,
                                                   MixingArray terms) {
  return {.in = arrays.summaries,
          .out = arrays.mixtures,
          .terms = decay_array(problem, terms),
          .blocks = problem.key_blocks.blocks(),
          .later = problem.later};
}

constexpr ScoreParameters score_stage(const Problem& problem, const WorkspaceArrays& arrays) {
  return {.q = problem.q,
          .blocks = problem.query_blocks,
          .heads = problem.heads,
          .map = problem.op.query_map,
          .key_sum = arrays.summaries.key_sum,
          .scores = arrays.scores};
}

constexpr ReadOutParameters read_out_stage(const Problem& problem, const WorkspaceArrays& arrays,
                                           MixingArray mixing) {
  return {.q = problem.q,
          .o = problem.o,
          .blocks = problem.query_blocks,
          .heads = problem.heads,
          .map = problem.op.query_map,
          .mixtures = arrays.mixtures,
          .normalization = problem.normalization(),
          .scores = arrays.scores,
          .mixing = mixing,
          .norm = problem.norm,
          .angles = problem.query_angles};
}

template <int D, int E>
constexpr CausalReadOutParameters causal_read_out_stage(const Problem& problem,
                                                        const WorkspaceArrays& arrays,
                                                        MixingArray mixing) {
  return {.q = problem.q,
          .k = problem.k,
          .v = problem.v,
          .o = problem.o,
          .blocks = problem.query_blocks,
          .heads = problem.heads,
          .query_map = problem.op.query_map,
          .key_map = problem.op.key_map,
          .mixtures = arrays.mixtures.from<D, E>(rows_ahead(problem, mixing.before)),
          .normalization = problem.normalization(),
          .mixing = mixing,
          .norm = problem.norm,
          .query_angles = problem.query_angles,
          .key_angles = problem.key_angles};
}

/// Parameters of a kernel of all three stages.
template <class T, int D, int E, bool kCausal>
constexpr auto joined_stages(const Problem& problem, const WorkspaceArrays& arrays,
                             MixingArray mixing, std::int32_t multiprocessors) {
  using Kernel = JoinedStagesSm80<T, D, E, kCausal>;
  typename Kernel::Params p{.summary = summary_stage(problem, arrays),
                            .mixing = mixing_stage(problem, arrays, mixing),
                            .read_out = {},
                            .counters = arrays.counters,
                            .order = {}};
  if constexpr (kCausal) {
    p.read_out = causal_read_out_stage<D, E>(problem, arrays, mixing);
  } else {
    p.read_out = read_out_stage(problem, arrays, mixing);
  }
  p.order = Kernel::order(p, problem.pairs(), multiprocessors);
  return p;
}

}  // namespace mhla::cuda
