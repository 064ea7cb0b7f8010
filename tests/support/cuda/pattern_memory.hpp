#pragma once

/// \file
/// The bits of a mixing matrix's pattern in memory of their own.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mhla/cuda/attention/pattern.cuh"

namespace cuda_test {

class PatternMemory {
 public:
  /// \param pattern  without rows all coefficients, and data() is null
  explicit PatternMemory(const mhla::Pattern& pattern)
      : words_(pattern.rows() == 0 ? std::vector<std::uint32_t>{}
                                   : mhla::cuda::pattern_bits(pattern)) {}

  const std::uint32_t* data() const { return words_.empty() ? nullptr : words_.data(); }
  std::size_t bytes() const { return 4 * words_.size(); }

 private:
  std::vector<std::uint32_t> words_;
};

}  // namespace cuda_test
