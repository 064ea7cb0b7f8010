#pragma once

/// \file
/// What the kernels of a form are told about a problem, and when they may begin.

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/launch/workspace.cuh"

namespace mhla::cuda {

/// After what the stream holds already; or, on sm_90a, as soon as the blocks of the kernel before
/// let it (ptx/barrier.cuh: griddepcontrol), for kernels that wait for its end themselves. It is
/// one of the same call: what other kernels leave running is not known.
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
          .summary_scale = summary_scale(problem.key_blocks.slots())};
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

/// Rows that a tile of the matrix has before the first block of a causal problem, where that is a
/// part of a sequence: their mixtures are made, too, and not read.
constexpr std::int32_t rows_ahead(const Problem& problem, std::int32_t before) {
  return problem.causal ? before % MixingParameters::kTile : 0;
}

/// Key sums are mixed where the mixtures have a place for them.
constexpr MixingParameters mixing_stage(const Problem& problem, const WorkspaceArrays& arrays,
                                        MixingArray mixing) {
  const std::int32_t ahead = rows_ahead(problem, mixing.before);
  MixingParameters stage{
      .in = arrays.summaries,
      .out = arrays.mixtures,
      .mixing = {mixing.row(-ahead), mixing.stride, mixing.before - ahead, mixing.lead},
      .rows = ahead + problem.query_blocks.blocks(),
      .columns = problem.key_blocks.blocks(),
      .earlier = problem.causal,
      .rounded = arrays.rounded};
  if (arrays.mixtures.key_sum == nullptr) stage.in.key_sum = nullptr;
  return stage;
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

}  // namespace mhla::cuda
