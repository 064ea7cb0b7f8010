#pragma once

/// \file
/// Scores of queries against the key sum of their own block, for Denominator::kCrossQuery:
///
///     s_bw = phi(q_bw) . z_b     float sums of phi(q) rounded to T and z as stored
///
/// where q_bw is the query in slot w of block b. Empty slots have a score of 0, so that mixtures of
/// scores need no test.
///
/// A thread block computes the scores of one block of tokens: thread block pair * M + b along x.
/// Four threads share each query. They alternate between the pieces of 16 bytes of its row, and
/// keep their part of z in registers. 32 queries are processed at a time. Floats are not split:
/// phi(q) is a float.
///
/// Shared memory: none. Device memory: Q and z once, scores once.
/// Source: the denominator of github.com/DAGroup-PKU/MHLA.

#include <algorithm>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/occupancy.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/tile/factors.cuh"

namespace mhla::cuda {

template <int D>
struct ScoresConfig {
  static constexpr int kThreads = 128;
  static constexpr int kSharers = 4;  // threads per query
  static constexpr int kRows = kThreads / kSharers;
  static constexpr int kPieces = (D / 8 + kSharers - 1) / kSharers;  // pieces per thread
};

template <class T, int D>
struct ScoresSm80 {
  using Params = ScoreParameters;
  using Config = ScoresConfig<D>;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor =
      std::min(resident_blocks(kThreads, 16 + 16 * Config::kPieces, kSharedBytes), 6);

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * static_cast<unsigned>(p.blocks.blocks());
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const std::uint32_t thread = ptx::tid_x();
    const std::uint32_t item = ptx::ctaid_x();
    const auto blocks = static_cast<std::uint32_t>(p.blocks.blocks());
    const BatchHead pair = batch_head(static_cast<std::int32_t>(item / blocks), p.heads);
    const BlockOrigin origin = p.blocks.origin(static_cast<std::int32_t>(item % blocks));
    const std::uint32_t sharer = thread % Config::kSharers;
    const unsigned char* const q = p.q.head(pair) + (kIsFloat<T> ? 32 : 16) * sharer;
    const std::int32_t slots = p.blocks.slots();
    float* const scores = p.scores + std::int64_t{item} * slots;

    float z[Config::kPieces][8];
    ptx::griddepcontrol_wait();
    ptx::griddepcontrol_launch_dependents();
    load_key_sum(p.key_sum + std::int64_t{item} * D, sharer, z);
    MHLA_CUDA_LOOP
    for (std::int32_t first = 0; first < slots; first += Config::kRows) {  // whole warps together
      const std::int32_t slot = first + static_cast<std::int32_t>(thread / Config::kSharers);
      const std::int32_t token = p.blocks.token(origin, slot);
      float sum = 0;
      if (token >= 0) {
        const unsigned char* const row = q + token * p.q.token_stride;
        if constexpr (kIsFloat<T>) {
          sum = dot_floats(p.map, row, sharer, z);
        } else {
          sum = dot(p.map, row, sharer, z);
        }
      }
      sum += ptx::shfl_bfly(sum, 1);
      sum += ptx::shfl_bfly(sum, 2);
      if (sharer == 0 && slot < slots) ptx::st_global_f32(scores + slot, sum);
    }
  }

 private:
  /// Returns true if the thread's `index`-th piece of 16 bytes is part of the row.
  static MHLA_DEVICE bool has_piece(std::uint32_t index, std::uint32_t sharer) {
    return Config::kSharers * index + sharer < D / 8;
  }

  static MHLA_DEVICE void load_key_sum(const float* key_sum, std::uint32_t sharer,
                                       float (&z)[Config::kPieces][8]) {
    MHLA_CUDA_UNROLL
    for (std::uint32_t index = 0; index < Config::kPieces; ++index) {
      MHLA_CUDA_UNROLL
      for (std::uint32_t i = 0; i < 8; ++i) {
        const std::uint32_t d = 8 * (Config::kSharers * index + sharer) + i;
        z[index][i] = has_piece(index, sharer) ? ptx::ld_global_nc_f32(key_sum + d) : 0;
      }
    }
  }

  /// Returns the thread's part of phi(q) . z.
  static MHLA_DEVICE float dot(const FeatureMap& map, const unsigned char* q, std::uint32_t sharer,
                               const float (&z)[Config::kPieces][8]) {
    ptx::Words4 pieces[Config::kPieces];
    MHLA_CUDA_UNROLL
    for (std::uint32_t index = 0; index < Config::kPieces; ++index) {
      if (has_piece(index, sharer)) {
        pieces[index] = ptx::ld_global_nc_v4(q + 16 * Config::kSharers * index);
      }
    }
    float sum = 0;
    MHLA_CUDA_UNROLL
    for (std::uint32_t index = 0; index < Config::kPieces; ++index) {
      if (!has_piece(index, sharer)) continue;
      apply<T>(map, pieces[index].x);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 4; ++i) {
        sum += ptx::low<T>(pieces[index].x[i]) * z[index][2 * i];
        sum += ptx::high<T>(pieces[index].x[i]) * z[index][2 * i + 1];
      }
    }
    return sum;
  }
  static MHLA_DEVICE float dot_floats(const FeatureMap& map, const unsigned char* q,
                                      std::uint32_t sharer, const float (&z)[Config::kPieces][8]) {
    ptx::Words4 halves[Config::kPieces][2];
    MHLA_CUDA_UNROLL
    for (std::uint32_t index = 0; index < Config::kPieces; ++index) {
      if (!has_piece(index, sharer)) continue;
      halves[index][0] = ptx::ld_global_nc_v4(q + 32 * Config::kSharers * index);
      halves[index][1] = ptx::ld_global_nc_v4(q + 32 * Config::kSharers * index + 16);
    }
    float sum = 0;
    map.with_float_formula([&](auto phi) {
      MHLA_CUDA_UNROLL
      for (std::uint32_t index = 0; index < Config::kPieces; ++index) {
        if (!has_piece(index, sharer)) continue;
        MHLA_CUDA_UNROLL
        for (int i = 0; i < 8; ++i)
          sum += phi(as_float(halves[index][i / 4].x[i % 4])) * z[index][i];
      }
    });
    return sum;
  }
};

}  // namespace mhla::cuda
