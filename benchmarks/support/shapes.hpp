#pragma once

/// \file
/// The shapes that are measured, all in one place, with their source.

#include <string_view>

#include "mhla/stage/grid_partition.hpp"

namespace mhla::bench {

/// Self-attention of a model: B x N tokens, H heads of width D, values of width E, in the
/// [B, N, H, D] layout. `block` tokens along each axis of `grid` make a block; tokens lie in raster
/// order, so a sequence of blocks of W tokens is a grid of one row.
struct Shape {
  std::string_view name;
  Index batch, heads, width, values;
  GridShape grid;
  GridShape block;
  std::string_view source;

  constexpr Index tokens() const { return grid[0] * grid[1] * grid[2]; }
  constexpr bool contiguous() const { return grid[0] == 1 && grid[1] == 1; }
};

/// A sequence of N tokens in blocks of W.
constexpr Shape sequence(std::string_view name, Index b, Index n, Index w, Index h, Index d,
                         Index e, std::string_view source) {
  return {name, b, h, d, e, GridShape(n), GridShape(w), source};
}

// Released vision models keep their tokens in block order, so their blocks are runs.
inline constexpr Shape kBidirectionalShapes[] = {
    sequence("dit_s_256", 8, 256, 16, 6, 64, 64, "DiT-S/2 at 256 px, M = 16; DeiT-S alike"),
    sequence("dit_s_512", 4, 1024, 64, 6, 64, 64, "DiT-S/2 at 512 px, M = 16"),
    {"wan_1300m", 1, 12, 128, 128, GridShape(21, 30, 50), GridShape(7, 6, 5),
     "Wan2.1-1.3B, 81 frames at 480 x 800, M = 150 of 210 tokens, raster order"},
};

}  // namespace mhla::bench
