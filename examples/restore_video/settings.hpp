#pragma once

/// \file
/// Settings of a model that restores videos.

#include <mhla/layer/patch_embedding.hpp>
#include <mhla/layer/video_block.hpp>
#include <mhla/policy/grid_partition.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "../support/attention_names.hpp"

namespace restore_video {

using examples::Attention;
using mhla::Index;

constexpr Index kColours = 3;

/// Settings of a model. A token is a patch of one frame of a clip.
struct Settings {
  Attention attention = Attention::kMhla;
  Index height = 0, width = 0;  ///< pixels of a frame: those of the video
  Index frames = 16;            ///< of a clip
  Index stride = 2;             ///< frames of the video from one of a clip to the next
  Index patch = 8;              ///< pixels along a side of a patch
  Index dim = 128;              ///< C, channels of a token
  Index depth = 4;              ///< blocks
  Index heads = 4;              ///< H
  bool gate = true;             ///< after attention
  double masked = 0.5;          ///< fraction of the tokens that is hidden at least
  Index seed = 1;               ///< of parameters, clips and masks

  Index hidden() const { return 2 * dim; }  ///< width of the perceptrons
  Index features() const { return kColours * patch * patch; }
  mhla::GridShape grid() const { return {frames, height / patch, width / patch}; }
  Index tokens() const { return grid()[0] * grid()[1] * grid()[2]; }  ///< N
  Index span() const { return (frames - 1) * stride + 1; }  ///< frames of the video in a clip
  mhla::PatchGrid patches() const { return {kColours, {frames, height, width}, {1, patch, patch}}; }
  /// Blocks of tokens: MHLA has the most blocks M with M^2 <= N, linear attention a single block.
  mhla::GridShape layout() const {
    if (attention != Attention::kMhla) return {1, 1, 1};
    return mhla::suggest_grid(grid()).blocks;
  }
  mhla::WanOptions block() const {
    return {.attention = {.heads = heads,
                          .grid = grid(),
                          .layout = layout(),
                          .gate = gate,
                          .softmax = attention == Attention::kSoftmax},
            .channels = dim,
            .hidden = hidden()};
  }
};

/// \throws std::runtime_error naming the option, what was expected and what came.
inline void expect_valid(const Settings& s) {
  const auto fail = [](const std::string& option, auto value, const std::string& expected) {
    throw std::runtime_error(option + " is " + std::to_string(value) + ", expected " + expected);
  };
  if (!(s.masked > 0 && s.masked < 1)) fail("--masked", s.masked, "a number between 0 and 1");
  if (s.dim % (2 * s.heads) != 0) {
    fail("--heads", s.heads, "heads of an even width of --dim, which is " + std::to_string(s.dim));
  }
  if (s.height % s.patch != 0 || s.width % s.patch != 0) {
    fail("--patch", s.patch,
         "a divisor of the video's " + std::to_string(s.width) + " x " + std::to_string(s.height) +
             " pixels");
  }
}

inline void to_json(nlohmann::json& json, const Settings& s) {
  json = {{"attention", s.attention},
          {"height", s.height},
          {"width", s.width},
          {"frames", s.frames},
          {"stride", s.stride},
          {"patch", s.patch},
          {"dim", s.dim},
          {"depth", s.depth},
          {"heads", s.heads},
          {"blocks", s.layout().sizes},
          {"gate", s.gate},
          {"masked", s.masked},
          {"seed", s.seed}};
}

}  // namespace restore_video
