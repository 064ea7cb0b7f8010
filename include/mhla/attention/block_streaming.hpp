#pragma once

/// \file
/// Block-causal attention step by step (block_causal.hpp): a state takes the tokens of one step at
/// a time, such as a frame or a chunk. Every token reads its own step and earlier steps whole.
///
///     BlockStreaming<float, Grid> stream(sizes, Grid(...), matrix);    M / step steps, no more
///     BlockStreaming<float, Grid, Operator<>, DecayMixing<float>> stream(sizes, Grid(...), terms);
///
/// A denoiser visits a step several times before it commits: roll_back takes the last step back,
/// and the next append replaces it. An append has the bits of block_causal on vector instructions,
/// except that decaying terms agree within rounding.
///
/// Cost per step of n blocks: 4*n*W*D*E flops, and 2*n*D*E per block that a row reads. A state
/// keeps the summaries of M blocks, or of up to 2 L + 4 n blocks of a band of lower width L. With R
/// decaying terms it keeps R + 2 n, for any number of steps. Source: arXiv:2601.07832, section 4.1.

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "mhla/attention/bidirectional_head.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/overlap.hpp"
#include "mhla/attention/step_window.hpp"
#include "mhla/attention/stream_batch.hpp"
#include "mhla/attention/streaming_state.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/policy/mixing_matrix.hpp"
#include "mhla/policy/partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Widths of the tensors that a stream of steps takes.
struct BlockStreamingSizes {
  Index width;                 ///< of q and k, before the feature maps
  Index values;                ///< E
  Index normalizer_width = 0;  ///< of normalizer_q and normalizer_k; 0: none
};

/// A block-causal operator for streams: the widths, the blocks of a step, the mixing matrix or one
/// per head, and the policies that any number of states share. Const functions may run concurrently
/// on different states.
/// \tparam Blocks  a partition of the tokens of one step
/// \tparam Mixing  MixingMatrix or DecayMixing
template <Scalar T, class Blocks, class Op = Operator<>,
          class Mixing = MixingMatrix<accumulator_t<T>>>
class BlockStreaming {
  static_assert(Partition<Blocks>, "Blocks must be a partition of the tokens of one step");
  static_assert(OperatorOn<Op, T>, "Op must have feature maps for T's accumulator");
  static_assert(CausalOperator<Op>, "a stream cannot use CrossQuery: it reads later queries");
  using A = accumulator_t<T>;
  using View = decltype(std::declval<const Mixing&>().view());
  using Window = detail::StepWindow<A, View>;

 public:
  using Element = T;

  /// \throws shape_error unless the mixing matrix is square and serves all sequences.
  /// \throws option_error for a step without a token or a negative width.
  /// \throws option_error for a matrix without a term, or with lists of blocks of later steps.
  /// \throws option_error for a normaliser that is not causal.
  BlockStreaming(const BlockStreamingSizes& sizes, Blocks step, Mixing mixing, Op op = {});

  /// A state that has seen no step. It reads the mixing matrix of this head, if each has one.
  /// \throws option_error if there is no such head.
  StreamingState<A> start(Index head = 0) const {
    return {header(detail::state_head("BlockStreaming::start", head, heads())), memory_bytes_};
  }
  /// Mixing matrices: H, or 1 if all heads share one.
  Index heads() const { return mixing_.heads(); }

  /// Writes the outputs [n,E] of the tokens of the next step and moves the state past them.
  ///
  /// \param in    the n tokens of a step: q, k [n, width], v [n, values], masks of n entries
  /// \param call  workspace: append_workspace_bytes(executor) or empty; kept: empty
  /// \throws shape_error, option_error for anything that does not fit, and option_error when the
  ///         stream would have more tokens than capacity(); the state is unchanged.
  void append(StreamingState<A>& state, const Inputs<T>& in, MatrixView<T> out,
              const Call& call = {}) const;

  /// Takes the last step back: the next append replaces it, with the bits that it would have had.
  /// The last append can always be taken back. With a dense or sparse matrix all steps can.
  /// \throws option_error if the state has no step, or no longer the summaries of those before it.
  void roll_back(StreamingState<A>& state) const;

  /// The same as append, for arguments that have passed check_append.
  void append_checked(StreamingState<A>& state, const Inputs<T>& in, MatrixView<T> out,
                      Workspace workspace, const ExecutorRef& executor = {}) const;
  /// Throws what append with these arguments would throw.
  void check_append(const StreamingState<A>& state, const Inputs<T>& in, MatrixView<T> out) const {
    check_inputs(in, out);
    check_state(state, in.q.rows);
    detail::expect_separate(kAppend, in, MatrixView<const T>(out));
  }
  /// The part of check_append about the tensors, which heads of a batch share, and about a state.
  void check_inputs(const Inputs<T>& in, MatrixView<T> out) const;
  void check_state(const StreamingState<A>& state, Index tokens) const;

  /// Bytes of workspace any append needs.
  std::size_t append_workspace_bytes(const ExecutorRef& executor = {}) const;
  /// Bytes of a state, and of its saved form.
  std::size_t state_bytes() const { return StreamingState<A>::bytes_with(memory_bytes_); }
  /// Tokens a stream can take, in whole steps; with DecayMixing as many as an Index counts.
  Index capacity() const { return capacity_; }

 private:
  static constexpr const char* kName = "BlockStreaming";
  static constexpr const char* kAppend = "BlockStreaming::append";

  Index step() const { return blocks_.blocks(); }
  Index tokens() const { return blocks_.tokens(); }
  /// Tensors of a step without data.
  Inputs<T> shapes() const {
    const auto rows = [this](Index cols) {
      return MatrixView<const T>(nullptr, tokens(), cols, cols);
    };
    Inputs<T> in{.q = rows(sizes_.width), .k = rows(sizes_.width), .v = rows(sizes_.values)};
    if (sizes_.normalizer_width > 0) {
      in.normalizer_q = in.normalizer_k = rows(sizes_.normalizer_width);
    }
    return in;
  }
  Window window(Index head) const { return {mixing_.of_head(head), step()}; }
  detail::StateHeader header(Index head) const;
  void expect_state(const char* function, const StreamingState<A>& state) const;
  /// First block after the state's tokens.
  Index next_block(const StreamingState<A>& state) const {
    return state.position() / tokens() * step();
  }
  auto head(detail::Arena& arena, detail::Arena& kept, const Inputs<T>& in, Index workers,
            const detail::CrossShares& shares) const {
    return detail::BidirectionalHead(detail::vector_unit{}, kAppend, arena, &kept, in, blocks_,
                                     blocks_, op_, workers, shares);
  }

  BlockStreamingSizes sizes_;
  Blocks blocks_;
  Mixing mixing_;
  Op op_;
  detail::HeadSizes head_;
  Index capacity_ = 0;            // tokens
  std::size_t memory_bytes_ = 0;  // of a state
};

// ------------------------------------------------------------------------------------------------

template <Scalar T, class Blocks, class Op, class Mixing>
BlockStreaming<T, Blocks, Op, Mixing>::BlockStreaming(const BlockStreamingSizes& sizes, Blocks step,
                                                      Mixing mixing, Op op)
    : sizes_(sizes), blocks_(std::move(step)), mixing_(std::move(mixing)), op_(std::move(op)) {
  using namespace detail;
  if (sizes.width < 0 || sizes.values < 0 || sizes.normalizer_width < 0) {
    fail_option(kName, "sizes",
                "are width " + std::to_string(sizes.width) + ", values " +
                    std::to_string(sizes.values) + ", normalizer_width " +
                    std::to_string(sizes.normalizer_width),
                "widths >= 0");
  }
  if (tokens() < 1)
    fail_option(kName, "step", "has no token", "a partition of the tokens of a step");
  expect_partition(kName, "step", blocks_, tokens());
  expect_causal_normalizer(kName, op_);
  Window::check(kName, mixing_.view(), this->step());
  const Index steps = window(0).most_blocks() / this->step();
  capacity_ = std::min(steps, std::numeric_limits<Index>::max() / tokens()) * tokens();
  head_ = head_sizes(shapes(), op_);
  memory_bytes_ = counted_bytes(
      [this](Arena& arena) { return HeadSummaries<A>(kName, arena, head_, window(0).places()); });
}

template <Scalar T, class Blocks, class Op, class Mixing>
detail::StateHeader BlockStreaming<T, Blocks, Op, Mixing>::header(Index head) const {
  Index terms = 0;
  if constexpr (requires { mixing_.view().terms(); }) terms = mixing_.view().terms();
  return {.scalar_bytes = sizeof(A),
          .width = sizes_.width,
          .values = sizes_.values,
          .block_length = tokens(),
          .normalizer_width = sizes_.normalizer_width,
          .capacity = capacity_,
          .terms = terms,
          .features = head_.features,
          .normalizer_features = head_.normalizer_features,
          .sum_features = head_.sum_features(),
          .head = head,
          .step = step()};
}

template <Scalar T, class Blocks, class Op, class Mixing>
void BlockStreaming<T, Blocks, Op, Mixing>::expect_state(const char* function,
                                                         const StreamingState<A>& state) const {
  const Index head = std::min(state.head(), heads() - 1);
  const bool same = state.same_stream(header(head)) && state.bytes() == state_bytes();
  const Index first = state.header_.first_block, next = same ? next_block(state) : 0;
  if (!same || state.position() % tokens() != 0 || first % step() != 0 || first > next ||
      next - first > window(head).most_kept()) {
    detail::fail_option(function, "state", "was made by another stream", "one made by start()");
  }
}

template <Scalar T, class Blocks, class Op, class Mixing>
void BlockStreaming<T, Blocks, Op, Mixing>::check_inputs(const Inputs<T>& in,
                                                         MatrixView<T> out) const {
  detail::expect_appended(kAppend, in, op_, out, sizes_, tokens());
}

template <Scalar T, class Blocks, class Op, class Mixing>
void BlockStreaming<T, Blocks, Op, Mixing>::check_state(const StreamingState<A>& state,
                                                        Index n) const {
  expect_state(kAppend, state);
  if (n > capacity() - state.position()) {
    detail::fail_option(
        kAppend, "in",
        "has " + std::to_string(n) + " tokens after " + std::to_string(state.position()),
        "at most " + std::to_string(capacity()) +
            " in all, whole steps of the blocks of the mixing matrix");
  }
}

template <Scalar T, class Blocks, class Op, class Mixing>
std::size_t BlockStreaming<T, Blocks, Op, Mixing>::append_workspace_bytes(
    const ExecutorRef& executor) const {
  using namespace detail;
  const Inputs<T> in = shapes();
  const Window of = window(0);
  return counted_bytes([&](Arena& arena) {
    Arena kept;
    arena.take<A>(kAppend, of.numbers());
    return head(arena, kept, in, executor.workers(), {of.queries(0, 0), of.keys(0, 0)});
  });
}

template <Scalar T, class Blocks, class Op, class Mixing>
void BlockStreaming<T, Blocks, Op, Mixing>::append(StreamingState<A>& state, const Inputs<T>& in,
                                                   MatrixView<T> out, const Call& call) const {
  check_append(state, in, out);
  detail::expect_nothing_kept(kAppend, call);
  append_checked(state, in, out, call.workspace, call.executor);
}

template <Scalar T, class Blocks, class Op, class Mixing>
void BlockStreaming<T, Blocks, Op, Mixing>::append_checked(StreamingState<A>& state,
                                                           const Inputs<T>& in, MatrixView<T> out,
                                                           Workspace workspace,
                                                           const ExecutorRef& executor) const {
  using namespace detail;
  Scratch scratch(kAppend, workspace, append_workspace_bytes(executor));
  Arena kept(state.memory());
  const Window of = window(state.head());
  const Index i = next_block(state), from = state.header_.first_block;
  const Index first = of.first_kept(i, from);
  A* const numbers = scratch.arena().template take<A>(kAppend, of.numbers());
  const auto step = head(scratch.arena(), kept, in, executor.workers(),
                         {of.queries(i, first), of.keys(i, first)});
  if (first != from) {
    step.for_each_array(
        [&](Rows<A> rows, Index cols) { of.advance(rows, cols, i, from, first, numbers); });
    state.header_.first_block = first;  // before what may throw: another try finds these rows
  }
  step.summarize(executor);
  step.read(of.coefficients(i, first, numbers), out, executor);
  state.header_.position += tokens();
}

template <Scalar T, class Blocks, class Op, class Mixing>
void BlockStreaming<T, Blocks, Op, Mixing>::roll_back(StreamingState<A>& state) const {
  constexpr const char* kRollBack = "BlockStreaming::roll_back";
  expect_state(kRollBack, state);
  if (state.position() == 0) detail::fail_option(kRollBack, "state", "has no step", "at least one");
  const Index i = next_block(state) - step();
  if (window(state.head()).first_read(i) < state.header_.first_block) {
    detail::fail_option(
        kRollBack, "state",
        "keeps no summary of block " + std::to_string(window(state.head()).first_read(i)),
        "the blocks that the step before reads: fewer steps to take back");
  }
  state.header_.position -= tokens();
}

}  // namespace MHLA_TARGET
}  // namespace mhla
