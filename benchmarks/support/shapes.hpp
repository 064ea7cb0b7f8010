#pragma once

/// \file
/// The measured shapes and their sources.

#include <string>
#include <vector>

#include "mhla/policy/grid_partition.hpp"

namespace mhla::bench {

/// Self-attention of a model: B x N tokens, H heads of width D, values of width E, in the
/// [B, N, H, D] layout. A block has `block` tokens along each axis of `grid`. Tokens are in raster
/// order, so a sequence in blocks of W tokens is a grid of one row.
struct Shape {
  std::string name;
  Index batch, heads, width, values;
  GridShape grid, block;
  std::string source;

  Index tokens() const { return grid[0] * grid[1] * grid[2]; }
  bool contiguous() const { return grid[0] == 1 && grid[1] == 1; }
  Index block_length() const { return block[0] * block[1] * block[2]; }

  /// All sizes, in the form that programs parse from the results, and the source.
  std::string text() const {
    const auto axes = [](const GridShape& g) {
      return std::to_string(g[0]) + "x" + std::to_string(g[1]) + "x" + std::to_string(g[2]);
    };
    return "B=" + std::to_string(batch) + " H=" + std::to_string(heads) +
           " D=" + std::to_string(width) + " E=" + std::to_string(values) + " grid=" + axes(grid) +
           " block=" + axes(block) + "; " + source;
  }
};

struct SequenceSizes {
  Index batch = 1, tokens, block_length, heads, width, values;
};

/// A sequence of N tokens in blocks of W.
inline Shape sequence(std::string name, const SequenceSizes& s, std::string source) {
  return {
      std::move(name),           s.batch,          s.heads, s.width, s.values, GridShape(s.tokens),
      GridShape(s.block_length), std::move(source)};
}

/// Shapes of the bidirectional form. Released vision models have tokens in block order, so their
/// blocks are runs; the video model has raster order.
inline std::vector<Shape> bidirectional_shapes() {
  return {
      sequence("deit_s", {8, 256, 16, 6, 64, 64}, "DeiT-S/16, 224 px padded to 256, M = 16"),
      sequence("dit_s_256", {8, 256, 16, 6, 64, 64}, "DiT-S/2 at 256 px, M = 16: as deit_s"),
      sequence("dit_s_512", {4, 1024, 64, 6, 64, 64}, "DiT-S/2 at 512 px, M = 16"),
      sequence("dit_xl_512", {1, 1024, 64, 16, 72, 72}, "DiT-XL/2 at 512 px, M = 16"),
      sequence("n4096_m64", {1, 4096, 64, 6, 64, 64}, "DiT-S/2 at 1024 px, M = 64"),
      sequence("vlt_t_1", {1, 3136, 64, 1, 64, 64}, "VLT-T stage 1 (56 x 56), M = 49"),
      {"wan_1300m", 1, 12, 128, 128, GridShape(21, 30, 50), GridShape(7, 6, 5),
       "Wan2.1-1.3B, 81 frames at 480 x 800, M = 150"},
  };
}

/// Shapes of the causal form.
inline std::vector<Shape> causal_shapes() {
  return {
      sequence("nlp_340m", {1, 2048, 64, 4, 128, 256}, "language model of 340M, M = 32"),
      sequence("long_causal", {1, 131072, 256, 4, 64, 64}, "a long context, M = 512"),
  };
}

/// Attention layers of H*E channels. The names begin with the family of the layer.
inline std::vector<Shape> vision_layer_shapes() {
  return {
      {"vision_dit_s_256", 8, 6, 64, 64, GridShape(16, 16), GridShape(4, 4),
       "DiT-S/2 at 256 px, C = 384, M = 16"},
      {"vision_dit_s_512", 2, 6, 64, 64, GridShape(32, 32), GridShape(8, 8),
       "DiT-S/2 at 512 px, C = 384, M = 16"},
      {"vision_deit_s", 8, 6, 64, 64, GridShape(16, 16), GridShape(4, 4),
       "DeiT-S/16, norm of q and k, LePE 5 x 5, C = 384, M = 16"},
  };
}
/// wan_1300m with a fifteenth of its tokens, in the same blocks: a call with all tokens takes 10 s
/// on one core.
inline Shape video_layer_shape() {
  return {"video_wan_1300m",
          1,
          12,
          128,
          128,
          GridShape(7, 30, 10),
          GridShape(7, 6, 5),
          "Wan2.1-1.3B at 7 x 30 x 10 tokens, C = 1536, M = 10"};
}
inline Shape language_layer_shape() {
  return sequence("language_340m", {1, 2048, 64, 4, 128, 256}, "layer of 340M, C = 1024, M = 32");
}

inline Shape shape_named(const std::vector<Shape>& shapes, const std::string& name) {
  for (const Shape& s : shapes) {
    if (s.name == name) return s;
  }
  throw std::invalid_argument("no shape " + name);
}

/// Lengths of the growth series, one head of D = E = W = 64 each.
inline constexpr Index kShortestGrowth = 256;
inline constexpr Index kLongestGrowth = 1048576;
/// Softmax takes about a second at this length.
inline constexpr Index kLongestSoftmaxGrowth = 16384;
/// Gradients take about 0.2 s at this length.
inline constexpr Index kLongestBackward = 262144;
inline constexpr Index kLongestSoftmaxBackward = 4096;
/// Key blocks that a query block of the growth series mixes, so that cost grows with M.
inline constexpr Index kGrowthBand = 16;

inline Shape growth_shape(Index tokens) {
  return sequence("growth_" + std::to_string(tokens), {1, tokens, 64, 1, 64, 64},
                  "time over length, band of 16 blocks");
}

/// Numbers of blocks of the mixing series, one head of D = E = W = 64 each.
inline constexpr Index kFewestMixed = 16;
inline constexpr Index kMostMixed = 4096;

inline Shape mixing_shape(Index blocks) {
  return sequence("mixing_" + std::to_string(blocks), {1, 64 * blocks, 64, 1, 64, 64},
                  "time over blocks, by the form of the mixing matrix");
}

}  // namespace mhla::bench
