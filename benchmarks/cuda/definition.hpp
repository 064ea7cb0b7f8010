#pragma once

/// \file
/// Sampled output rows by the definition of the CPU's benchmarks (support/definition.hpp), from
/// tensors of the device, and their comparison with computed rows.
///
/// phi(x) = max(x, 0) + 1e-6 and m > 0, so that all weights are positive. Factors are rounded to
/// bfloat16 up to five times (tests/support/cuda/reference.hpp). With u = 2^-8 and g of the float
/// sums, weights and weighted values have a relative error of at most (1 + u)^5 (1 + g) - 1.
///
/// This bound is for the worst case. Long sums of values of both signs are far smaller than the sum
/// of their absolute values. The norm of a row's error must therefore also be small relative to the
/// norm of the row: kLargestError.

#include <cstdint>
#include <vector>

#include "cuda/cases.hpp"
#include "cuda/forms.hpp"
#include "support/definition.hpp"

namespace mhla::cuda_bench {

/// Index of an output row.
struct Row {
  std::int64_t batch, head, token;
};

using bench::ExactRow;

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

/// Samples the first and the last token, and some in between, of some heads.
std::vector<Row> sample_rows(const Shape& shape);

/// Computes rows by the definition. q, k, v are on the device, mixing [M, M] on the host.
std::vector<ExactRow> exact_rows(const Case& c, const Call& call, const std::vector<float>& mixing,
                                 const std::vector<Row>& rows);

/// Adds a computed row to a comparison.
void compare(const ExactRow& exact, const std::vector<Bits>& computed, Deviation& deviation);

/// Copies `count` numbers from the device, beginning at `data`.
std::vector<Bits> fetch(const Bits* data, std::int64_t count);

}  // namespace mhla::cuda_bench
