#pragma once

/// \file
/// The body of a block of a model; block_backward.hpp defines the backward part. Attention and then
/// a feed-forward part are residual branches, each after a norm. For B items and C channels:
///
///     n = norm(x) * (1 + scale) + shift                                     [B*N, C]
///     x = x + gate * body(n)                                                [B*N, C]
///
/// twice, with the attention and with the feed-forward part as body. Shifts, scales and gates
/// follow from the condition of an item. Without a condition they are 0, 0 and 1. Blocks of images
/// may have a convolution, x + convolution(x) before or convolution(x) after the branches.

#include <concepts>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/block_condition.hpp"
#include "mhla/layer/block_convolution.hpp"
#include "mhla/layer/block_family.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/modulate.hpp"
#include "mhla/layer/parameters.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <class F>
class BlockBody {
  using T = typename F::Scalar;
  using Attention = typename F::Attention;
  using FeedForward = typename F::FeedForward;
  using Condition = typename F::Condition;
  static constexpr bool kModulated = !std::same_as<Condition, NoCondition>;

 public:
  using Scalar = T;
  using Options = typename F::Options;
  static constexpr const char* kName = F::kName;
  static constexpr const char* kBackwardName = F::kBackwardName;
  static constexpr const char* kOutput = F::kOutput;
  static constexpr auto kOthers = F::kPrefixes.others;

  /// Values that backward reads.
  struct Tape {
    typename Condition::Tape condition;
    typename Attention::Tape attention;
    typename FeedForward::Tape feed_forward;
    MatrixView<T> outputs[2];  // of the bodies, if they are gated [rows, C]
    MatrixView<T> middle;      // between the branches
    MatrixView<T> edge;        // between the convolution and the branches

    Tape(Arena& arena, const BlockBody& body, LayerRows sizes);
  };
  /// Intermediate values of a branch. [rows, C]
  struct InputScratch {
    MatrixView<T> normed, modulated;
    InputScratch(Arena& arena, const BlockBody& body, LayerRows sizes)
        : normed(body.take(arena, sizes)),
          modulated(kModulated ? body.take(arena, sizes) : normed) {}
  };
  struct ForwardScratch {
    typename Condition::ForwardScratch condition;
    InputScratch input;
    SharedScratch<typename Attention::ForwardScratch, typename FeedForward::ForwardScratch> bodies;
    Workspace rest;
    ForwardScratch(Arena& arena, const BlockBody& body, LayerRows sizes, const ExecutorRef&);
  };
  struct BackwardScratch {
    typename Condition::BackwardScratch condition;
    InputScratch input;
    SharedScratch<typename Attention::BackwardScratch, typename FeedForward::BackwardScratch>
        bodies;
    MatrixView<T> dmodulation;                   // [B, 6C]
    MatrixView<T> doutput, dmodulated, dnormed;  // of a branch [rows, C]
    MatrixView<T> dmiddle, dedge;                // [rows, C]
    Workspace rest;
    BackwardScratch(Arena& arena, const BlockBody& body, LayerRows sizes, const ExecutorRef&);
  };

  explicit BlockBody(const Options& options);
  void prepare() requires Prepared<Attention> { attention_.prepare(); }

  const Options& options() const { return options_; }
  const ParameterTable& table() const { return table_; }
  Index tokens() const { return attention_->tokens(); }
  Index most_tokens() const requires(requires(const Attention& a) { a.most_tokens(); }) {
    return attention_->most_tokens();
  }
  /// Columns of c.
  Index condition() const requires(kModulated) { return condition_->columns(); }

  /// Computes all that backward reads.
  void record(std::span<const T> parameters, MatrixView<const T> x, MatrixView<const T> c,
              const Tape& tape, const ForwardScratch& scratch, const ExecutorRef& executor) const;
  void record(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
              const ForwardScratch& scratch, const ExecutorRef& executor) const
      requires(!kModulated) {
    record(parameters, x, {}, tape, scratch, executor);
  }
  void write(std::span<const T> parameters, const Tape& tape, MatrixView<T> y,
             const ForwardScratch& scratch, const ExecutorRef& executor) const;
  void backward(std::span<const T> parameters, MatrixView<const T> x, MatrixView<const T> c,
                const Tape& tape, MatrixView<const T> dy, MatrixView<T> dx, MatrixView<T> dc,
                std::span<T> gradients, const BackwardScratch& scratch,
                const ExecutorRef& executor) const;
  void backward(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                MatrixView<const T> dy, MatrixView<T> dx, std::span<T> gradients,
                const BackwardScratch& scratch, const ExecutorRef& executor) const
      requires(!kModulated) {
    backward(parameters, x, {}, tape, dy, dx, {}, gradients, scratch, executor);
  }

  const Part<typename F::Norm>& norm(int branch) const { return norms_[branch]; }
  const Part<Attention>& attention() const { return attention_; }
  const Part<FeedForward>& feed_forward() const { return feed_forward_; }

 private:
  /// A branch in a pass: attention or feed-forward.
  template <class Body, class BodyScratch>
  struct Branch {
    int index;
    const Part<Body>& body;
    const typename Body::Tape& tape;
    const BodyScratch& scratch;
  };
  template <class Scratch>
  auto attention_branch(const Tape& tape, const Scratch& scratch) const {
    return Branch<Attention, std::remove_cvref_t<decltype(scratch.bodies.one)>>{
        0, attention_, tape.attention, scratch.bodies.one};
  }
  template <class Scratch>
  auto feed_forward_branch(const Tape& tape, const Scratch& scratch) const {
    return Branch<FeedForward, std::remove_cvref_t<decltype(scratch.bodies.other)>>{
        1, feed_forward_, tape.feed_forward, scratch.bodies.other};
  }

  MatrixView<T> take(Arena& arena, LayerRows sizes) const {
    return take_matrix<T>(kName, arena, sizes.rows, options_.channels);
  }
  bool convolves(BlockConvolution where) const {
    return F::kConvolution == where && convolution_.has_value();
  }
  enum { kShift, kScale, kGate };
  /// Shift, scale or gate of a branch.
  static MatrixView<T> row_of(const MatrixView<T>& modulation, int branch, int which) {
    return columns_of(modulation, 3 * branch + which, 6);
  }
  /// Returns the input of a branch.
  MatrixView<const T> branch_input(int branch, std::span<const T> parameters, MatrixView<const T> x,
                                   const Tape& tape, const InputScratch& scratch,
                                   const ExecutorRef& executor) const;
  template <class B>
  void record_branch(const B& branch, std::span<const T> parameters, MatrixView<const T> x,
                     const Tape& tape, const InputScratch& scratch,
                     const ExecutorRef& executor) const;
  /// y = x + the gated output of a branch that is recorded.
  template <class B>
  void add_residual(const B& branch, std::span<const T> parameters, MatrixView<const T> x,
                    const Tape& tape, MatrixView<T> y, const ExecutorRef& executor) const;
  template <class B>
  void branch_adjoint(const B& branch, std::span<const T> parameters, MatrixView<const T> x,
                      const Tape& tape, MatrixView<const T> dy, MatrixView<T> dx,
                      std::span<T> gradients, const BackwardScratch& scratch,
                      const ExecutorRef& executor) const;

  Options options_;
  ParameterTable table_;
  Part<Condition> condition_;
  Part<typename F::Norm> norms_[2];
  Part<Attention> attention_;
  Part<FeedForward> feed_forward_;
  std::optional<Part<ConvolutionPart<T>>> convolution_;
};

// ------------------------------------------------------------------------------------------------

template <class F>
BlockBody<F>::BlockBody(const Options& options)
    : options_(checked_block_options(kName, options)),
      condition_(table_, F::kPrefixes.condition, F::condition(options)),
      norms_{{table_, F::kPrefixes.attention_norm, F::norm(options)},
             {table_, F::kPrefixes.feed_forward_norm, F::norm(options)}},
      attention_(table_, F::kPrefixes.attention, Attention(F::attention(options))),
      feed_forward_(table_, F::kPrefixes.feed_forward, F::feed_forward(options)) {
  if constexpr (F::kConvolution != BlockConvolution::kNever) {
    if (auto part = F::convolution(options)) {
      convolution_.emplace(table_, F::kPrefixes.convolution, std::move(*part));
    }
  }
}

template <class F>
BlockBody<F>::Tape::Tape(Arena& arena, const BlockBody& body, LayerRows sizes)
    : condition(arena, *body.condition_, {sizes.batch, sizes.batch}),
      attention(arena, *body.attention_, sizes),
      feed_forward(arena, *body.feed_forward_, sizes) {
  if (kModulated) outputs[0] = body.take(arena, sizes), outputs[1] = body.take(arena, sizes);
  middle = body.take(arena, sizes);
  if (body.convolution_) edge = body.take(arena, sizes);
}

template <class F>
BlockBody<F>::ForwardScratch::ForwardScratch(Arena& arena, const BlockBody& body, LayerRows sizes,
                                             const ExecutorRef& executor)
    : condition(arena, *body.condition_, {sizes.batch, sizes.batch}, executor),
      input(arena, body, sizes),
      bodies(arena, *body.attention_, *body.feed_forward_, sizes, executor) {
  if (!body.convolution_) return;
  rest = take_bytes(kName, arena, ConvolutionPart<T>::bytes(body.options_.channels));
}

template <class F>
MatrixView<const typename F::Scalar> BlockBody<F>::branch_input(
    int branch, std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
    const InputScratch& scratch, const ExecutorRef& executor) const {
  const auto& norm = norms_[branch];
  norm->apply(norm.of(parameters), x, scratch.normed, executor);
  if constexpr (kModulated) {
    const MatrixView<T>& m = tape.condition.modulation;
    modulate(scratch.normed, row_of(m, branch, kScale), row_of(m, branch, kShift),
             scratch.modulated, executor);
  }
  return scratch.modulated;
}

template <class F>
template <class B>
void BlockBody<F>::record_branch(const B& branch, std::span<const T> parameters,
                                 MatrixView<const T> x, const Tape& tape,
                                 const InputScratch& scratch, const ExecutorRef& executor) const {
  const auto p = branch.body.of(parameters);
  branch.body->record(p, branch_input(branch.index, parameters, x, tape, scratch, executor),
                      branch.tape, branch.scratch, executor);
  if constexpr (kModulated) {
    branch.body->write(p, branch.tape, tape.outputs[branch.index], branch.scratch, executor);
  }
}

template <class F>
template <class B>
void BlockBody<F>::add_residual(const B& branch, std::span<const T> parameters,
                                MatrixView<const T> x, const Tape& tape, MatrixView<T> y,
                                const ExecutorRef& executor) const {
  if constexpr (kModulated) {
    add_gated(x, row_of(tape.condition.modulation, branch.index, kGate), tape.outputs[branch.index],
              y, executor);
  } else {
    branch.body->write(branch.body.of(parameters), branch.tape, y, branch.scratch, executor);
    add<T>(x, y, executor);
  }
}

template <class F>
void BlockBody<F>::record(std::span<const T> parameters, MatrixView<const T> x,
                          MatrixView<const T> c, const Tape& tape, const ForwardScratch& scratch,
                          const ExecutorRef& executor) const {
  const auto attention = attention_branch(tape, scratch);
  const auto feed_forward = feed_forward_branch(tape, scratch);
  if constexpr (kModulated) {
    condition_->record(condition_.of(parameters), c, tape.condition, scratch.condition, executor);
  }
  if (convolves(BlockConvolution::kFirst)) {
    const auto& convolution = *convolution_;
    convolution->apply(convolution.of(parameters), x, tape.edge,
                       {.workspace = scratch.rest, .executor = executor});
    add<T>(x, tape.edge, executor);
    x = tape.edge;
  }
  record_branch(attention, parameters, x, tape, scratch.input, executor);
  add_residual(attention, parameters, x, tape, tape.middle, executor);
  record_branch(feed_forward, parameters, tape.middle, tape, scratch.input, executor);
  if (convolves(BlockConvolution::kLast)) {
    add_residual(feed_forward, parameters, tape.middle, tape, tape.edge, executor);
  }
}

template <class F>
void BlockBody<F>::write(std::span<const T> parameters, const Tape& tape, MatrixView<T> y,
                         const ForwardScratch& scratch, const ExecutorRef& executor) const {
  if (!convolves(BlockConvolution::kLast)) {
    return add_residual(feed_forward_branch(tape, scratch), parameters, tape.middle, tape, y,
                        executor);
  }
  const auto& convolution = *convolution_;
  convolution->apply(convolution.of(parameters), tape.edge, y,
                     {.workspace = scratch.rest, .executor = executor});
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
