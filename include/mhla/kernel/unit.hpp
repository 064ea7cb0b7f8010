#pragma once

/// \file
/// The units that products run on, as tags: a stage without an overload for a unit runs on the
/// unit's base. And the tile shapes of the vector unit of each target.

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

struct vector_unit {};        ///< the vector instructions of the target
struct amx : vector_unit {};  ///< the tiles of AMX, for bfloat16 tensors (stage/amx)

struct TileShape {
  int rows;         ///< of the register tile
  int vectors;      ///< packets of a row of it
  int chains;       ///< rows of a tile with fewer packets, packets of one with a single row
  Index slab;       ///< features of a slab of a summary (stage/summary.hpp)
  Index read_rows;  ///< queries read out together, so that their rows stay in L1
};

/// | target        | tile  | why                                                           |
/// |---------------|-------|---------------------------------------------------------------|
/// | AVX-512, NEON | 8 x 2 | 16 sums of 32 registers, some left to load ahead              |
/// | AVX2 with FMA | 4 x 3 | 12 sums of 16, all others in use: 7 loads for 12 operations   |
/// | AVX, SSE      | 6 x 2 | 12 sums of 16; a product on its way to its sum needs one more |
///
/// Columns that are no multiple of three packets end in tiles of two, of `chains` rows. A slab is a
/// whole number of tiles. Bits depend on none of these.
inline constexpr TileShape kTile = kVectorRegisters >= 32 ? TileShape{8, 2, 8, 8, 16}
                                   : kFusedMultiplyAdd    ? TileShape{4, 3, 6, 12, 64}
                                                          : TileShape{6, 2, 6, 12, 64};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
