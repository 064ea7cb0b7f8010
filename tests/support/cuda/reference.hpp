#pragma once

/// \file
/// Expected outputs of a form on a device: the CPU's form in double, and the bounds of rounding
/// errors.
///
/// Let u be the unit roundoff of the tensors' type T and eta its least normal number. Rounding
/// changes x by at most u max(|x|, eta) <= u (|x| + eta). A term of a numerator is rounded to T at
/// most five times before it is added: phi(q), phi(k), m, the summary and its mixture, or the
/// weight. (A coefficient with a high and a low part is rounded less.) A term of a denominator is
/// rounded three times: phi(q), phi(k), the weight. With
///
///     phi+ = |phi| + eta     S+ = sum phi(k)+ |v| + eta     S~+ = sum |m| S+ + eta
///     A+ = sum phi(q)+ S~+ + eta sum |v|     (last term: weights)     Z+ likewise with v = 1
///
/// and gamma_n for the n float additions and products of the longest chain,
///
///     |n^ - n| <= e_n A+,   e_n = (1 + u)^5 (1 + gamma_n) - 1, ^7 if features rotate
///     |d^ - d| <= e_d Z+,   e_d = (1 + u)^3 (1 + gamma_n) - 1
///     |o^ - o| <= s (e_n A+ + e_d |o| Z+) / (|den| - s e_d Z+),  then rounded once more.
///
/// Floats are split into parts (tile/factors.cuh), which changes them by 2^-17 |x|, and a product
/// leaves out 2^-16 |x y|. A term of a numerator passes six splits, of phi(q), phi(k), v, m, the
/// summary and its mixture, or of a weight, and three products. The exponent of elu + 1 is rounded:
/// phi has a relative error of 1.5 |x| 2^-24 + 2^-22, at most 2^-17 while phi is normal. With u =
/// 2^-16 and eta = 2^-118, e_n has (1 + u)^7. A denominator has the splits of phi(q) and phi(k) and
/// one product: (1 + u)^3. Outputs are then rounded to float.
///
/// Rotated features are rounded once more, and may be smaller than the terms that they sum. A+
/// therefore uses |x cos t| + |y sin t| + eta, with x and y of the pair plus eta.
///
/// The norm of a row divides by r = sqrt(mean of o^2 + eps). Let off bound the error of that mean,
/// including the roundings of n additions. A normalised output o / r then has an error of
///
///     (e_o + |o| (1 - sqrt(1 - off / r^2))) / (r sqrt(1 - off / r^2)),
///
/// plus gamma_4 and 2^-22 for the approximate root, and 2^-24 (2 |g| + 8) if silu(g) gates it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

#include "mhla/core/matrix.hpp"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/policy/grid_partition.hpp"
#include "support/cuda/pattern_memory.hpp"
#include "support/cuda/prefixed.hpp"
#include "support/cuda/problem.hpp"

namespace cuda_test {

using Numbers = mhla::Matrix<double>;

/// A feature map of one's own and its derivative, or empty.
struct ExactMap {
  std::function<double(double)> function, derivative;

  explicit operator bool() const { return function != nullptr; }
};

/// Options of a call, without tensors.
struct CallOptions {
  mhla::GridShape tokens, block;          ///< of the queries
  mhla::GridShape key_tokens, key_block;  ///< of the keys
  mhla::cuda::Operator op;
  bool causal;
  int prefix = 0, key_prefix = 0;           ///< tokens before those
  mhla::Pattern pattern{};                  ///< of mixing matrices; without rows all coefficients
  ExactMap own_query_map{}, own_key_map{};  ///< in place of the operator's

  PrefixedGrid queries() const { return {prefix, tokens, block}; }
  PrefixedGrid keys() const { return {key_prefix, key_tokens, key_block}; }
  std::int64_t query_blocks() const { return queries().blocks(); }
  std::int64_t key_blocks() const { return keys().blocks(); }
  /// Slots of a block of the form on the device.
  std::int32_t slots() const { return slots_of(prefix, block); }
  std::int32_t key_slots() const { return slots_of(key_prefix, key_block); }
  std::int64_t coefficients() const { return query_blocks() * key_blocks(); }  ///< per matrix
  bool decays() const { return op.decay_terms > 0; }
  bool has(mhla::Index i, mhla::Index b) const {
    return pattern.rows() == 0 || pattern.holds(i, b);
  }
  /// Numbers of a matrix: its coefficients, or its decaying terms [2,R].
  std::int64_t rows() const { return decays() ? 2 : query_blocks(); }
  std::int64_t columns() const { return decays() ? op.decay_terms : key_blocks(); }
  std::int64_t numbers() const { return rows() * columns(); }
  /// Describes the mixing matrices of `heads` heads at `data`, with gaps between them.
  mhla::cuda::MixingArray matrices(const float* data, int heads) const {
    using mhla::cuda::Matrices;
    mhla::cuda::MixingArray array{data, columns()};
    if (op.matrices != Matrices::kShared) array.head_stride = numbers() + 3;
    if (op.matrices == Matrices::kPerItemAndHead) array.item_stride = heads * array.head_stride + 5;
    return array;
  }
  /// Numbers in memory from the first matrix to the end of the last.
  std::int64_t matrix_numbers(int batch, int heads) const {
    const mhla::cuda::MixingArray last = matrices(nullptr, heads);
    return (batch - 1) * last.item_stride + (heads - 1) * last.head_stride + numbers();
  }

 private:
  static std::int32_t slots_of(int before, const mhla::GridShape& w) {
    return std::max(before, static_cast<int>(w[0] * w[1] * w[2]));
  }
};

/// Tensors and mixing matrices of a call.
template <class T>
struct Call : CallOptions {
  Tensor<T> q, k, v, o;
  Array<float> mixing;  ///< [Mq,Mk] or [2,R] each, as matrices() describes
  /// Angles of the rotary embedding, cosine and sine of each pair, [Nq,D] and [Nk,D], or of size 0.
  /// Size 0 of the keys' alone means that they have the queries' angles.
  Array<float> query_angles{0}, key_angles{0};
  Array<float> gain{0};                             ///< [E]; of size 0 outputs are not normalised
  Tensor<T> gate{0, 0, 0, 0, {}};                   ///< [B,Nq,H,E], or of size 0
  Array<unsigned char> query_keep{0}, key_keep{0};  ///< masks [B,N], or of size 0
  PatternMemory bits{{}};                           ///< of `pattern`

  mhla::cuda::MixingArray mixing_array() const {
    mhla::cuda::MixingArray array = matrices(mixing.data(), q.heads());
    array.strips = bits.data();
    return array;
  }
  /// Place of a head's matrix in `mixing`.
  std::int64_t matrix_of(int b, int h) const {
    const mhla::cuda::MixingArray all = mixing_array();
    return b * all.item_stride + h * all.head_stride;
  }
  /// Calls f(m, matrix) for every coefficient, or term, of every matrix.
  template <class F>
  void each_coefficient(F&& f) {
    const mhla::cuda::MixingArray all = mixing_array();
    for (int b = 0; b < (all.item_stride != 0 ? q.batches() : 1); ++b) {
      for (int h = 0; h < (all.head_stride != 0 ? q.heads() : 1); ++h) {
        for (std::int64_t i = 0; i < numbers(); ++i) {
          f(mixing[matrix_of(b, h) + i], b * q.heads() + h);
        }
      }
    }
  }
  bool rotary() const { return query_angles.size() > 0; }
  bool normed() const { return gain.size() > 0; }
  bool gated() const { return gate.tokens() > 0; }
  /// Masks of a batch item.
  mhla::Mask query_mask(int b) const { return mask(query_keep, b, q.tokens()); }
  mhla::Mask key_mask(int b) const { return mask(key_keep, b, k.tokens()); }
  const Array<float>& angles_of_keys() const {
    return key_angles.size() > 0 ? key_angles : query_angles;
  }

 private:
  static mhla::Mask mask(const Array<unsigned char>& keep, int b, int tokens) {
    if (keep.size() == 0) return {};
    return {keep.data() + std::int64_t{b} * tokens, tokens};
  }
};

/// Rounding of the terms of sums (reference.hpp).
template <class T>
struct Rounding {
  double u = kRoundoff<T>;
  double eta = std::ldexp(1.0, Format<T>::kLowest);
  int numerator = 5, denominator = 3, gradient = 6;  // roundings of a term
};
template <>
struct Rounding<float> {
  double u = 0x1p-16, eta = 0x1p-118;
  int numerator = 7, denominator = 3, gradient = 7;
};
/// The mixing matrix of a head.  // [Mq,Mk]
template <class T>
Numbers mixing_matrix(const Call<T>& call, int b, int h) {
  const std::int64_t first = call.matrix_of(b, h);
  Numbers m = Numbers::Zero(call.query_blocks(), call.key_blocks());
  if (!call.decays()) {
    for (Eigen::Index i = 0; i < m.size(); ++i) m.data()[i] = call.mixing.value(first + i);
    return m;
  }
  for (Eigen::Index i = 0; i < m.rows(); ++i) {
    for (Eigen::Index k = 0; k <= i; ++k) {
      for (std::int64_t r = 0; r < call.columns(); ++r) {
        m(i, k) += call.mixing.value(first + r) *
                   std::pow(call.mixing.value(first + call.columns() + r), i - k);
      }
    }
  }
  return m;
}

/// Outputs of one (batch item, head), and their error bounds.
struct Expected {
  Numbers o;      ///< [N,E]
  Numbers bound;  ///< [N,E]
};

/// Outputs of a call, finally or before norm and gate.
enum class Outputs { kFinal, kBeforeNorm };

/// \param chain  consecutive float additions and products that lead to an output
template <class T>
Expected expected(const Call<T>& call, int b, int h, double chain, Outputs which = Outputs::kFinal);

}  // namespace cuda_test
