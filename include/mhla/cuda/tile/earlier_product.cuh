#pragma once

/// \file
/// Products in registers of 16 x 16 factors that are zero on and above the diagonal,
///
///     sums[16, 8 kTiles] += (high + low) (b[0] + b[1])     without low b[1]; b[1] is there or not
///
/// such that row r of the product has nothing of rows r.. of b, whatever they are. Plain products
/// multiply those by the zeros, which is nothing but for infinity and NaN.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/words.cuh"
#include "mhla/cuda/tile/not_finite.cuh"

namespace mhla::cuda {

/// True in all threads of the warp if a number of B operands is infinite or NaN.
template <class T, int kParts, int kLoads>
MHLA_DEVICE bool any_not_finite(const ptx::Words4 (&b)[kParts][kLoads]);

/// A product for each row r, with zeros in place of rows r.. of b: sixteen times the work of plain
/// products, and the same bits where b is finite. b[part][j] are the B operands of columns 16 j..
/// 16 j + 15, `high` and `low` A operands.
template <class T, int kTiles, int kParts, int kLoads>
MHLA_DEVICE void multiply_earlier(float (&sums)[kTiles][4], const ptx::Words4& high,
                                  const ptx::Words4& low, const ptx::Words4 (&b)[kParts][kLoads],
                                  std::uint32_t lane);

// -------------------------------------------------------------------------------------------------

namespace detail {

/// The first `count` numbers of a pair, and zeros for the others.
MHLA_HOST_DEVICE constexpr std::uint32_t first_of_pair(std::uint32_t pair, std::int32_t count) {
  return count >= 2 ? pair : count == 1 ? pair & 0xFFFFu : 0;
}

}  // namespace detail

template <class T, int kParts, int kLoads>
MHLA_DEVICE bool any_not_finite(const ptx::Words4 (&b)[kParts][kLoads]) {
  std::uint32_t bits = 0;
  MHLA_CUDA_UNROLL
  for (int part = 0; part < kParts; ++part) {
    MHLA_CUDA_UNROLL
    for (int j = 0; j < kLoads; ++j) {
      MHLA_CUDA_UNROLL
      for (int w = 0; w < 4; ++w) bits |= not_finite_bits<T>(b[part][j].x[w]);
    }
  }
  return any_not_finite(bits);
}

template <class T, int kTiles, int kParts, int kLoads>
MHLA_DEVICE void multiply_earlier(float (&sums)[kTiles][4], const ptx::Words4& high,
                                  const ptx::Words4& low, const ptx::Words4 (&b)[kParts][kLoads],
                                  std::uint32_t lane) {
  static_assert(kTiles == 2 * kLoads, "two tiles of 8 columns are loaded together");
  const auto sum_row = static_cast<std::int32_t>(lane / 4);  // and 8 more
  const auto b_row = static_cast<std::int32_t>(lane % 4 * 2);
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    MHLA_CUDA_LOOP
    for (std::int32_t r = 0; r < 16; ++r) {
      float products[4] = {sums[j][0], sums[j][1], sums[j][2], sums[j][3]};
      const auto add = [&](const ptx::Words4& a, int part) {
        const std::uint32_t* const own = b[part][j / 2].x + j % 2 * 2;
        ptx::multiply_add_16<T>(products, a.x[0], a.x[1], a.x[2], a.x[3],
                                detail::first_of_pair(own[0], r - b_row),
                                detail::first_of_pair(own[1], r - b_row - 8));
      };
      add(high, 0);
      add(low, 0);
      if constexpr (kParts == 2) add(high, 1);
      MHLA_CUDA_UNROLL
      for (int c = 0; c < 4; ++c) {
        if (sum_row + c / 2 * 8 == r) sums[j][c] = products[c];
      }
    }
  }
}

}  // namespace mhla::cuda
