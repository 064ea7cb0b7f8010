#pragma once

/// \file
/// Expected rows of a warp's sums in device memory.

#include <gtest/gtest.h>

#include <cstdint>

#include "support/cuda/problem.hpp"

namespace cuda_test {

/// Number (r, c) of the 16 rows of a warp.
inline float number(std::uint32_t r, std::uint32_t c) {
  return static_cast<float>(r * 16) - static_cast<float>(c);
}

/// Tokens of the even rows below a count; other rows have none.
struct EverySecond {
  std::int32_t count;
  std::int32_t operator()(std::int32_t row) const {
    return row % 2 == 0 && row < count ? 20 - row : -1;
  }
};

/// Expects that rows with a token hold the rounded numbers times their factor, and that nothing
/// else is written.
template <class T>
void expect_rows(Array<T>& out, std::int64_t width, std::int64_t stride, int count) {
  for (std::uint32_t r = 0; r < 16; ++r) {
    const std::int32_t token = EverySecond{count}(static_cast<std::int32_t>(r));
    if (token < 0) continue;
    for (std::int64_t c = 0; c < width; ++c) {
      const float x = number(r, static_cast<std::uint32_t>(c)) * (r < 8 ? 0.5f : -3.0f);
      T& written = out[token * stride + c];
      ASSERT_EQ(written.bits, from_double<T>(static_cast<double>(x)).bits)
          << "row " << r << ", column " << c;
      written.bits = 0xFFFF;
    }
  }
  for (std::int64_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i].bits, 0xFFFF) << i;
}

}  // namespace cuda_test
