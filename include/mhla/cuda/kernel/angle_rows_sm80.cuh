#pragma once

/// \file
/// Angles of a form's tokens as an array (tile/rotary.cuh): rows of the caller's angles. Empty
/// slots, whose features are 0, have those of token 0.
///
/// Device memory: the caller's angles once, the array once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/token_pieces.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/selection.cuh"

namespace mhla::cuda {

struct AngleRowParameters {
  RotaryAngles from;  ///< [N, D] of the caller
  float* to;          ///< [tokens, D]
  std::int32_t tokens;
  std::int32_t heads;   ///< 1: all heads have the same angles
  Selection selection;  ///< of which the prefix matters
};

template <int D>
struct AngleRowsSm80 : TokenPieces<AngleRowParameters, 2 * D> {
  static constexpr Arch kArchitecture = Arch::kSm80;

  MHLA_DEVICE void operator()(const AngleRowParameters& p) const {
    this->each(p, [&](std::int32_t token, std::uint32_t piece) {
      const float* const from = p.from.row(p.selection.place(token));
      ptx::st_global_v4(p.to + std::int64_t{token} * D + 4 * piece,
                        ptx::ld_global_nc_v4(from + 4 * piece));
    });
  }
};

}  // namespace mhla::cuda
