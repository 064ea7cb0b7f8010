#pragma once

/// \file
/// Gradients of the terms of a decaying mixing matrix, from the gradients dS~ of the mixtures of
/// decay_mixing_sm80.cuh. With the states U_r and their slopes V_r = dU_r / dlambda_r,
///
///     U_r(i + 1) = lambda_r U_r(i) + S_i     V_r(i + 1) = lambda_r V_r(i) + U_r(i)
///     P_r = sum_i <U_r(i), dS~_i>            Q_r = sum_i <V_r(i), dS~_i>
///
/// and likewise with z and dz~. Then da_r = lambda_r P_r and dlambda_r = a_r (P_r + lambda_r Q_r)
/// (decay_sums.cuh).
///
/// A thread has two numbers of S and dS~ in all blocks, and kTerms terms, with states, slopes and
/// sums in registers. A thread block adds the sums of its 256 numbers in pairs, as a part of P and
/// Q. Thread blocks are numbered by pair, then tile of numbers, then group of terms. The tile of
/// key sums is last. Shared memory: the sums of warps. Device memory: S and dS~ once per kTerms
/// terms.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/decay_mixing_sm80.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda {

struct DecayProductParameters {
  SummaryArray summaries;  ///< S [pairs, M, K], and z [pairs, M, width]
  SummaryArray gradients;  ///< dS~ and dz~; without `key_sum` there are none
  std::int32_t width = 0;  ///< numbers of z, an even number up to 256
  DecayArray terms;
  std::int32_t blocks;  ///< M
  float factor;         ///< multiplies products of S and dS~
  /// [matrices, parts, 2, R]: P and Q, of the pairs g, g + matrices, ... of matrix g
  float* parts;
  std::int64_t matrix_parts;  ///< numbers from a matrix's parts to the next
};

template <class T, int K, Precision P>
struct DecayProductsSm80 {
  static_assert(K % 2 == 0);
  using Params = DecayProductParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr std::int32_t kTerms = 4;
  static constexpr int kSharedBytes = 4 * kThreads / 32 * (2 * kTerms);
  static constexpr int kBlocksPerMultiprocessor = 5;
  static constexpr int kRegisters = 96;

  static constexpr unsigned kSummaryTiles = (K / 2 - 1) / kThreads + 1;

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * tiles(p) * term_groups(p);
  }
  /// Parts that each pair writes.
  static MHLA_HOST_DEVICE constexpr unsigned tiles(const Params& p) {
    return kSummaryTiles + (p.gradients.key_sum != nullptr ? 1 : 0);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const std::uint32_t groups = term_groups(p), tile = ptx::ctaid_x() / groups % tiles(p);
    const auto pair = static_cast<std::int32_t>(ptx::ctaid_x() / groups / tiles(p));
    const auto term = static_cast<std::int32_t>(ptx::ctaid_x() % groups) * kTerms;
    const bool key_sums = tile == kSummaryTiles;
    const std::uint32_t number = 2 * ((key_sums ? 0 : tile * kThreads) + ptx::tid_x());
    const std::int64_t x = p.summaries.first(pair, p.blocks), y = p.gradients.first(pair, p.blocks);
    Sums sums{};
    if (!key_sums && number < K) {
      add(p, pair, term, column(p.summaries, x * K + number), column(p.gradients, y * K + number),
          sums);
      MHLA_CUDA_UNROLL
      for (float& sum : sums.x) sum *= p.factor;
    } else if (key_sums && number < static_cast<std::uint32_t>(p.width)) {
      add(p, pair, term, FloatColumn{p.summaries.key_sum + x * p.width + number, p.width},
          FloatColumn{p.gradients.key_sum + y * p.width + number, p.width}, sums);
    }
    const std::int32_t item = pair / p.terms.matrices;
    const std::int64_t part = item * std::int64_t{tiles(p)} + tile;
    write(p.parts + pair % p.terms.matrices * p.matrix_parts + part * (2 * p.terms.count), term,
          p.terms.count, sums);
  }

 private:
  static constexpr std::int32_t kAhead = 4;

  /// P of kTerms terms, and Q.
  struct Sums {
    float x[2 * kTerms];
  };

  static MHLA_HOST_DEVICE constexpr unsigned term_groups(const Params& p) {
    return (static_cast<unsigned>(p.terms.count) - 1) / kTerms + 1;
  }
  static MHLA_DEVICE SummaryColumn<T, P> column(const SummaryArray& array, std::int64_t number) {
    return {array.high + 2 * number, array.low + 2 * number, 2 * K};
  }

  template <class Column>
  static MHLA_DEVICE void add(const Params& p, std::int32_t pair, std::int32_t term,
                              const Column& summaries, const Column& gradients, Sums& sums) {
    using Raw = typename Column::Raw;
    const float* const decays = p.terms.of(pair).row(1);
    float decay[kTerms], u[kTerms][2] = {}, v[kTerms][2] = {};
    MHLA_CUDA_UNROLL
    for (std::int32_t r = 0; r < kTerms; ++r) {
      decay[r] = term + r < p.terms.count ? ptx::ld_global_nc_f32(decays + term + r) : 0;
    }
    Raw s[kAhead], g[kAhead];
    const auto load = [&](std::int32_t first) {
      MHLA_CUDA_UNROLL
      for (std::int32_t j = 0; j < kAhead; ++j) {  // mixtures of the first block are 0
        const std::int32_t i = first + j;
        s[j] = i + 1 < p.blocks ? summaries.load(i) : Raw{};
        g[j] = i > 0 && i < p.blocks ? gradients.load(i) : Raw{};
      }
    };
    load(0);
    MHLA_CUDA_LOOP
    for (std::int32_t first = 0; first < p.blocks; first += kAhead) {
      float x[kAhead][2], y[kAhead][2];
      MHLA_CUDA_UNROLL
      for (std::int32_t j = 0; j < kAhead; ++j) {
        Column::numbers(s[j], x[j]);
        Column::numbers(g[j], y[j]);
      }
      load(first + kAhead);
      MHLA_CUDA_UNROLL
      for (std::int32_t j = 0; j < kAhead; ++j) {
        MHLA_CUDA_UNROLL
        for (std::int32_t r = 0; r < kTerms; ++r) {
          MHLA_CUDA_UNROLL
          for (std::int32_t n = 0; n < 2; ++n) {
            sums.x[r] += u[r][n] * y[j][n];
            sums.x[kTerms + r] += v[r][n] * y[j][n];
            v[r][n] = decay[r] * v[r][n] + u[r][n];
            u[r][n] = decay[r] * u[r][n] + x[j][n];
          }
        }
      }
    }
  }

  /// Adds the sums of all threads and writes those of terms from `term` on.
  static MHLA_DEVICE void write(float* to, std::int32_t term, std::int32_t terms, Sums& sums) {
    const std::uint32_t thread = ptx::tid_x(), warp = thread / 32, shared = ptx::shared_begin();
    MHLA_CUDA_UNROLL
    for (std::uint32_t n = 0; n < 2 * kTerms; ++n) {
      MHLA_CUDA_UNROLL
      for (std::uint32_t mask = 1; mask < 32; mask *= 2) {
        sums.x[n] += ptx::shfl_bfly(sums.x[n], mask);
      }
      if (thread % 32 == 0) ptx::st_shared_f32(shared + 4 * (2 * kTerms * warp + n), sums.x[n]);
    }
    ptx::bar_sync();
    if (thread >= 2 * kTerms) return;
    const auto r = term + static_cast<std::int32_t>(thread % kTerms);
    if (r >= terms) return;
    float sum = 0;
    MHLA_CUDA_UNROLL
    for (std::uint32_t w = 0; w < kThreads / 32; ++w) {
      sum += ptx::ld_shared_f32(shared + 4 * (2 * kTerms * w + thread));
    }
    ptx::st_global_f32(to + (thread < kTerms ? 0 : terms) + r, sum);
  }
};

}  // namespace mhla::cuda
