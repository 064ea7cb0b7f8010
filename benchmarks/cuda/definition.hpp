#pragma once

/// \file
/// Sampled output rows by the definition in double, from tensors of the device, and their
/// comparison with computed rows:
///
///     o_t = sum_j w_tj v_j / sum_j w_tj     w_tj = m_(block of t)(block of j) phi(q_t).phi(k_j)
///
/// phi(x) = max(x, 0) + 1e-6 and m > 0, so that all weights are positive. The bound of
/// tests/support/cuda/reference.hpp becomes, with u = 2^-8 of bfloat16 and g of the float sums,
///
///     |o^ - o| <= (e_n A + e_d |o|) / (1 - e_d) and once more u,     A = sum w|v| / sum w
///     e_n = (1 + u)^5 (1 + g) - 1     e_d = (1 + u)^3 (1 + g) - 1
///
/// This bound is for the worst case. Long sums of values of both signs are far smaller than A. The
/// norm of a row's error must therefore also be small relative to the norm of the row:
/// kLargestError.

#include <cstdint>
#include <functional>
#include <vector>

#include "cuda/cases.hpp"
#include "cuda/forms.hpp"

namespace mhla::cuda_bench {

/// Index of an output row.
struct Row {
  std::int64_t batch, head, token;
};

/// A row by the definition.
struct ExactRow {
  std::vector<double> value;  ///< [E]
  std::vector<double> bound;  ///< [E]
};

/// Result of the comparison of computed rows with the definition.
struct Deviation {
  double relative = 0;    ///< largest |o^ - o| / |o| of a row
  double over_bound = 0;  ///< largest error of a number over its bound
  std::int64_t not_finite = 0;

  bool acceptable() const;
};

/// Largest error, relative to the row's norm. Independent roundings to 8 bits of a few factors give
/// 0.003 to 0.005. A wrong block, tile or index gives 0.1 and more.
inline constexpr double kLargestError = 0.02;

/// Converts a bfloat16 to double.
double to_double(Bits bits);

/// Samples the first and the last token, and some in between, of some heads.
std::vector<Row> sample_rows(const Shape& shape);

/// Computes rows by the definition. q, k, v are on the device, mixing [M, M] on the host.
std::vector<ExactRow> exact_rows(const Case& c, const Call& call, const std::vector<float>& mixing,
                                 const std::vector<Row>& rows);

/// Adds a computed row to a comparison.
void compare(const ExactRow& exact, const std::vector<Bits>& computed, Deviation& deviation);

/// Computes one row by the definition.
/// \param q            [D]
/// \param k            [N, D]
/// \param v            [N, E]
/// \param coefficient  m of every key, 0 for keys that the query does not read
ExactRow exact_row(const std::vector<double>& q, const std::vector<Bits>& k,
                   const std::vector<Bits>& v, const std::vector<double>& coefficient);

/// Copies `count` numbers from the device, beginning at `data`.
std::vector<Bits> fetch(const Bits* data, std::int64_t count);

}  // namespace mhla::cuda_bench
