#pragma once

/// \file
/// The median of some numbers.

#include <algorithm>
#include <vector>

namespace mhla::bench {

/// Median of `values`; the mean of the two middle values if their number is even.
/// \param values  at least one
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace mhla::bench
