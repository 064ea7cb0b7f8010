#pragma once

/// \file
/// Parameters that kernels share. Kernels are functors: operator()(params) runs in every thread of
/// grid(params, pairs) thread blocks, which are numbered along x. A pair is a (batch item, head):
/// pair = b * heads + h (tile/tokens.cuh).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/output_norm.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// Storage of summaries and their mixtures. kSingle rounds x to the type of the tensors. kPair
/// stores x = high + low, with high and the remainder rounded each.
enum class Precision { kSingle, kPair };

/// Choice of the denominators of outputs (stage/normalizer.hpp).
enum class Denominator { kNone, kKeySum, kCrossQuery };

/// Mixing matrices of a batch: one, one per head, or one per item and head.
enum class Matrices { kShared, kPerHead, kPerItemAndHead };

/// Factor of S_b before it is rounded: the greatest power of two 2^-s with 2^s >= W. It loses no
/// bits, and half stays finite where sums of W products would overflow:
///
///     |2^-s S_b|       <=  max |phi(k)| max |v|
///     |2^-s S~_i|      <=  max |phi(k)| max |v| sum_b |m_ib|
///
/// must stay below 65520, in each head. Below 2^-14 half rounds with an error of 2^-25, which is an
/// error of 2^(s - 25) in S.
constexpr float summary_scale(std::int32_t slots) {
  float scale = 1;
  while (scale * static_cast<float>(slots) > 1) scale /= 2;
  return scale;
}

/// Returns 1 / x for a power of two x.
MHLA_HOST_DEVICE constexpr float inverse_power(float x) {
  return __builtin_bit_cast(float, 0x7F000000u - __builtin_bit_cast(std::uint32_t, x));
}

/// Summaries of all blocks, or their mixtures, times summary_scale.
struct SummaryArray {
  unsigned char* high;  ///< [pairs, M, D, E] in the type of the tensors
  unsigned char* low;   ///< low parts, for Precision::kPair
  float* key_sum;       ///< [pairs, M, D], not scaled, or null if nothing reads them
  float scale = 1;      ///< summary_scale
  /// Blocks from one pair to the next, if the array has more blocks than the kernel reads; 0 means
  /// M. A stream's state has more, and so has a rank of several (launch/share.cuh).
  std::int32_t capacity = 0;

  /// Index of the first block of a pair.
  MHLA_HOST_DEVICE constexpr std::int64_t first(std::int64_t pair, std::int32_t blocks) const {
    return pair * (capacity != 0 ? capacity : blocks);
  }
  /// The blocks of each pair from `block` on. `capacity` must not be 0.
  template <int D, int E>
  constexpr SummaryArray from(std::int64_t block) const {
    return {high + block * (2 * D * E), low + block * (2 * D * E),
            key_sum != nullptr ? key_sum + block * D : nullptr, scale, capacity};
  }
};

/// A mixing matrix [Mq, Mk] per pair, or one that pairs share.
struct MixingArray {
  const float* data;
  std::int64_t stride;      ///< elements from one row to the next
  std::int32_t before = 0;  ///< causal forms: blocks of the sequence before that of row 0
  std::int32_t lead = 0;    ///< columns before the first summary's, which count as 0
  /// Elements from an item's matrices, and from a head's, to the next; 0 if they share matrices.
  std::int64_t item_stride = 0;
  std::int64_t head_stride = 0;
  /// Strips of the pattern of all matrices (pattern_bits.cuh), or null. Coefficients outside of the
  /// pattern are 0.
  const std::uint32_t* strips = nullptr;

  /// The matrix of a pair.
  MHLA_HOST_DEVICE constexpr MixingArray of(BatchHead pair) const {
    MixingArray matrix = *this;
    matrix.data += pair.batch * item_stride + pair.head * head_stride;
    return matrix;
  }
  /// The matrices from row i and column b on. A part has no pattern.
  constexpr MixingArray from(std::int32_t i, std::int32_t b = 0) const {
    MixingArray part = *this;
    if (i != 0 || b != 0) part.strips = nullptr;
    part.data += i * stride + b;
    return part;
  }
  MHLA_HOST_DEVICE constexpr const float* row(std::int32_t i) const { return data + i * stride; }
  /// Column of the block of row i.
  MHLA_HOST_DEVICE constexpr std::int32_t diagonal(std::int32_t i) const { return before + i; }
};

/// The matrix of a pair.
/// \param matrices  1, heads or pairs
MHLA_HOST_DEVICE constexpr MixingArray matrix_of(const MixingArray& all, std::int32_t matrices,
                                                 const Divisor& heads, std::int32_t pair) {
  if (matrices == 1) return all;
  const std::int32_t batch = heads.quotient(pair);
  return all.of({batch, pair - batch * heads.value()});
}

/// The terms of a decaying mixing matrix, m_ib = sum_r a_r lambda_r^(i-b) for b <= i. An array
/// [2, R] has weights a and decays lambda. Heads share it, or have arrays of their own.
struct DecayArray {
  /// Largest R. The kernel that mixes keeps R states per thread in shared memory.
  static constexpr std::int32_t kMost = 32;

  MixingArray terms;
  std::int32_t count;  ///< R
  Divisor heads{};
  std::int32_t matrices = 1;  ///< number of arrays: 1, heads or pairs

  /// The terms of a pair.
  MHLA_HOST_DEVICE constexpr MixingArray of(std::int32_t pair) const {
    return matrix_of(terms, matrices, heads, pair);
  }
};

/// Normalisation of sums: o = scale * n / (scale * d + eps), or scale * n without a denominator. If
/// the denominator is 0, an output is 0 if its n is 0, and otherwise infinite.
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

  /// Returns the factors of the sums in a thread's two rows, settled. Sums are n / unit.
  template <int kTiles>
  MHLA_DEVICE RowPair factors(float (&sums)[kTiles][4], RowPair d, float unit = 1) const {
    RowPair by{factor(d.x), factor(d.x_8)};
    settle(sums, by, unit);
    return by;
  }
  /// Settles rows. A finite factor is multiplied by the unit. In a row with an infinite factor the
  /// outputs replace the sums, and the factor is 1.
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

/// Parameters of summary_*.cuh: S_b and z_b of every block.
struct SummaryParameters {
  ConstTokenTensor k;
  ConstTokenTensor v;
  TokenBlocks blocks;
  std::int32_t heads;
  FeatureMap map;
  SummaryArray out;
  RotaryAngles angles{};  ///< of keys, if the kernel rotates them
};

/// Mixing matrix in the type of the tensors (for Precision::kPair as high + low), with 0 for
/// coefficients that a row does not use.
struct RoundedMixing {
  unsigned char* high;  ///< [matrices, Mq, Mk], or null
  unsigned char* low;

  /// Elements from one row of `columns` to the next. Rows are aligned to 16 bytes.
  static MHLA_HOST_DEVICE constexpr std::int64_t stride(std::int32_t columns) {
    return (std::int64_t{columns} + 7) / 8 * 8;
  }
};

/// Parameters of mixing_*.cuh: S~_i = sum_b m_ib S_b, and z~ likewise.
struct MixingParameters {
  SummaryArray in;   ///< [pairs, columns - lead, ...]
  SummaryArray out;  ///< [pairs, rows, ...]
  MixingArray mixing;
  std::int32_t rows;     ///< Mq
  std::int32_t columns;  ///< Mk
  /// Only b before the block of row i are used, as in the causal form.
  bool earlier;
  RoundedMixing rounded{};  ///< of rounded_mixing.cuh, if the kernel reads it
  Divisor heads{};
  std::int32_t matrices = 1;  ///< number of matrices: 1, heads or pairs

  /// The matrix of a pair.
  MHLA_HOST_DEVICE constexpr MixingArray matrix(std::int32_t pair) const {
    return matrix_of(mixing, matrices, heads, pair);
  }

  /// Alignment of a part of a matrix, in columns, and with `earlier` in rows. Its tiles are then
  /// those of the whole matrix, and so are the bits of a row.
  static constexpr std::int32_t kTile = 64;

  /// Returns the first b that row i does not use.
  MHLA_HOST_DEVICE constexpr std::int32_t end(std::int32_t i) const {
    return i >= rows ? 0 : earlier && mixing.diagonal(i) < columns ? mixing.diagonal(i) : columns;
  }
};

/// Parameters of scores_sm80.cuh: s_bw = phi(q_bw) . z_b of every query, for
/// Denominator::kCrossQuery.
struct ScoreParameters {
  ConstTokenTensor q;
  TokenBlocks blocks;
  std::int32_t heads;
  FeatureMap map;
  const float* key_sum;  ///< [pairs, M, D]
  float* scores;         ///< [pairs, M, W]
};

/// Parameters of read_out_*.cuh: o_t = phi(q_t)^T S~_i / den_t.
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
  RotaryAngles angles{};  ///< of queries, if the kernel rotates them
};

/// Parameters of causal_read_out_*.cuh, which add the token's own block, over earlier tokens and
/// itself. Blocks are runs of consecutive tokens.
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
  RotaryAngles query_angles{};  ///< if the kernel rotates features
  RotaryAngles key_angles{};
};

/// Parameters of quadratic_*.cuh and fused_*.cuh, o_t = sum_j m_(block of t)(block of j)
/// phi(q_t).phi(k_j) v_j / den_t. They have no summaries, or all of them in shared memory.
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
  float summary_scale = 1;    ///< of S in shared memory
  std::int32_t matrices = 1;  ///< number of matrices: 1, heads or pairs
};

}  // namespace mhla::cuda
