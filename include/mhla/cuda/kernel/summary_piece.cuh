#pragma once

/// \file
/// Eight numbers of a summary or a mixture in the registers of a thread, in the type of the tensors
/// or as high + low.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

template <class T, Precision P>
struct SummaryPiece {
  static constexpr bool kPair = P == Precision::kPair;

  ptx::Words4 high;
  ptx::Words4 low;  ///< for Precision::kPair

  /// \param offset  in bytes of `array.high`, and of `array.low`
  static MHLA_DEVICE SummaryPiece load(const SummaryArray& array, std::int64_t offset) {
    SummaryPiece x;
    x.high = ptx::ld_global_v4(array.high + offset);
    if constexpr (kPair) x.low = ptx::ld_global_v4(array.low + offset);
    return x;
  }
  /// Rounds eight floats.
  static MHLA_DEVICE SummaryPiece rounded(const float (&sums)[8]) {
    SummaryPiece x;
    x.high = cuda::rounded<T>(sums);
    if constexpr (kPair) x.low = rounded_rest<T>(sums, x.high);
    return x;
  }

  MHLA_DEVICE void store(const SummaryArray& array, std::int64_t offset) const {
    ptx::st_global_v4(array.high + offset, high);
    if constexpr (kPair) ptx::st_global_v4(array.low + offset, low);
  }
  /// sums += factor * x
  MHLA_DEVICE void add_to(float (&sums)[8], float factor) const {
    if constexpr (kPair) add_scaled<T>(sums, factor, low);
    add_scaled<T>(sums, factor, high);
  }
  /// x = high + low, as one float each
  MHLA_DEVICE void to_floats(float (&x)[8]) const {
    Eight<T>{high}.to_floats(x);
    if constexpr (kPair) add_scaled<T>(x, 1, low);
  }
};

}  // namespace mhla::cuda
