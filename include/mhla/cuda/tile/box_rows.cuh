#pragma once

/// \file
/// Rows of a box in registers (tile/fragment.cuh). A box is panels of 64 columns at multiples of
/// 1024, in the swizzled order of ptx/tensor_copy.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/shared_tile.cuh"

namespace mhla::cuda {

/// Panels of a box of up to 256 rows; only the place of a piece inside a panel is fixed.
using BoxPanel = SharedTile<256, 64>;

/// Rows row.. row + 15 of kColumns columns, the last row of the box again in place of those behind
/// it: `rows` is how many the box has, `panel_bytes` from a panel to the next.
template <int kColumns>
MHLA_DEVICE Fragment<kColumns> load_box_rows(std::uint32_t box, std::uint32_t panel_bytes,
                                             std::int32_t row, std::int32_t rows,
                                             std::uint32_t lane) {
  const TilePlace at = rows_place(lane);
  const std::int32_t wanted = row + static_cast<std::int32_t>(at.row);
  const auto own = static_cast<std::uint32_t>(wanted < rows ? wanted : rows - 1);
  Fragment<kColumns> fragment;
  MHLA_CUDA_UNROLL
  for (int s = 0; s < kColumns / 16; ++s) {
    const BoxPanel panel{box + s / 4 * panel_bytes};
    const ptx::Words4 w = ptx::load_matrices_4(panel.piece(own, s % 4 * 2 + at.piece));
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) fragment.x[4 * s + i] = w.x[i];
  }
  return fragment;
}

}  // namespace mhla::cuda
