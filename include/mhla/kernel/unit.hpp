#pragma once

/// \file
/// Tags of the units that products run on, and the tile shapes of the vector unit of each target. A
/// stage without an overload for a unit runs on the unit's base.

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

struct vector_unit {};        ///< the vector instructions of the target
struct amx : vector_unit {};  ///< the tiles of AMX, for bfloat16 tensors (stage/amx)

struct TileShape {
  int rows;          ///< rows of the register tile
  int vectors;       ///< packets per row of the tile
  int narrow_rows;   ///< rows of a tile with fewer packets
  Index slab;        ///< features of a slab of a summary, a few tiles (stage/summary.hpp)
  int step_tokens;   ///< tokens per step of a recurrence (stage/recurrence.hpp)
  int step_vectors;  ///< packets per row of the recurrence's state
};

/// | target        | tile  | why                                                           |
/// |---------------|-------|---------------------------------------------------------------|
/// | AVX-512       | 8 x 2 | 16 sums of 32 registers, some left to load ahead              |
/// | NEON, 64 bits | 8 x 3 | 24 sums of 32: 41 instructions for 24 operations              |
/// | AVX2 with FMA | 4 x 3 | 12 sums of 16, all others in use: 7 loads for 12 operations   |
/// | AVX, SSE      | 6 x 2 | 12 sums of 16; a product on its way to its sum needs one more |
///
/// Columns that are no multiple of three packets end in tiles of two packets by `narrow_rows` rows.
/// Long slabs read values fewer times; short slabs keep mixing on fewer pages.
///
/// A step of a recurrence keeps the values and sums of its tokens, and a row of state, in
/// registers:
///
/// | target         | step  | why                                                              |
/// |----------------|-------|------------------------------------------------------------------|
/// | AVX-512, NEON  | 4 x 2 | 18 of 32 registers; 6 x 2 and 8 x 1 took 2 and 30 % more         |
/// | AVX2 with FMA  | 3 x 2 | 14 of 16; 2 x 2 took 4 % more: it stores rows more often         |
/// | AVX, SSE       | 2 x 2 | 10 of 16; a product on its way to its sum needs one more         |
///
/// Bits depend on none of these.
inline constexpr TileShape kTile = kNeon                    ? TileShape{8, 3, 8, 32, 4, 2}
                                   : kVectorRegisters >= 32 ? TileShape{8, 2, 8, 32, 4, 2}
                                   : kFusedMultiplyAdd      ? TileShape{4, 3, 6, 24, 3, 2}
                                                            : TileShape{6, 2, 6, 24, 2, 2};

/// Ways of L1, each of 4 KB: 12 on Intel processors with AVX-512 since Ice Lake, 8 on others.
inline constexpr Index kL1Ways = kVectorRegisters >= 32 && !kNeon ? 12 : 8;
inline constexpr Index kL1WayBytes = 4096;
/// Smallest L2 of the supported processors.
inline constexpr Index kL2Bytes = Index{1} << 19;

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
