#pragma once

/// \file
/// Mixtures of summaries by a mixing matrix of R decaying terms, for every pair:
///
///     S~_i = sum_r a_r lambda_r U_r(i)     U_r(i + 1) = lambda_r U_r(i) + S_i     U_r(0) = 0
///          = sum_{b < i} sum_r a_r lambda_r^(i-b) S_b     [D, E], rounded to T, or as high + low
///
/// and z~_i likewise [D], in float. With `later` the recurrence begins at the last block, and
/// mixtures are those of b > i: the adjoint. No matrix is stored, so M has no limit. A stream
/// continues the recurrence from U_r before its latest block (kernel/earlier_terms.cuh).
///
/// A thread has two numbers of a summary in all blocks. Its states U_r are floats in shared memory,
/// which no other thread reads. kAhead blocks are loaded together, one group ahead. For each term,
/// the states then pass all blocks of a group in registers. A thread block has 256 numbers of a
/// pair. Thread blocks are numbered by pair, then tile of numbers. The tile of key sums is last.
///
/// Numbers that are not finite in S_b give NaN in the same places of the mixtures that follow.
///
/// Shared memory: 1 KB per term. Device memory: S but for the last block once, S~ once, and the
/// states and the latest summary of a stream once.
/// Source of the recurrence: arXiv:2307.08621, here between blocks.

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/outputs.cuh"

namespace mhla::cuda {

struct DecayMixingParameters {
  SummaryArray in;   ///< [pairs, M, ...]; `high` is null if there are key sums alone
  SummaryArray out;  ///< [pairs, M, ...]
  DecayArray terms;
  std::int32_t blocks;  ///< M
  bool later;           ///< later blocks are mixed, not earlier ones
};

/// The same after a stream's earlier blocks.
struct ContinuedMixingParameters : DecayMixingParameters {
  const float* states;          ///< [pairs, R, D, E]: U_r before the latest block
  const float* key_sum_states;  ///< [pairs, R, D]
  SummaryArray latest;          ///< of the latest block
};

/// Two numbers of the summaries of a pair, in all blocks.
template <class T, Precision P>
struct SummaryColumn {
  static constexpr bool kPair = P == Precision::kPair;
  struct Raw {
    std::uint32_t high = 0, low = 0;
  };

  const unsigned char* high;  ///< of block 0
  const unsigned char* low;
  std::int64_t stride;  ///< bytes from one block to the next

  MHLA_DEVICE Raw load(std::int32_t block) const {
    Raw raw;
    raw.high = ptx::ld_global(high + block * stride);
    if constexpr (kPair) raw.low = ptx::ld_global(low + block * stride);
    return raw;
  }
  static MHLA_DEVICE void numbers(const Raw& raw, float (&x)[2]) {
    x[0] = ptx::low<T>(raw.high), x[1] = ptx::high<T>(raw.high);
    if constexpr (kPair) x[0] += ptx::low<T>(raw.low), x[1] += ptx::high<T>(raw.low);
  }
};

/// Two numbers of rows of floats of a pair, in all blocks.
struct FloatColumn {
  struct Raw {
    float x[2] = {0, 0};
  };

  const float* data;    ///< of block 0
  std::int64_t stride;  ///< numbers from one block to the next

  MHLA_DEVICE Raw load(std::int32_t block) const {
    const float* const from = data + block * stride;
    return {{ptx::ld_global_f32(from), ptx::ld_global_f32(from + 1)}};
  }
  static MHLA_DEVICE void numbers(const Raw& raw, float (&x)[2]) {
    x[0] = raw.x[0], x[1] = raw.x[1];
  }
};

/// \tparam kContinues  the recurrence continues that of a stream
template <class T, int D, int E, Precision P, bool kContinues = false>
struct DecayMixingSm80 {
  static_assert(D % 2 == 0 && E % 2 == 0);
  using Params = std::conditional_t<kContinues, ContinuedMixingParameters, DecayMixingParameters>;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 8 * kThreads * DecayArray::kMost;
  static constexpr int kBlocksPerMultiprocessor = 4;
  static constexpr int kRegisters = 96;

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * tiles(p);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    ptx::griddepcontrol_wait();
    ptx::griddepcontrol_launch_dependents();
    const std::uint32_t pair = ptx::ctaid_x() / tiles(p), tile = ptx::ctaid_x() % tiles(p);
    const bool key_sums = tile == summary_tiles(p);
    const std::uint32_t number = 2 * ((key_sums ? 0 : tile * kThreads) + ptx::tid_x());
    const std::int64_t first = p.in.first(pair, p.blocks), first_out = p.out.first(pair, p.blocks);
    if (key_sums) {
      if (number >= D) return;
      float* const to = p.out.key_sum + first_out * D + number;
      scan(p, pair, FloatColumn{p.in.key_sum + first * D + number, D},
           key_sum_begin(p, pair, number), [&](std::int32_t block, float x, float y) {
             ptx::st_global_f32(to + std::int64_t{block} * D, x);
             ptx::st_global_f32(to + std::int64_t{block} * D + 1, y);
           });
      return;
    }
    if (number >= D * E) return;
    const std::int64_t from = (first * (D * E) + number) * 2,
                       to = (first_out * (D * E) + number) * 2;
    scan(p, pair, SummaryColumn<T, P>{p.in.high + from, p.in.low + from, 2 * D * E},
         summary_begin(p, pair, number), [&](std::int32_t block, float x, float y) {
           const std::int64_t at = to + std::int64_t{block} * (2 * D * E);
           const Parts parts = parts_of<T>(x, y);
           ptx::st_global(p.out.high + at, parts.high);
           if constexpr (P == Precision::kPair) ptx::st_global(p.out.low + at, parts.low);
         });
  }

 private:
  static constexpr std::int32_t kAhead = 8;

  static MHLA_HOST_DEVICE constexpr unsigned summary_tiles(const Params& p) {
    return p.in.high != nullptr ? (D * E / 2 - 1) / kThreads + 1 : 0;
  }
  static MHLA_HOST_DEVICE constexpr unsigned tiles(const Params& p) {
    static_assert(D <= 2 * kThreads);
    return summary_tiles(p) + (p.out.key_sum != nullptr ? 1 : 0);
  }

  /// States before the first block: 0.
  struct Zero {
    MHLA_DEVICE float state(std::int32_t, float, std::uint32_t) const { return 0; }
  };
  /// States after the latest block of a stream.
  struct Continued {
    const float* states;  ///< of the first term, before the latest block
    std::int64_t stride;  ///< numbers from one term to the next
    float latest[2];      ///< numbers of the latest block

    MHLA_DEVICE float state(std::int32_t r, float decay, std::uint32_t n) const {
      return decay * ptx::ld_global_f32(states + r * stride + n) + latest[n];
    }
  };
  template <class Column>
  static MHLA_DEVICE Continued continued(const Params& p, std::uint32_t pair, const float* states,
                                         std::int64_t numbers, std::uint32_t number,
                                         const Column& latest) {
    const std::int64_t first = std::int64_t{pair} * p.terms.count;
    Continued begin{states + first * numbers + number, numbers, {}};
    Column::numbers(latest.load(0), begin.latest);
    return begin;
  }
  static MHLA_DEVICE auto summary_begin(const Params& p, std::uint32_t pair, std::uint32_t number) {
    if constexpr (kContinues) {
      const std::int64_t at = (p.latest.first(pair, 1) * (D * E) + number) * 2;
      return continued(p, pair, p.states, D * E, number,
                       SummaryColumn<T, P>{p.latest.high + at, p.latest.low + at, 0});
    } else {
      return Zero{};
    }
  }
  static MHLA_DEVICE auto key_sum_begin(const Params& p, std::uint32_t pair, std::uint32_t number) {
    if constexpr (kContinues) {
      const std::int64_t at = p.latest.first(pair, 1) * D + number;
      return continued(p, pair, p.key_sum_states, D, number, FloatColumn{p.latest.key_sum + at, 0});
    } else {
      return Zero{};
    }
  }

  /// Mixes two numbers of all blocks.
  /// \param begin  states before the first block: state(term, decay, number)
  /// \param store  store(block, x, y)
  template <class Column, class Begin, class Store>
  static MHLA_DEVICE void scan(const Params& p, std::uint32_t pair, const Column& column,
                               const Begin& begin, const Store& store) {
    const MixingArray terms = p.terms.of(static_cast<std::int32_t>(pair));
    const auto place = [&](std::int32_t step) { return p.later ? p.blocks - 1 - step : step; };
    typename Column::Raw ahead[kAhead];
    const auto load = [&](std::int32_t first) {
      MHLA_CUDA_UNROLL
      for (std::int32_t j = 0; j < kAhead; ++j) {  // nothing follows the last block
        ahead[j] =
            first + j + 1 < p.blocks ? column.load(place(first + j)) : typename Column::Raw{};
      }
    };
    load(0);
    MHLA_CUDA_LOOP
    for (std::int32_t first = 0; first < p.blocks; first += kAhead) {
      float x[kAhead][2], sums[kAhead][2] = {};
      MHLA_CUDA_UNROLL
      for (std::int32_t j = 0; j < kAhead; ++j) Column::numbers(ahead[j], x[j]);
      load(first + kAhead);
      MHLA_CUDA_LOOP
      for (std::int32_t r = 0; r < p.terms.count; ++r) {
        const float decay = ptx::ld_global_nc_f32(terms.row(1) + r);
        const float weight = ptx::ld_global_nc_f32(terms.row(0) + r) * decay;
        const std::uint32_t state =
            ptx::shared_begin() + 4 * (2 * kThreads * static_cast<std::uint32_t>(r) + ptx::tid_x());
        MHLA_CUDA_UNROLL
        for (std::uint32_t n = 0; n < 2; ++n) {
          float u =
              first > 0 ? ptx::ld_shared_f32(state + 4 * kThreads * n) : begin.state(r, decay, n);
          MHLA_CUDA_UNROLL
          for (std::int32_t j = 0; j < kAhead; ++j) {
            sums[j][n] += weight * u;
            u = decay * u + x[j][n];
          }
          ptx::st_shared_f32(state + 4 * kThreads * n, u);
        }
      }
      MHLA_CUDA_UNROLL
      for (std::int32_t j = 0; j < kAhead; ++j) {
        if (first + j < p.blocks) store(place(first + j), sums[j][0], sums[j][1]);
      }
    }
  }
};

}  // namespace mhla::cuda
