#pragma once

/// \file
/// What makes a model: its attention, its sizes, and how its mixing matrices start.

#include <algorithm>
#include <mhla/policy/grid_partition.hpp>
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
using examples::named;

/// Of a model. Settings with a mixing matrix have no effect on softmax and linear attention.
struct Settings {
  Attention attention = Attention::kMhla;
  Index dim = 32;     ///< C, channels of a token
  Index depth = 4;    ///< layers of attention and MLP
  Index heads = 1;    ///< H
  Index blocks = 16;  ///< M, blocks of tokens
  MixingStart mixing_start = MixingStart::kLocality;
  bool freeze_mixing = false;
  Index seed = 1;

  Index hidden() const { return 2 * dim; }  ///< width of the MLP
};

/// The 16 x 16 tokens in M equal blocks, square or twice as wide as high.
/// \throws std::runtime_error unless M is a power of two up to N.
inline mhla::Grid token_blocks(Index blocks) {
  Index rows = 1, columns = 1;  // of blocks
  while (rows * columns < std::min(blocks, kTokens)) (rows == columns ? columns : rows) *= 2;
  if (rows * columns != blocks) {
    throw std::runtime_error("--blocks is " + std::to_string(blocks) +
                             ", expected a power of two from 1 to " + std::to_string(kTokens));
  }
  return {{kSide, kSide}, {kSide / rows, kSide / columns}};
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
  token_blocks(settings.blocks);
  if (settings.dim % settings.heads != 0) {
    throw std::runtime_error("--heads is " + std::to_string(settings.heads) +
                             ", expected a divisor of --dim, which is " +
                             std::to_string(settings.dim));
  }
}

}  // namespace train_images
