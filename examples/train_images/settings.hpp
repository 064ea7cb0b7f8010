#pragma once

/// \file
/// Settings of a model: its attention, its sizes, and the start of its mixing matrices.

#include <algorithm>
#include <mhla/layer/vision_block.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "../support/attention_names.hpp"
#include "tokens.hpp"

namespace train_images {

using examples::Attention;
using examples::kAttentions;
using examples::kMixingStarts;
using examples::MixingStart;
using examples::name_of;

/// Settings of a model. Settings of mixing have no effect on softmax and linear attention.
struct Settings {
  Attention attention = Attention::kMhla;
  Index dim = 32;     ///< C, channels of a token
  Index depth = 4;    ///< blocks of the model: attention and MLP
  Index heads = 1;    ///< H
  Index blocks = 16;  ///< M, blocks of tokens
  Index lepe = 0;     ///< side of the convolution beside attention, odd, or 0 for none
  MixingStart init = MixingStart::kLocality;  ///< of mixing
  bool freeze_mixing = false;
  Index seed = 1;
  mhla::GridShape grid = kGrid;  ///< tokens along each axis; checkpoints are of kGrid

  Index tokens() const { return grid[1] * grid[2]; }  ///< N
  /// True for trained mixing matrices. Linear attention is MHLA with one block, whose coefficient
  /// stays 1.
  bool trains_mixing() const { return attention == Attention::kMhla && !freeze_mixing; }
};

/// Shape of one of M blocks that divide the 16 x 16 tokens: square, or twice as high as wide.
/// \throws std::runtime_error unless M is a power of two up to N.
inline mhla::GridShape token_block(Index blocks) {
  Index rows = 1, columns = 1;  // of blocks
  while (rows * columns < std::min(blocks, kTokens)) (rows == columns ? columns : rows) *= 2;
  if (rows * columns != blocks) {
    throw std::runtime_error("--blocks is " + std::to_string(blocks) +
                             ", expected a power of two from 1 to " + std::to_string(kTokens));
  }
  return {kSide / rows, kSide / columns};
}

/// Blocks of tokens along each axis, with MHLA.
inline mhla::GridShape block_grid(const Settings& s) {
  return mhla::Grid(s.grid, token_block(s.blocks)).block_grid();
}

/// Options of a block of the model: DeiT's, with the paper's operator. Blocks of tokens are as
/// large on every grid.
inline mhla::DeitOptions block_options(const Settings& s) {
  return {.attention = {.heads = s.heads,
                        .tokens = s.grid,
                        .block = s.attention == Attention::kMhla ? token_block(s.blocks) : s.grid,
                        .order = mhla::TokenOrder::kRaster,
                        .layer_norm = false,  // the block has one
                        .lepe = s.lepe,
                        .normalizer = mhla::KeySum{1e-6},
                        .softmax = s.attention == Attention::kSoftmax},
          .channels = s.dim,
          .hidden = 2 * s.dim};
}

/// \throws std::runtime_error naming the option, what was expected and what came.
inline void expect_valid(const Settings& settings) {
  const auto expect_range = [](const char* option, Index value, Index low, Index high) {
    if (value < low || value > high) {
      throw std::runtime_error(std::string(option) + " is " + std::to_string(value) +
                               ", expected a number from " + std::to_string(low) + " to " +
                               std::to_string(high));
    }
  };
  expect_range("--dim", settings.dim, 1, 1024);
  expect_range("--depth", settings.depth, 1, 64);
  expect_range("--heads", settings.heads, 1, 1024);
  expect_range("--lepe", settings.lepe, 0, 15);
  token_block(settings.blocks);
  if (settings.lepe > 0 && settings.lepe % 2 == 0) {
    throw std::runtime_error("--lepe is " + std::to_string(settings.lepe) + ", expected 0 or odd");
  }
  if (settings.dim % settings.heads != 0) {
    throw std::runtime_error("--heads is " + std::to_string(settings.heads) +
                             ", expected a divisor of --dim, which is " +
                             std::to_string(settings.dim));
  }
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Settings, attention, dim, depth, heads, blocks, lepe, init,
                                   freeze_mixing, seed)

}  // namespace train_images
