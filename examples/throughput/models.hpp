#pragma once

/// \file
/// The measured models: their sizes, and the library's blocks in them.

#include <algorithm>
#include <cmath>
#include <functional>
#include <mhla/layer/sana_block.hpp>
#include <mhla/layer/video_layer.hpp>
#include <mhla/layer/vision_block.hpp>
#include <mhla/layer/vlt_stage.hpp>
#include <string>
#include <utility>
#include <vector>

#include "decoding.hpp"

namespace throughput {

using mhla::GridShape;

constexpr Index kLeastTokens = 1024;  ///< of a call: small images come in batches

/// The most blocks along each side of a square of `side` tokens for M^2 <= N, a power of two.
inline Index blocks_of_side(Index side) {
  Index blocks = 1;
  while (16 * blocks * blocks * blocks * blocks <= side * side) blocks *= 2;
  return std::max<Index>(blocks, 4);
}

inline mhla::Operator<mhla::Relu, mhla::Relu, mhla::AnyNormalizer> vision_operator() {
  return {{1e-6}, {1e-6}, mhla::CrossQuery{1e-6}};
}

/// Images of side x side tokens, block by block, in blocks x blocks blocks.
struct Images {
  Index side, blocks, heads, channels, batch;

  mhla::VisionOptions attention() const {
    return {.heads = heads,
            .tokens = GridShape(side, side),
            .block = GridShape(side / blocks, side / blocks),
            .order = mhla::TokenOrder::kBlocks};
  }
  Problem problem() const {
    const Index n = side * side, d = channels / heads;
    return {batch, heads, d, d, GridShape(n), GridShape(n / (blocks * blocks))};
  }
};

inline Images images(Index side, Index blocks, Index heads, Index channels) {
  return {side, blocks, heads, channels, std::max<Index>(kLeastTokens / (side * side), 1)};
}

inline Case image_case(std::string model, const std::string& input, Index depth, const Images& i) {
  return {std::move(model),   input, "images", i.batch, depth, i.attention().tokens,
          i.attention().block};
}

inline Result dit(Index pixels, const Settings& s) {
  const Index side = pixels / 16;  // an eighth of the pixels in latents, patches of 2
  const Images i = images(side, blocks_of_side(side), 6, 384);
  Case what = image_case("DiT-S/2", std::to_string(pixels) + " px", 12, i);
  const Index rows = i.batch * side * side;
  what.ends = {{rows, 16, 384}, {rows, 384, 32}};
  return measure<false, mhla::DitBlock<float>>(what, {.attention = i.attention(), .channels = 384},
                                               384, i.problem(), vision_operator(), s);
}

inline Result deit(Index pixels, const Settings& s) {
  const Images i = images(pixels / 16, 4, 6, 384);
  Case what = image_case("DeiT-S", std::to_string(pixels) + " px", 12, i);
  what.ends = {{i.batch * i.side * i.side, 768, 384}, {i.batch, 384, 1000}};
  return measure<false, mhla::DeitBlock<float>>(
      what, {.attention = deit_attention(i.attention()), .channels = 384}, 0, i.problem(),
      vision_operator(), s);
}

inline Result vlt(Index stage, const Settings& s) {
  const Images i = stage == 1 ? images(56, 7, 1, 64) : images(28, 4, 2, 128);
  const Case what = image_case("VLT-T " + std::to_string(stage), "224 px", 2, i);
  return measure<false, mhla::VltStage<float>>(
      what, {.attention = i.attention(), .depth = 1, .channels = i.channels}, 0, i.problem(),
      vision_operator(), s);
}

inline Result sana(Index pixels, const Settings& s) {
  const Index side = pixels / 32;
  const Images i = images(side, blocks_of_side(side), 36, 1152);
  return measure<false, mhla::SanaBlock<float>>(
      image_case("SANA block", std::to_string(pixels) + " px", 1, i),
      {.attention = i.attention(), .channels = 1152}, 6 * 1152, i.problem(), vision_operator(), s);
}

inline Result wan(Index frames, const Settings& s) {
  const GridShape grid = frames == 21 ? GridShape(21, 30, 50) : GridShape(frames, 6, 10);
  const GridShape layout = frames == 21 ? GridShape(3, 5, 10) : GridShape(1, 2, 2);
  const GridShape block(grid[0] / layout[0], grid[1] / layout[1], grid[2] / layout[2]);
  const Case what{"Wan layer", std::to_string(frames) + " frames", "layers", 1, 1, grid, block};
  return measure<false, mhla::VideoLayer<float>>(
      what, {.heads = 12, .grid = grid, .layout = layout, .channels = 1536, .gate = true}, 0,
      {1, 12, 128, 128, grid, block},
      mhla::Operator<mhla::Identity, mhla::Identity, mhla::AnyNormalizer>{
          {}, {}, mhla::NoNormalizer{}},
      s);
}

inline Problem sequence(Index tokens) {
  Index length = 64;
  while ((tokens / length) * (tokens / length) > tokens) length *= 2;
  return {1, 4, 128, 256, GridShape(tokens), GridShape(length), true};
}
inline mhla::LanguageBlockOptions language_options(const Problem& p) {
  return {.attention = {.heads = 4, .chunk = p.block_length(), .chunks = p.blocks()},
          .channels = 1024};
}

inline Result prefill(Index tokens, const Settings& s) {
  const Problem p = sequence(tokens);
  const Case what{"340M",  std::to_string(tokens), "tokens", tokens, 24, p.grid,
                  p.block, {{1, 1024, 32000}}};
  return measure<true, mhla::LanguageBlock<float>>(what, language_options(p), 0, p,
                                                   LanguageOp{.scale = 1 / std::sqrt(128.0)}, s);
}

inline Result decode(Index tokens, const Settings& s) {
  const Problem p = sequence(tokens);
  const Case what{
      "340M token",      "at " + std::to_string(tokens), "tokens", 1, 24, p.grid, p.block,
      {{1, 1024, 32000}}};
  return measure_decoding(what, language_options(p), p, s);
}

/// A model, its measured inputs, and the input of --quick.
struct Model {
  std::string name;
  std::vector<Index> inputs;
  Index quick;
  std::function<Result(Index, const Settings&)> run;
};

inline const std::vector<Model>& models() {
  static const std::vector<Model> all{{"dit", {128, 256, 512, 1024, 2048, 4096}, 128, dit},
                                      {"deit", {256}, 256, deit},
                                      {"vlt", {1, 2}, 2, vlt},
                                      {"sana", {1024, 2048, 4096}, 256, sana},
                                      {"wan", {21}, 3, wan},
                                      {"prefill", {2048, 8192, 32768, 131072}, 256, prefill},
                                      {"decode", {2048, 8192, 32768, 131072}, 256, decode}};
  return all;
}

}  // namespace throughput
