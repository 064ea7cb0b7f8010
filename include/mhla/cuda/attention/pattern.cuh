#pragma once

/// \file
/// The pattern of banded and sparse mixing matrices for calls on a device.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "mhla/core/error.hpp"
#include "mhla/cuda/kernel/pattern_bits.cuh"
#include "mhla/policy/pattern.hpp"

namespace mhla::cuda {

/// Returns the pattern as MixingMatrices::pattern has it, after a copy to device memory.
/// Cost: Mq Mk / 8 bytes.
/// \throws shape_error unless it has 1 to 2^31 - 1 rows and columns.
std::vector<std::uint32_t> pattern_bits(const Pattern& pattern);

// ------------------------------------------------------------------------------------------------

inline std::vector<std::uint32_t> pattern_bits(const Pattern& pattern) {
  constexpr Index kLimit = std::numeric_limits<std::int32_t>::max();
  const auto fits = [](Index size) { return size >= 1 && size <= kLimit; };
  if (!fits(pattern.rows()) || !fits(pattern.cols())) {
    mhla::detail::fail_shape(
        "cuda::pattern_bits", "pattern",
        "has shape " + mhla::detail::shape_text({pattern.rows(), pattern.cols()}),
        "1 to 2^31 - 1 rows and columns");
  }
  const PatternBits bits{static_cast<std::int32_t>(pattern.rows()),
                         static_cast<std::int32_t>(pattern.cols())};
  std::vector<std::uint32_t> words(static_cast<std::size_t>(bits.size()));
  const auto set = [&words](std::int64_t begin, Index row, std::int64_t row_words, Index bit) {
    words[static_cast<std::size_t>(begin + row * row_words + bit / 32)] |= 1u << bit % 32;
  };
  constexpr Index kRows = PatternBits::kRows, kColumns = PatternBits::kColumns;
  for (Index i = 0; i < pattern.rows(); ++i) {
    pattern.for_each_in_row(i, [&](Index b, Index) {
      set(0, i / kRows, PatternBits::words(bits.columns), b / kColumns);
      set(bits.transposed(), b / kRows, PatternBits::words(bits.rows), i / kColumns);
      set(bits.coefficients(), i, bits.row_words(), b);
    });
  }
  return words;
}

}  // namespace mhla::cuda
