#pragma once

/// \file
/// Sampled output rows by the definition in double, from the tensors of the device, and how far
/// computed ones are off.
///
///     o_t = sum_j w_tj v_j / sum_j w_tj     w_tj = m_(block of t)(block of j) phi(q_t).phi(k_j)
///
/// phi(x) = max(x, 0) + 1e-6 and m > 0, so all weights are positive and the bound of
/// tests/support/cuda/reference.hpp becomes, with u = 2^-8 of bfloat16 and g of the float sums,
///
///     |o^ - o| <= (e_n A + e_d |o|) / (1 - e_d) and once more u,     A = sum w|v| / sum w
///     e_n = (1 + u)^5 (1 + g) - 1     e_d = (1 + u)^3 (1 + g) - 1
///
/// That bound is of the worst case; long sums of values of both signs are far smaller than A. So
/// the norm of a row's error must be small beside the norm of the row, too: kLargestError.

#include <cstdint>
#include <functional>
#include <vector>

#include "cuda/cases.hpp"
#include "cuda/forms.hpp"

namespace mhla::cuda_bench {

/// Which output row.
struct Row {
  std::int64_t batch, head, token;
};

/// A row by the definition.
struct ExactRow {
  std::vector<double> value;  ///< [E]
  std::vector<double> bound;  ///< [E]
};

/// How computed rows compare with the definition.
struct Deviation {
  double relative = 0;    ///< largest |o^ - o| / |o| of a row
  double over_bound = 0;  ///< largest error of a number over its bound
  std::int64_t not_finite = 0;

  bool acceptable() const;
};

/// Of a row's norm. Independent roundings to 8 bits of a few factors come to 0.003 to 0.005; a
/// wrong block, tile or index to 0.1 and more.
inline constexpr double kLargestError = 0.02;

/// A number of type bfloat16 as a double.
double to_double(Bits bits);

/// The first and the last token, and some in between, of some heads.
std::vector<Row> sample_rows(const Shape& shape);

/// Rows by the definition; q, k, v are of the device, mixing [M, M] of the host.
std::vector<ExactRow> exact_rows(const Case& c, const Call& call, const std::vector<float>& mixing,
                                 const std::vector<Row>& rows);

/// Adds a computed row to a comparison.
void compare(const ExactRow& exact, const std::vector<Bits>& computed, Deviation& deviation);

/// One row of the definition. \param q  [D] \param k  [N, D] \param v  [N, E] \param coefficient
/// m of every key, 0 for those that the query does not read
ExactRow exact_row(const std::vector<double>& q, const std::vector<Bits>& k,
                   const std::vector<Bits>& v, const std::vector<double>& coefficient);

/// Numbers of the device, `count` from `data` on.
std::vector<Bits> fetch(const Bits* data, std::int64_t count);

}  // namespace mhla::cuda_bench
