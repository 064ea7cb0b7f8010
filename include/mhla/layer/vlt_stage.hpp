#pragma once

/// \file
/// A stage of VLT, an image classifier: blocks one after another, each around the attention of
/// vision_layer.hpp. For B images of N tokens and C channels:
///
///     x = x + convolution(x), depthwise 3 x 3: conditional positional encoding   [B*N, C]
///     x = x + attention(norm1(x)),   x = x + mix(norm2(x))                       [B*N, C]
///
/// norm1 and norm2 are layer normalisation, mix is the residual mix of mix_ffn.hpp.
///
///     const VltOptions options{.attention = {.heads = 1, ...}, .depth = 2};
///     const VltStage<float> stage(file, "layers.0.", options);
///     stage(x, y);
///
/// The authors of MHLA have not released VLT; their paper builds it on RALA. Blocks and names are
/// those of RALA's code: blocks.{i}.{pos,norm1.norm,norm2.norm}.{weight,bias}, and below
/// blocks.{i}.ffn. and attn. those of the mix and of the attention. No code or weights of VLT were
/// available to check this. Its attention may keep parts of RALA: elu + 1, a rotary embedding, a
/// gate of the output. So the caller chooses the options of the attention. A stage has neither
/// RALA's layer scale nor its downsampling, and ignores tensors below downsample.
///
/// Cost: that of the attention and of the mix, and 18*B*N*C flops for the encoding. About 3*C more
/// numbers per token and block are kept.
/// Sources: arXiv:2601.07832, appendix E; Fan et al., arXiv:2411.07635 (RALA).

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/block_backward.hpp"
#include "mhla/layer/block_body.hpp"
#include "mhla/layer/block_condition.hpp"
#include "mhla/layer/block_convolution.hpp"
#include "mhla/layer/block_family.hpp"
#include "mhla/layer/block_norm.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/mix_ffn.hpp"
#include "mhla/layer/vision_layer.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Options of a VLT stage.
struct VltOptions {
  VisionOptions attention;  ///< its channels are the stage's
  Index depth = 2;          ///< blocks
  Index channels = 0;       ///< C; 0 for that of a file
  Index hidden = 0;         ///< H of the mix; 0 for 3C
  double norm_eps = 1e-6;
};

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator T>
struct VltFamily {
  using Scalar = T;
  using Options = VltOptions;
  using Attention = VisionBody<T>;
  using FeedForward = MixFfnBody<T, ResidualMix>;
  using Norm = LayerNormPart<T>;
  using Condition = NoCondition;
  static constexpr const char* kName = "VltStage";
  static constexpr const char* kBackwardName = "VltStage::backward";
  static constexpr const char* kOutput = "blocks.0.attn.to_out.0.weight";
  static constexpr BlockPrefixes kPrefixes{"norm1.norm.", "attn.",        "norm2.norm.", "ffn.", "",
                                           "pos.",        {"downsample."}};
  static constexpr BlockConvolution kConvolution = BlockConvolution::kFirst;

  static VisionOptions attention(const Options& o) { return block_attention_options(kName, o); }
  static Norm norm(const Options& o) { return {o.channels, true, o.norm_eps}; }
  static FeedForward feed_forward(const Options& o) {
    return block_mix<FeedForward>(o, vision_places(o.attention));
  }
  static Condition condition(const Options&) { return {}; }
  static std::optional<ConvolutionPart<T>> convolution(const Options& o) {
    return ConvolutionPart<T>(o.channels, o.attention.tokens, vision_places(o.attention));
  }
};

/// Several blocks with the same options, one after another.
template <class Block>
class StageBody {
  using T = typename Block::Scalar;

 public:
  using Scalar = T;
  using Options = typename Block::Options;
  static constexpr const char* kName = Block::kName;
  static constexpr const char* kBackwardName = Block::kBackwardName;
  static constexpr const char* kOutput = Block::kOutput;
  static constexpr auto kOthers = Block::kOthers;

  /// Values that backward reads.
  struct Tape {
    Workspace blocks;       // the tape of each
    MatrixView<T> outputs;  // of all blocks but the last [(depth - 1) * rows, C]
    LayerRows sizes;

    Tape(Arena& arena, const StageBody& body, LayerRows rows);
    MatrixView<T> output(std::size_t i) const {
      return outputs.middle_rows(static_cast<Index>(i) * sizes.rows, sizes.rows);
    }
  };
  struct ForwardScratch : Block::ForwardScratch {
    ForwardScratch(Arena& arena, const StageBody& body, LayerRows sizes,
                   const ExecutorRef& executor)
        : Block::ForwardScratch(arena, body.first(), sizes, executor) {}
  };
  struct BackwardScratch {
    typename Block::BackwardScratch block;
    MatrixView<T> doutputs[2];  // of two blocks in turn [rows, C]
    BackwardScratch(Arena& arena, const StageBody& body, LayerRows sizes,
                    const ExecutorRef& executor)
        : block(arena, body.first(), sizes, executor) {
      for (MatrixView<T>& d : doutputs) {
        d = take_matrix<T>(kName, arena, sizes.rows, body.options().channels);
      }
    }
  };

  explicit StageBody(const Options& options);
  void prepare() requires Prepared<Block> {
    for (Part<Block>& block : blocks_) block.prepare();
  }

  const Options& options() const { return first().options(); }
  const ParameterTable& table() const { return table_; }
  Index tokens() const { return first().tokens(); }

  void record(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
              const ForwardScratch& scratch, const ExecutorRef& executor) const;
  void write(std::span<const T> parameters, const Tape& tape, MatrixView<T> y,
             const ForwardScratch& scratch, const ExecutorRef& executor) const {
    const Part<Block>& last = blocks_.back();
    last->write(last.of(parameters), tape_of(tape, blocks_.size() - 1), y, scratch, executor);
  }
  void backward(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                MatrixView<const T> dy, MatrixView<T> dx, std::span<T> gradients,
                const BackwardScratch& scratch, const ExecutorRef& executor) const;

 private:
  const Block& first() const { return *blocks_.front(); }
  typename Block::Tape tape_of(const Tape& tape, std::size_t block) const {
    const std::size_t share = tape.blocks.size() / blocks_.size();
    Arena arena(tape.blocks.data() + block * share);
    return {arena, first(), tape.sizes};
  }

  ParameterTable table_;
  std::vector<Part<Block>> blocks_;
};

}  // namespace detail

/// The stage: layer.hpp documents it.
template <Accumulator A>
using VltStage = Layer<detail::StageBody<detail::BlockBody<detail::VltFamily<A>>>>;

// ------------------------------------------------------------------------------------------------

namespace detail {

template <class Block>
StageBody<Block>::StageBody(const Options& options) {
  expect_positive(kName, "depth", options.depth);
  for (Index i = 0; i < options.depth; ++i) {
    blocks_.emplace_back(table_, "blocks." + std::to_string(i) + ".", Block(options));
  }
}

template <class Block>
StageBody<Block>::Tape::Tape(Arena& arena, const StageBody& body, LayerRows rows) : sizes(rows) {
  const std::size_t count = body.blocks_.size();
  const std::size_t share = counted_bytes(
      [&](Arena& counting) { return typename Block::Tape(counting, body.first(), rows); });
  blocks = take_bytes(kName, arena, share, count);
  outputs = take_matrix<T>(
      kName, arena, checked_product(kName, "workspace", {static_cast<Index>(count - 1), rows.rows}),
      body.options().channels);
}

template <class Block>
void StageBody<Block>::record(std::span<const T> parameters, MatrixView<const T> x,
                              const Tape& tape, const ForwardScratch& scratch,
                              const ExecutorRef& executor) const {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Part<Block>& block = blocks_[i];
    const typename Block::Tape block_tape = tape_of(tape, i);
    block->record(block.of(parameters), x, block_tape, scratch, executor);
    if (i + 1 == blocks_.size()) return;
    block->write(block.of(parameters), block_tape, tape.output(i), scratch, executor);
    x = tape.output(i);
  }
}

template <class Block>
void StageBody<Block>::backward(std::span<const T> parameters, MatrixView<const T> x,
                                const Tape& tape, MatrixView<const T> dy, MatrixView<T> dx,
                                std::span<T> gradients, const BackwardScratch& scratch,
                                const ExecutorRef& executor) const {
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const Part<Block>& block = blocks_[i];
    const MatrixView<T> dread = i == 0 ? dx : scratch.doutputs[i % 2];
    if (i > 0) clear(dread, executor);
    const MatrixView<const T> read = i == 0 ? x : MatrixView<const T>(tape.output(i - 1));
    block->backward(block.of(parameters), read, tape_of(tape, i), dy, dread, block.of(gradients),
                    scratch.block, executor);
    dy = dread;
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
