#pragma once

/// \file
/// Stage 2 of 5: blocks of an image or a video, over tokens in raster order.
///
///     Grid({Y, X}, {y, x})           image:  Y x X tokens in blocks of y x x
///     Grid({F, Y, X}, {f, y, x})     video:  F frames of Y x X tokens in blocks of f x y x x
///
/// A block is f*y runs of x tokens each; nothing is permuted. Blocks, and slots inside a block, are
/// in raster order, as in the authors' layers. Blocks at the far edges may be short.
/// Source: arXiv:2601.07832, section 4.1 ("on 2D/3D grids, not on the sequence").

#include <array>
#include <limits>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/policy/partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Sizes along frames, rows and columns. An image has one frame; a sequence has one frame and one
/// row.
struct GridShape {
  std::array<Index, 3> sizes;

  constexpr GridShape(Index columns) : sizes{1, 1, columns} {}  // NOLINT
  constexpr GridShape(Index rows, Index columns) : sizes{1, rows, columns} {}
  constexpr GridShape(Index frames, Index rows, Index columns) : sizes{frames, rows, columns} {}

  constexpr Index operator[](int axis) const { return sizes[static_cast<std::size_t>(axis)]; }
  friend constexpr bool operator==(const GridShape&, const GridShape&) = default;
};

/// Rectangular blocks of a grid of tokens in raster order.
class Grid {
 public:
  /// \param tokens  tokens along each axis, all >= 1
  /// \param block   tokens of a block along each axis, all >= 1
  /// \throws option_error for a size below 1; shape_error if the product does not fit Index.
  Grid(GridShape tokens, GridShape block);

  Index tokens() const { return tokens_[0] * tokens_[1] * tokens_[2]; }
  Index blocks() const { return counts_[0] * counts_[1] * counts_[2]; }
  Index block_size(Index b) const {
    return extent(b, 0).length * extent(b, 1).length * extent(b, 2).length;
  }
  Index runs(Index b) const { return extent(b, 0).length * extent(b, 1).length; }
  Run run(Index b, Index r) const {
    const Run frames = extent(b, 0), rows = extent(b, 1), columns = extent(b, 2);
    const Index frame = frames.begin + r / rows.length;
    const Index row = rows.begin + r % rows.length;
    return {(frame * tokens_[1] + row) * tokens_[2] + columns.begin, columns.length};
  }
  /// Blocks along each axis, for locality().
  GridShape block_grid() const { return counts_; }

 private:
  /// Tokens of block b along one axis.
  Run extent(Index b, int axis) const {
    const Index inner = axis == 2 ? 1 : axis == 1 ? counts_[2] : counts_[1] * counts_[2];
    const Index begin = b / inner % counts_[axis] * block_[axis];
    return {begin, std::min(block_[axis], tokens_[axis] - begin)};
  }

  GridShape tokens_;
  GridShape block_;
  GridShape counts_;
};
static_assert(Partition<Grid>);

/// Suggested block of a grid of tokens, and the resulting grid of blocks.
struct SuggestedGrid {
  GridShape block;   ///< tokens of a block along each axis
  GridShape blocks;  ///< blocks along each axis; their product is M
};

/// Returns the largest number of equal blocks M <= most with M^2 <= N, as suggest_blocks does.
/// Among equal M, it prefers blocks closest to cubes (smallest sum of side lengths). Locality is a
/// distance between blocks, and compact blocks keep near tokens together.
/// \throws option_error for a size below 1, or most < 1.
SuggestedGrid suggest_grid(GridShape tokens, Index most = std::numeric_limits<Index>::max());

// ------------------------------------------------------------------------------------------------

namespace detail {

inline std::string grid_text(const GridShape& g) { return shape_text({g[0], g[1], g[2]}); }

inline void expect_grid(const char* function, const char* argument, const GridShape& g) {
  for (const Index size : g.sizes) {
    if (size < 1) fail_option(function, argument, "is " + grid_text(g), "sizes >= 1");
  }
  checked_product(function, argument, {g[0], g[1], g[2]});
}

}  // namespace detail

inline Grid::Grid(GridShape tokens, GridShape block)
    : tokens_(tokens), block_(block), counts_(1, 1, 1) {
  detail::expect_grid("Grid", "tokens", tokens);
  detail::expect_grid("Grid", "block", block);
  for (std::size_t axis = 0; axis < 3; ++axis) {
    counts_.sizes[axis] = (tokens.sizes[axis] - 1) / block.sizes[axis] + 1;
  }
}

inline SuggestedGrid suggest_grid(GridShape tokens, Index most) {
  detail::expect_grid("suggest_grid", "tokens", tokens);
  if (most < 1) {
    detail::fail_option("suggest_grid", "most", "is " + std::to_string(most), "at least 1");
  }
  const Index n = tokens[0] * tokens[1] * tokens[2];
  SuggestedGrid best{tokens, GridShape(1, 1, 1)};
  Index best_blocks = 1;
  Index best_sides = tokens[0] + tokens[1] + tokens[2];
  for (Index f = 1; f <= tokens[0]; ++f) {
    for (Index y = 1; y <= tokens[1] && f * y <= n / (f * y); ++y) {
      for (Index x = 1; x <= tokens[2] && f * y * x <= n / (f * y * x); ++x) {
        if (tokens[0] % f != 0 || tokens[1] % y != 0 || tokens[2] % x != 0) continue;
        if (f * y * x > most) continue;
        const GridShape block(tokens[0] / f, tokens[1] / y, tokens[2] / x);
        const Index sides = block[0] + block[1] + block[2];
        if (f * y * x > best_blocks || (f * y * x == best_blocks && sides < best_sides)) {
          best = {block, GridShape(f, y, x)};
          best_blocks = f * y * x;
          best_sides = sides;
        }
      }
    }
  }
  return best;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
