#pragma once

/// \file
/// The block of the authors' language models (340M) around the attention of language_layer.hpp, for
/// whole sequences and for decoding. For B sequences of N tokens and C channels, with a gated
/// perceptron of width H:
///
///     x = x + attention(rms_norm(x))                                                [B*N, C]
///     y = x + (silu(n Wg^T) * (n Wu^T)) Wd^T,   n = rms_norm(x)                     [B*N, C]
///
///     LanguageBlock<float> block(file, "model.layers.0.", {.attention = {.heads = 4}});
///     block(x, y, {.batch = 2});
///     auto state = block.start(2);
///     block.append(state, prompts, y);                          // decoding_layer.hpp
///
/// Prompts and then tokens give the outputs of the whole sequence, as precisely as the attention
/// does. Parameters have the authors' names: attn_norm.weight, attn. with those of the attention,
/// mlp_norm.weight, mlp.{gate,up,down}_proj.weight. Cost: that of the attention, and 6*B*N*C*H
/// flops. About 2*H + C numbers per token are kept besides the attention's. Sources: Touvron et
/// al., arXiv:2302.13971; the released models of arXiv:2601.07832.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/block_backward.hpp"
#include "mhla/layer/block_body.hpp"
#include "mhla/layer/block_condition.hpp"
#include "mhla/layer/block_family.hpp"
#include "mhla/layer/block_norm.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/decoding_layer.hpp"
#include "mhla/layer/feed_forward.hpp"
#include "mhla/layer/gated_mlp.hpp"
#include "mhla/layer/language_layer.hpp"
#include "mhla/layer/packed_dense.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Options of a language block.
struct LanguageBlockOptions {
  LanguageOptions attention{};  ///< its channels and norm_eps are the block's
  Index channels = 0;           ///< C; 0 for that of a file
  Index hidden = 0;             ///< H; 0 for 8C/3, rounded up to a multiple of 256
  double norm_eps = 1e-6;       ///< of all three norms

  bool operator==(const LanguageBlockOptions&) const = default;
};

namespace detail {
template <Accumulator A>
struct LanguageBlockDecoder;
}  // namespace detail

/// State of a batch of sequences, with the functions of a LanguageState (language_state.hpp). It
/// has the mixing matrix and packed projections of the block at the start of the state. Copies are
/// independent, but share these. LanguageBlock::start makes it.
template <Accumulator A>
class LanguageBlockState {
 public:
  Index batch() const { return attention_.batch(); }
  Index position() const { return attention_.position(); }
  Index position(Index sequence) const { return attention_.position(sequence); }
  Index capacity() const { return attention_.capacity(); }
  LanguageBlockState select(std::span<const Index> sequences) const {
    return {options_, attention_.select(sequences), mlp_};
  }
  std::size_t bytes() const { return attention_.bytes(); }
  void save(std::span<std::byte> to) const { attention_.save(to); }
  void restore(std::span<const std::byte> from) { attention_.restore(from); }

 private:
  friend detail::LanguageBlockDecoder<A>;
  struct Packed;

  LanguageBlockState(const LanguageBlockOptions& options, LanguageState<A> attention,
                     std::shared_ptr<const Packed> mlp)
      : options_(options), attention_(std::move(attention)), mlp_(std::move(mlp)) {}

  struct Packed {
    detail::PackedStore<A> store;
    PackedGatedMlp<A> layers;

    explicit Packed(const GatedMlpView<const A>& p)
        : store({p.gate, p.up, p.down}),
          layers{store.pack(p.gate), store.pack(p.up), store.pack(p.down)} {}
  };

  LanguageBlockOptions options_;
  LanguageState<A> attention_;
  std::shared_ptr<const Packed> mlp_;
};

/// The block. layer.hpp documents whole sequences, decoding_layer.hpp the next tokens.
template <Accumulator A>
using LanguageBlock = DecodingLayer<detail::LanguageBlockDecoder<A>>;

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator T>
struct LanguageFamily {
  using Scalar = T;
  using Options = LanguageBlockOptions;
  using Attention = LanguageBody<T>;
  using FeedForward = GatedMlpBody<T>;
  using Norm = RmsNormPart<T>;
  using Condition = NoCondition;
  static constexpr const char* kName = "LanguageBlock";
  static constexpr const char* kBackwardName = "LanguageBlock::backward";
  static constexpr const char* kOutput = "attn.o_proj.weight";
  static constexpr BlockPrefixes kPrefixes{"attn_norm.", "attn.", "mlp_norm.", "mlp."};
  static constexpr BlockConvolution kConvolution = BlockConvolution::kNever;

  static LanguageOptions attention(const Options& o) {
    LanguageOptions options = block_attention_options(kName, o);
    options.norm_eps = o.norm_eps;
    return options;
  }
  static Norm norm(const Options& o) { return {o.channels, o.norm_eps}; }
  static FeedForward feed_forward(const Options& o) {
    return {o.channels, block_hidden(kName, o.hidden, round_up(o.channels * 8 / 3, 256))};
  }
  static Condition condition(const Options&) { return {}; }
};

template <Accumulator A>
struct LanguageBlockDecoder {
  using Body = BlockBody<LanguageFamily<A>>;
  using State = LanguageBlockState<A>;
  using Attention = LanguageDecoder<A>;
  static constexpr const char* kStart = "LanguageBlock::start";
  static constexpr const char* kAppend = "LanguageBlock::append";

  struct Scratch {
    typename Body::InputScratch input;
    MatrixView<A> middle;  // [rows, C]
    typename GatedMlpBody<A>::Tape mlp;
    MatrixView<A> hidden;  // [rows, H]
    typename Attention::Scratch attention;
    Scratch(Arena& arena, const Body& body, const State& state, Index rows,
            const ExecutorRef& executor)
        : input(arena, body, {rows, state.batch()}),
          middle(take_matrix<A>(kAppend, arena, rows, body.options().channels)),
          mlp(arena, *body.feed_forward(), {rows, state.batch()}),
          hidden(take_matrix<A>(kAppend, arena, rows, mlp.gate.cols)),
          attention(arena, *body.attention(), state.attention_, rows, executor) {}
  };

  static void project(const Body& body, std::span<A> parameters) {
    Attention::project(*body.attention(), body.attention().of(parameters));
  }
  static bool fits(const Body& body, const State& state) {
    return state.options_ == body.options();
  }
  static State start(const Body& body, std::span<const A> parameters, Index batch) {
    const auto& attention = body.attention();
    const auto& mlp = body.feed_forward();
    return {body.options(), Attention::start(*attention, attention.of(parameters), batch),
            std::make_shared<const typename State::Packed>(mlp->views(mlp.of(parameters)))};
  }
  static void append(const Body& body, std::span<const A> parameters, State& state,
                     MatrixView<const A> x, std::span<const Index> offsets, MatrixView<A> y,
                     const Scratch& scratch, const ExecutorRef& executor) {
    const MatrixView<A>& normed = scratch.input.normed;
    const auto norm = [&](int branch, MatrixView<const A> from) {
      const auto& part = body.norm(branch);
      part->apply(part.of(parameters), from, normed, executor);
    };
    norm(0, x);
    Attention::append(*body.attention(), body.attention().of(parameters), state.attention_, normed,
                      offsets, scratch.middle, scratch.attention, executor);
    add<A>(x, scratch.middle, executor);
    norm(1, scratch.middle);
    gated_mlp(normed, state.mlp_->layers, scratch.mlp.gate, scratch.mlp.up, scratch.hidden, y,
              executor);
    add<A>(scratch.middle, y, executor);
  }
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
