#pragma once

/// \file
/// Attention over ranks that is measured and modelled. Blocks are of consecutive tokens: a grid's
/// tokens a block after the other, so that any number of ranks has an even split.

#include <string>
#include <vector>

#include "mhla/policy/pattern.hpp"

namespace mhla::bench {

struct RankCase {
  std::string name;
  Index blocks;        ///< M
  Index block_length;  ///< W
  Index heads;
  Index band;           ///< blocks that a block reads to each side; 0: all
  bool causal = false;  ///< reads earlier ones alone

  static constexpr Index kWidth = 128;  ///< D = E
  Index tokens() const { return blocks * block_length; }
  Pattern pattern() const {
    return band > 0 ? Pattern(blocks, blocks, band, band) : Pattern(blocks, blocks);
  }
};

/// 21 x 30 x 50 tokens of Wan2.1-1.3B in blocks of 7 x 6 x 5, as wan_1300m of
/// ../support/shapes.hpp.
inline RankCase video_case() { return {"video", 150, 210, 12, 0}; }
inline RankCase band_case() { return {"band", 600, 210, 4, 8}; }
/// One head: there is none behind whose work its transfers could hide.
inline RankCase one_head_case() { return {"one head", 150, 210, 1, 0}; }
inline RankCase causal_head_case() { return {"one causal head", 150, 210, 1, 0, true}; }

}  // namespace mhla::bench
