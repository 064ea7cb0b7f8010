#pragma once

/// \file
/// The median of some numbers.

#include <algorithm>
#include <vector>

namespace mhla::bench {

/// \param values  at least one; the mean of the two in the middle of an even number
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace mhla::bench
