#pragma once

/// \file
/// What kernels are told: the parameters they share. Kernels are functors; operator()(params) runs
/// in every thread of grid(params, pairs) thread blocks, which are numbered along x. A pair is a
/// (batch item, head): pair = b * heads + h (tile/tokens.cuh).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/output_norm.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// How summaries and their mixtures are stored: rounded to the type of the tensors, or as that and
/// the rest, rounded too: x = high + low.
enum class Precision { kSingle, kPair };

/// What outputs are divided by (stage/normalizer.hpp).
enum class Denominator { kNone, kKeySum, kCrossQuery };

/// What S_b is multiplied by before it is rounded, the greatest power of two 2^-s with 2^s >= W.
/// Nothing is lost, and numbers of half stay finite where sums of W products would not:
///
///     |2^-s S_b|       <=  max |phi(k)| max |v|
///     |2^-s S~_i|      <=  max |phi(k)| max |v| sum_b |m_ib|
///
/// must stay below 65520, in each head. What rounding adds to half below 2^-14, 2^-25 to a number,
/// is 2^(s - 25) to S then.
constexpr float summary_scale(std::int32_t slots) {
  float scale = 1;
  while (scale * static_cast<float>(slots) > 1) scale /= 2;
  return scale;
}

/// 1 / x of a power of two.
MHLA_HOST_DEVICE constexpr float inverse_power(float x) {
  return __builtin_bit_cast(float, 0x7F000000u - __builtin_bit_cast(std::uint32_t, x));
}

/// Summaries of all blocks, or mixtures of them, times summary_scale.
struct SummaryArray {
  unsigned char* high;  ///< [pairs, M, D, E] in the type of the tensors
  unsigned char* low;   ///< the same of Precision::kPair
  float* key_sum;       ///< [pairs, M, D] as they are, or null where nothing reads them
  float scale = 1;      ///< summary_scale
  /// Blocks from a pair to the next, where there is room for more than the kernel has: in a
  /// stream's state, and on one of several ranks (launch/share.cuh); 0: M.
  std::int32_t room = 0;

  /// Where the M blocks of a pair begin.
  MHLA_HOST_DEVICE constexpr std::int64_t first(std::int64_t pair, std::int32_t blocks) const {
    return pair * (room != 0 ? room : blocks);
  }
  /// The blocks of each pair from `block` on, where `room` says how many there are.
  template <int D, int E>
  constexpr SummaryArray from(std::int64_t block) const {
    return {high + block * (2 * D * E), low + block * (2 * D * E),
            key_sum != nullptr ? key_sum + block * D : nullptr, scale, room};
  }
};

/// The mixing matrix [Mq, Mk], the same for all pairs.
struct MixingArray {
  const float* data;
  std::int64_t stride;      ///< numbers from one row to the next
  std::int32_t before = 0;  ///< of causal forms: blocks of the sequence before that of row 0
  std::int32_t lead = 0;    ///< columns before that of the first summary, which count as 0

  MHLA_HOST_DEVICE constexpr const float* row(std::int32_t i) const { return data + i * stride; }
  /// The column of row i's own block.
  MHLA_HOST_DEVICE constexpr std::int32_t own(std::int32_t i) const { return before + i; }
};

/// How sums become outputs: o = scale * n / (scale * d + eps), or scale * n without a denominator.
/// For a denominator of 0, each output is 0 if its n is 0, otherwise infinite.
struct Normalization {
  Denominator denominator;
  float scale;
  float eps;

  /// Factor of n; infinite for a denominator of 0.
  MHLA_HOST_DEVICE constexpr float factor(float d) const {
    return denominator == Denominator::kNone ? scale : scale / (scale * d + eps);
  }
  static MHLA_HOST_DEVICE constexpr bool infinite(float factor) {
    return (__builtin_bit_cast(std::uint32_t, factor) & 0x7FFFFFFFu) == 0x7F800000u;
  }
  /// n * factor, but 0 for n = 0 and an infinite factor.
  static MHLA_HOST_DEVICE constexpr float output(float n, float factor) {
    return n == 0 && infinite(factor) ? 0 : n * factor;
  }

  /// Factors of the sums in a thread's two rows, which are 1 / unit times n: settled.
  template <int kTiles>
  MHLA_DEVICE RowPair factors(float (&sums)[kTiles][4], RowPair d, float unit = 1) const {
    RowPair by{factor(d.x), factor(d.x_8)};
    settle(sums, by, unit);
    return by;
  }
  /// Multiplies finite factors by the unit. Replaces the sums of a row with an infinite factor by
  /// its outputs, and the factor by 1.
  template <int kTiles>
  static MHLA_DEVICE void settle(float (&sums)[kTiles][4], RowPair& factors, float unit = 1) {
    settle_row<0>(sums, factors.x, unit);
    settle_row<2>(sums, factors.x_8, unit);
  }

 private:
  template <int kFirst, int kTiles>
  static MHLA_DEVICE void settle_row(float (&sums)[kTiles][4], float& factor, float unit) {
    if (!infinite(factor)) {
      factor *= unit;
      return;
    }
    MHLA_CUDA_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      MHLA_CUDA_UNROLL
      for (int i = kFirst; i < kFirst + 2; ++i) sums[j][i] = output(sums[j][i] * unit, factor);
    }
    factor = 1;
  }
};

/// S_b and z_b of every block: summary_*.cuh.
struct SummaryParameters {
  ConstTokenTensor k;
  ConstTokenTensor v;
  TokenBlocks blocks;
  std::int32_t heads;
  FeatureMap map;
  SummaryArray out;
  RotaryAngles angles{};  ///< of keys, for kernels that turn them
};

/// A mixing matrix in the type of the tensors, of Precision::kPair as high + low: 0 where b does
/// not count.
struct RoundedMixing {
  unsigned char* high;  ///< [Mq, Mk], or null
  unsigned char* low;

  /// Numbers from one row of `columns` to the next: rows begin at multiples of 16 bytes.
  static MHLA_HOST_DEVICE constexpr std::int64_t stride(std::int32_t columns) {
    return (std::int64_t{columns} + 7) / 8 * 8;
  }
};

/// S~_i = sum_b m_ib S_b and the same of z: mixing_*.cuh.
struct MixingParameters {
  SummaryArray in;   ///< [pairs, columns - lead, ...]
  SummaryArray out;  ///< [pairs, rows, ...]
  MixingArray mixing;
  std::int32_t rows;     ///< Mq
  std::int32_t columns;  ///< Mk
  /// Only b before row i's own block, as the causal form wants it.
  bool earlier;
  RoundedMixing rounded{};  ///< of rounded_mixing.cuh, for a kernel that wants it

  /// A part of a matrix begins at a multiple of so many columns of it, and with `earlier` so many
  /// rows: then its tiles, and with them the bits of a row, are those of the whole matrix.
  static constexpr std::int32_t kTile = 64;

  /// b from here on do not count for row i.
  MHLA_HOST_DEVICE constexpr std::int32_t end(std::int32_t i) const {
    return i >= rows ? 0 : earlier && mixing.own(i) < columns ? mixing.own(i) : columns;
  }
};

/// s_bw = phi(q_bw) . z_b of every query, for Denominator::kCrossQuery: scores_sm80.cuh.
struct ScoreParameters {
  ConstTokenTensor q;
  TokenBlocks blocks;
  std::int32_t heads;
  FeatureMap map;
  const float* key_sum;  ///< [pairs, M, D]
  float* scores;         ///< [pairs, M, W]
};

/// o_t = phi(q_t)^T S~_i / den_t: read_out_*.cuh.
struct ReadOutParameters {
  ConstTokenTensor q;
  TokenTensor o;
  TokenBlocks blocks;
  std::int32_t heads;
  FeatureMap map;
  SummaryArray mixtures;
  Normalization normalization;
  const float* scores;  ///< [pairs, M, W] of kCrossQuery
  MixingArray mixing;   ///< for kCrossQuery
  OutputNorm norm{};
  RotaryAngles angles{};  ///< of queries, for kernels that turn them
};

/// The same with the part of the token's own block, over earlier tokens and itself:
/// causal_read_out_*.cuh. Blocks are runs of consecutive tokens.
struct CausalReadOutParameters {
  ConstTokenTensor q;
  ConstTokenTensor k;
  ConstTokenTensor v;
  TokenTensor o;
  TokenBlocks blocks;
  std::int32_t heads;
  FeatureMap query_map;
  FeatureMap key_map;
  SummaryArray mixtures;  ///< of earlier blocks
  Normalization normalization;
  MixingArray mixing;
  OutputNorm norm{};
  RotaryAngles query_angles{};  ///< for kernels that turn them
  RotaryAngles key_angles{};
};

/// o_t = sum_j m_(block of t)(block of j) phi(q_t).phi(k_j) v_j / den_t, without summaries:
/// quadratic_*.cuh, and with all of them in shared memory: fused_*.cuh.
struct DirectParameters {
  ConstTokenTensor q;
  ConstTokenTensor k;
  ConstTokenTensor v;
  TokenTensor o;
  TokenBlocks query_blocks;
  TokenBlocks key_blocks;
  std::int32_t heads;
  FeatureMap query_map;
  FeatureMap key_map;
  Normalization normalization;
  MixingArray mixing;
  float summary_scale = 1;  ///< of S in shared memory
};

}  // namespace mhla::cuda
