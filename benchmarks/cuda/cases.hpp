#pragma once

/// \file
/// All cases that are measured on a device, with their sources.

#include <string>
#include <utility>
#include <vector>

#include "mhla/cuda/tile/token_blocks.cuh"
#include "support/cost.hpp"
#include "support/shapes.hpp"

namespace mhla::cuda_bench {

using bench::Shape;

/// Function of the library that a case calls.
enum class Form { kBidirectional, kCausal, kStep };

/// "bidirectional", "causal" or "step".
constexpr const char* name(Form form) {
  switch (form) {
    case Form::kBidirectional:
      return "bidirectional";
    case Form::kCausal:
      return "causal";
    default:
      return "step";
  }
}

/// A form on a shape: bfloat16, Relu{1e-6}, KeySum, [B, N, H, D]. For a step, N is its position in
/// the sequence.
struct Case {
  Form form;
  Shape shape;

  const std::string& label() const { return shape.name; }
  Index pairs() const { return shape.batch * shape.heads; }
  Index blocks() const { return shape.tokens() / shape.block_length(); }
};

inline std::vector<Case> all_cases() {
  using bench::sequence;
  const auto bidirectional = [](Shape shape) {
    return Case{Form::kBidirectional, std::move(shape)};
  };
  const auto causal = [](Shape shape) { return Case{Form::kCausal, std::move(shape)}; };
  const auto step = [](Shape shape) { return Case{Form::kStep, std::move(shape)}; };
  const char* const dit_256 = "DiT-S/2 and DeiT-S at 256 tokens, M = 16";
  return {
      bidirectional({"wan_1300m", 1, 12, 128, 128, GridShape(21, 30, 50), GridShape(7, 6, 5),
                     "Wan2.1-1.3B, 81 frames at 480 x 800, M = 150"}),
      bidirectional(sequence("dit_s_256_b256", {256, 256, 16, 6, 64, 64}, dit_256)),
      bidirectional(sequence("dit_s_256_b64", {64, 256, 16, 6, 64, 64}, dit_256)),
      bidirectional(sequence("dit_s_256_b1", {1, 256, 16, 6, 64, 64}, dit_256)),
      bidirectional(sequence("dit_s_512_b64", {64, 1024, 64, 6, 64, 64}, "DiT-S/2 at 512 px")),
      bidirectional(sequence("dit_xl_512_b32", {32, 1024, 64, 16, 72, 72}, "DiT-XL/2 at 512 px")),
      bidirectional(sequence("n4096_m64_b8", {8, 4096, 64, 12, 64, 64}, "DiT-B/2 at 1024 px")),
      causal(sequence("t2048_h16_d64_b16", {16, 2048, 64, 16, 64, 64}, "language model, 64 / 64")),
      causal(sequence("t2048_h4_e256_b16", {16, 2048, 64, 4, 128, 256}, "language model of 340M")),
      causal(sequence("t8192_h16_w64", {1, 8192, 64, 16, 128, 128}, "a prompt in blocks of 64")),
      causal(sequence("t8192_h16_w256", {1, 8192, 256, 16, 128, 128}, "a prompt in blocks of 256")),
      causal(sequence("t8192_h96_w64", {1, 8192, 64, 96, 128, 128}, "96 heads, blocks of 64")),
      causal(sequence("t8192_h96_w256", {1, 8192, 256, 96, 128, 128}, "96 heads, blocks of 256")),
      causal(sequence("t32768_h16_w64", {1, 32768, 64, 16, 128, 128}, "a long prompt")),
      causal(sequence("t131072_h16_d64", {1, 131072, 64, 16, 64, 64}, "a book, 64 / 64")),
      step(sequence("step_h64", {4, 2048, 64, 16, 128, 128}, "4 streams of 16 heads")),
      step(sequence("step_h4096", {256, 2048, 64, 16, 128, 128}, "256 streams of 16 heads")),
  };
}

/// The blocks of a shape as mhla::cuda takes them.
inline cuda::TokenBlocks token_blocks(const Shape& s) {
  const auto size = [](Index n) { return static_cast<std::int32_t>(n); };
  return {size(s.grid[0]),  size(s.grid[1]),  size(s.grid[2]),
          size(s.block[0]), size(s.block[1]), size(s.block[2])};
}

/// Flops of the definition, and bytes of q, k, v, o once. A step is taken in the middle of a block
/// and of the sequence. It moves S~, half a block of keys and values, its part of the earlier
/// summaries and of the next S~, the token and its output.
inline bench::Cost whole_cost(const Case& c) {
  using bench::number;
  if (c.form == Form::kStep) {
    const double d = number(c.shape.width), e = number(c.shape.values);
    const double w = number(c.shape.block_length()), pairs = number(c.pairs());
    const double before = number(c.blocks()) / 2, share = 2 * d * e / w;
    return {pairs * (2 * d * e + w * (d + e) + before * share),
            pairs * (2 * d * e + 4 * d + (w + 4) * (d + e) + (before + 1) * share),
            number(c.shape.batch)};
  }
  if (c.form == Form::kCausal) return bench::causal_cost<Eigen::bfloat16>(c.shape);
  const double n = number(c.shape.tokens()), m = number(c.blocks());
  const double de = number(c.shape.width * c.shape.values);
  return bench::whole_call<Eigen::bfloat16>(c.shape, (4 * n + 2 * m * m) * de);
}

}  // namespace mhla::cuda_bench
