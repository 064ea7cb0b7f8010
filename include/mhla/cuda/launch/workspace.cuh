#pragma once

/// \file
/// The workspace of the three-stage form: summaries, their mixtures and scores in device memory.

#include <cstddef>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixing_sm90_config.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/stage_counters.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda {

/// Offsets of the parts of a workspace, in bytes. Each is a multiple of 256.
struct WorkspaceParts {
  std::size_t summaries, summaries_low, key_sums;
  std::size_t mixtures, mixtures_low, mixed_key_sums;
  std::size_t scores;
  std::size_t rounded, rounded_low;
  std::size_t intra_weights;
  std::size_t counters;
  std::size_t bytes;  ///< total
};

/// Sizes of the workspace's arrays, in blocks per pair.
struct StageScratch {
  std::int32_t summaries;  ///< summaries and scores; 0 if they are elsewhere
  std::int32_t mixtures;
  std::int64_t rounded = 0;  ///< coefficients of a RoundedMixing
};

/// Number of coefficients of all matrices [rows, columns] of a problem that the mixing kernel reads
/// as rounded copies. It is 0 if the kernel keeps a matrix in shared memory.
template <int D, int E>
constexpr std::int64_t rounded_coefficients(std::int32_t rows, std::int32_t columns,
                                            const Problem& problem, const Device& device) {
  if (problem.decays()) return 0;
  if constexpr (Widths<D, E>::kWgmma) {
    const auto stays = [&]<Precision P>() {
      MixingParameters stage{
          .in = {}, .out = {}, .mixing = {}, .rows = rows, .columns = columns, .earlier = false};
      return MixingSm90Config<D, E, P>::choose(stage, 1, device.multiprocessors).stays;
    };
    if (device.kernels() == Arch::kSm90a &&
        !(problem.op.summaries == Precision::kPair
              ? stays.template operator()<Precision::kPair>()
              : stays.template operator()<Precision::kSingle>())) {
      return std::int64_t{problem.matrices()} * rows * RoundedMixing::stride(columns);
    }
  }
  return 0;
}

/// Scratch sizes of a problem that keeps everything in its workspace.
template <int D, int E>
constexpr StageScratch scratch_of(const Problem& problem, const Device& device) {
  const std::int32_t rows = problem.query_blocks.blocks(), columns = problem.key_blocks.blocks();
  return {columns, rows, rounded_coefficients<D, E>(rows, columns, problem, device)};
}

template <int D, int E>
constexpr WorkspaceParts workspace_parts(const Problem& problem, const StageScratch& scratch) {
  const auto pairs = static_cast<std::size_t>(problem.pairs());
  const auto mq = static_cast<std::size_t>(scratch.mixtures);
  const auto mk = static_cast<std::size_t>(scratch.summaries);
  const auto slots = static_cast<std::size_t>(problem.query_blocks.slots());
  const bool pair = problem.op.summaries == Precision::kPair;
  const bool key_sums = problem.op.denominator != Denominator::kNone;
  const bool scores = problem.op.denominator == Denominator::kCrossQuery;
  WorkspaceParts parts{};
  const auto take = [&parts](std::size_t bytes) {
    const std::size_t begin = parts.bytes;
    parts.bytes += (bytes + 255) / 256 * 256;
    return begin;
  };
  parts.summaries = take(pairs * mk * D * E * 2);
  parts.summaries_low = take(pair ? pairs * mk * D * E * 2 : 0);
  parts.key_sums = take(key_sums ? pairs * mk * D * 4 : 0);
  parts.mixtures = take(pairs * mq * D * E * 2);
  parts.mixtures_low = take(pair ? pairs * mq * D * E * 2 : 0);
  parts.mixed_key_sums = take(key_sums && !scores ? pairs * mq * D * 4 : 0);
  parts.scores = take(scores ? pairs * mk * slots * 4 : 0);
  const auto rounded = 2 * static_cast<std::size_t>(scratch.rounded);
  parts.rounded = take(rounded);
  parts.rounded_low = take(pair ? rounded : 0);
  const bool intra_weights = problem.decays() && problem.causal;
  parts.intra_weights = take(intra_weights ? 4 * static_cast<std::size_t>(problem.matrices()) : 0);
  const StageCounters counters{nullptr, problem.pairs()};
  parts.counters =
      take(problem.op.joins_stages ? 4 * static_cast<std::size_t>(counters.count()) : 0);
  return parts;
}

/// Parts of the workspace as kernels see them.
struct WorkspaceArrays {
  SummaryArray summaries;  ///< of the key blocks
  SummaryArray mixtures;   ///< of the query blocks
  float* scores;
  RoundedMixing rounded;           ///< null if there is no array for it
  float* intra_weights = nullptr;  ///< of causal forms with decaying terms
  StageCounters counters{};        ///< if the operator joins stages
};

template <int D, int E>
WorkspaceArrays workspace_arrays(const Problem& problem, const StageScratch& scratch,
                                 unsigned char* workspace) {
  const WorkspaceParts parts = workspace_parts<D, E>(problem, scratch);
  const auto numbers = [workspace](std::size_t begin) {
    return static_cast<float*>(static_cast<void*>(workspace + begin));
  };
  const bool key_sums = problem.op.denominator != Denominator::kNone;
  const bool mixed = problem.op.denominator == Denominator::kKeySum;
  const float scale = summary_scale(problem.key_blocks.slots());
  return {
      {workspace + parts.summaries, workspace + parts.summaries_low,
       key_sums ? numbers(parts.key_sums) : nullptr, scale, scratch.summaries},
      {workspace + parts.mixtures, workspace + parts.mixtures_low,
       mixed ? numbers(parts.mixed_key_sums) : nullptr, scale, scratch.mixtures},
      numbers(parts.scores),
      {scratch.rounded > 0 ? workspace + parts.rounded : nullptr, workspace + parts.rounded_low},
      numbers(parts.intra_weights),
      {static_cast<std::uint32_t*>(static_cast<void*>(workspace + parts.counters)),
       problem.pairs()}};
}

}  // namespace mhla::cuda
