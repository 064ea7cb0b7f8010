#pragma once

/// \file
/// The workspace of the three-stage form: summaries, their mixtures and scores in device memory.

#include <cstddef>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda {

/// Where the parts of a workspace begin, in bytes; each at a multiple of 256.
struct WorkspaceParts {
  std::size_t summaries, summaries_low, key_sums;
  std::size_t mixtures, mixtures_low, mixed_key_sums;
  std::size_t scores;
  std::size_t bytes;  ///< of all
};

/// Blocks of a pair that arrays have room for.
struct Rooms {
  std::int32_t summaries;  ///< and scores; 0 where they lie elsewhere
  std::int32_t mixtures;
};

/// As many as the problem has.
constexpr Rooms rooms_of(const Problem& problem) {
  return {problem.key_blocks.blocks(), problem.query_blocks.blocks()};
}

template <int D, int E>
constexpr WorkspaceParts workspace_parts(const Problem& problem, const Rooms& rooms) {
  const auto pairs = static_cast<std::size_t>(problem.pairs());
  const auto mq = static_cast<std::size_t>(rooms.mixtures);
  const auto mk = static_cast<std::size_t>(rooms.summaries);
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
  return parts;
}

/// The parts as kernels see them.
struct WorkspaceArrays {
  SummaryArray summaries;  ///< of the key blocks
  SummaryArray mixtures;   ///< of the query blocks
  float* scores;
};

template <int D, int E>
WorkspaceArrays workspace_arrays(const Problem& problem, const Rooms& rooms,
                                 unsigned char* workspace) {
  const WorkspaceParts parts = workspace_parts<D, E>(problem, rooms);
  const auto numbers = [workspace](std::size_t begin) {
    return static_cast<float*>(static_cast<void*>(workspace + begin));
  };
  const bool key_sums = problem.op.denominator != Denominator::kNone;
  const bool mixed = problem.op.denominator == Denominator::kKeySum;
  const float scale = summary_scale(problem.key_blocks.slots());
  return {{workspace + parts.summaries, workspace + parts.summaries_low,
           key_sums ? numbers(parts.key_sums) : nullptr, scale, rooms.summaries},
          {workspace + parts.mixtures, workspace + parts.mixtures_low,
           mixed ? numbers(parts.mixed_key_sums) : nullptr, scale, rooms.mixtures},
          numbers(parts.scores)};
}

}  // namespace mhla::cuda
