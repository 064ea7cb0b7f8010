#pragma once

/// \file
/// Blocks of tokens of calls on a device.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "mhla/core/error.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/policy/grid_partition.hpp"

namespace mhla::cuda {

/// Blocks of `length` consecutive tokens; the last one may be short.
/// \throws option_error unless 1 <= tokens < 2^31 and 1 <= length.
TokenBlocks contiguous(Index tokens, Index length);

/// Rectangular blocks of an image {Y, X} or a video {F, Y, X} in raster order, as mhla::Grid has
/// them. Blocks at the far edges may be short.
/// \throws option_error for a size below 1, or 2^31 or more tokens.
TokenBlocks grid(GridShape tokens, GridShape block);

// ------------------------------------------------------------------------------------------------

inline TokenBlocks contiguous(Index tokens, Index length) {
  if (tokens < 1 || tokens > std::numeric_limits<std::int32_t>::max()) {
    mhla::detail::fail_option("cuda::contiguous", "tokens", "is " + std::to_string(tokens),
                              "at least 1, below 2^31");
  }
  if (length < 1) {
    mhla::detail::fail_option("cuda::contiguous", "length", "is " + std::to_string(length),
                              "at least 1");
  }
  return grid(tokens, length);
}

inline TokenBlocks grid(GridShape tokens, GridShape block) {
  const auto text = [](const GridShape& shape) {
    return "is " + mhla::detail::shape_text({shape[0], shape[1], shape[2]});
  };
  constexpr Index kLimit = std::numeric_limits<std::int32_t>::max();
  Index count = 1;
  for (int axis = 0; axis < 3; ++axis) {
    if (tokens[axis] < 1 || tokens[axis] > kLimit / count) {
      mhla::detail::fail_option("cuda::grid", "tokens", text(tokens),
                                "sizes >= 1 with a product below 2^31");
    }
    if (block[axis] < 1) {
      mhla::detail::fail_option("cuda::grid", "block", text(block), "sizes >= 1");
    }
    count *= tokens[axis];
  }
  const auto size = [&](int axis) { return static_cast<std::int32_t>(tokens[axis]); };
  const auto part = [&](int axis) {  // a block larger than the grid is the grid
    return static_cast<std::int32_t>(std::min(block[axis], tokens[axis]));
  };
  return {size(0), size(1), size(2), part(0), part(1), part(2)};
}

}  // namespace mhla::cuda
