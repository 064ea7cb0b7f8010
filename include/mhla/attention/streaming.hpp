#pragma once

/// \file
/// The causal form token by token: a state takes a prefill of any length, then one or several
/// tokens at a time. It keeps earlier blocks, the open block's keys and values, and R of block i,
///
///     R = sum_{b<i} m_ib S_b + m_ii sum_{t seen in i} phi(k_t) v_t^T       [D,E]
///
/// so a token costs one product with R and its share of R's update, at any position
/// (open_block.hpp). All tokens share the work on summaries and R of later blocks
/// (stream_block.hpp), in the causal form's order. Outputs of appends that begin at a block have
/// the bits of causal(). Other outputs agree within rounding.
///
///     Streaming<float> stream(sizes, matrix);                                  M blocks, no more
///     Streaming<float, Operator<>, DecayMixing<float>> stream(sizes, terms);   any number
///
/// Cost: 2.5*D*E flops per token, plus 2*W*D*E + 2*i*D*E per block, spread over its tokens. R
/// decaying terms take 4*R*D*E instead of 2*i*D*E. The bytes that a block reads grow with sqrt(M),
/// not with i (earlier_blocks.hpp). Memory: M block summaries, R of about 2 sqrt(M) blocks and a
/// block of tokens. With decaying terms, two summaries, R states of their size, and R of two
/// blocks. state_bytes() is known beforehand. Source: arXiv:2601.07832, section 4.2.

#include <algorithm>
#include <utility>

#include "mhla/attention/batch.hpp"
#include "mhla/attention/heads.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/overlap.hpp"
#include "mhla/attention/stream_batch.hpp"
#include "mhla/attention/stream_block.hpp"
#include "mhla/attention/streaming_state.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/policy/decay_mixing.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// A causal operator for streams: the sizes, the mixing matrix or one per head, and the policies
/// that any number of states share. Const functions may run concurrently on different states.
/// \tparam Mixing  MixingMatrix or DecayMixing
template <Scalar T, class Op = Operator<>, class Mixing = MixingMatrix<accumulator_t<T>>>
class Streaming {
  static_assert(OperatorOn<Op, T>, "Op must have feature maps for T's accumulator");
  static_assert(CausalOperator<Op>, "a stream cannot use CrossQuery: it reads later queries");
  using A = accumulator_t<T>;
  using View = decltype(std::declval<const Mixing&>().view());
  using Earlier = detail::EarlierBlocks<A, View>;

 public:
  using Element = T;

  /// \throws shape_error unless the mixing matrix is square and serves all sequences.
  /// \throws option_error for a decaying matrix
  /// without a term, a negative width, a block_length below 1 or a normaliser that is not causal.
  Streaming(const StreamingSizes& sizes, Mixing mixing, Op op = {});
  /// A state that has seen no token. It reads the mixing matrix of this head, if each has one.
  /// \throws option_error if there is no such head.
  StreamingState<A> start(Index head = 0) const;

  /// Writes the outputs [n,E] of the next n tokens of a stream and moves its state past them.
  /// \param in    n more tokens: q, k [n, width], v [n, values], masks of n entries
  /// \param call  workspace: append_workspace_bytes() or empty; kept: empty; run by one worker
  /// \throws shape_error, option_error for anything that does not fit, and option_error when the
  ///         stream would have more tokens than capacity(); the state is unchanged. After another
  ///         exception, of a map, go on from a copy of the state.
  void append(StreamingState<A>& state, const Inputs<T>& in, MatrixView<T> out,
              const Call& call = {}) const;

  /// The same, for arguments that have passed check_append.
  void append_checked(StreamingState<A>& state, const Inputs<T>& in, MatrixView<T> out,
                      Workspace workspace) const;

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
  std::size_t append_workspace_bytes() const { return append_bytes_; }
  /// Bytes of a state, and of its saved form.
  std::size_t state_bytes() const { return StreamingState<A>::bytes_with(memory_bytes_); }
  /// Tokens a stream can take: blocks of the mixing matrix times block length; with DecayMixing as
  /// many as an Index counts.
  Index capacity() const { return capacity_; }
  /// Mixing matrices: H, or 1 if all heads share one.
  Index heads() const { return mixing_.heads(); }

 private:
  static constexpr const char* kName = "Streaming";
  static constexpr const char* kAppend = "Streaming::append";

  detail::StateHeader header(Index head) const;
  Index raw() const {
    using namespace detail;
    const Index width = std::max(sizes_.width, sizes_.normalizer_width);
    return std::max(raw_size<A, query_map_t<Op>>(width), raw_size<A, key_map_t<Op>>(width));
  }
  detail::StreamMemory<A, View> memory(detail::Arena& arena, Index head) const {
    return {kName, arena, head_, mixing_.of_head(head), sizes_.block_length};
  }
  detail::CausalScratch<A> piece_scratch(detail::Arena& arena) const {
    return {kName, arena, raw(), raw(), head_};
  }
  detail::StepScratch<A> step_scratch(detail::Arena& arena) const {
    return {kName, arena, raw(), head_};
  }

  StreamingSizes sizes_;
  Mixing mixing_;
  Op op_;
  detail::HeadSizes head_;
  Index capacity_ = 0;            // tokens
  std::size_t memory_bytes_ = 0;  // of a state
  std::size_t append_bytes_ = 0;
};

// ------------------------------------------------------------------------------------------------

template <Scalar T, class Op, class Mixing>
Streaming<T, Op, Mixing>::Streaming(const StreamingSizes& sizes, Mixing mixing, Op op)
    : sizes_(sizes), mixing_(std::move(mixing)), op_(std::move(op)) {
  if (sizes.width < 0 || sizes.values < 0 || sizes.block_length < 1 || sizes.normalizer_width < 0) {
    detail::fail_option(kName, "sizes",
                        "are width " + std::to_string(sizes.width) + ", values " +
                            std::to_string(sizes.values) + ", block_length " +
                            std::to_string(sizes.block_length) + ", normalizer_width " +
                            std::to_string(sizes.normalizer_width),
                        "widths >= 0 and block_length >= 1");
  }
  detail::expect_causal_normalizer(kName, op_);
  Earlier::check(kName, mixing_.view());
  capacity_ = Earlier::most_tokens(mixing_.view(), sizes.block_length);
  const WeightSums sums = op_.normalizer.sums();
  const bool separate = sizes.normalizer_width > 0 && sums != WeightSums::kNone;
  head_ = {0,
           0,
           op_.query_map.features(sizes.width),
           sizes.values,
           sums,
           separate ? op_.query_map.features(sizes.normalizer_width) : 0};
  using detail::Arena;
  memory_bytes_ = detail::counted_bytes([this](Arena& arena) { return memory(arena, 0); });
  append_bytes_ =
      std::max(detail::counted_bytes([this](Arena& arena) { return piece_scratch(arena); }),
               detail::counted_bytes([this](Arena& arena) { return step_scratch(arena); }));
}

template <Scalar T, class Op, class Mixing>
detail::StateHeader Streaming<T, Op, Mixing>::header(Index head) const {
  return {.scalar_bytes = sizeof(A),
          .width = sizes_.width,
          .values = sizes_.values,
          .block_length = sizes_.block_length,
          .normalizer_width = sizes_.normalizer_width,
          .capacity = capacity_,
          .terms = Earlier::terms(mixing_.view()),
          .features = head_.features,
          .normalizer_features = head_.normalizer_features,
          .sum_features = head_.sum_features(),
          .head = head};
}

template <Scalar T, class Op, class Mixing>
auto Streaming<T, Op, Mixing>::start(Index head) const -> StreamingState<A> {
  return {header(detail::state_head("Streaming::start", head, heads())), memory_bytes_};
}

template <Scalar T, class Op, class Mixing>
void Streaming<T, Op, Mixing>::check_inputs(const Inputs<T>& in, MatrixView<T> out) const {
  detail::expect_appended(kAppend, in, op_, out, sizes_);
}

template <Scalar T, class Op, class Mixing>
void Streaming<T, Op, Mixing>::check_state(const StreamingState<A>& state, Index n) const {
  const bool same = state.same_stream(header(std::min(state.head(), heads() - 1)));
  if (!same || state.bytes() != state_bytes()) {
    detail::fail_option(kAppend, "state", "was made by another stream", "one made by start()");
  }
  if (n > capacity() - state.header_.position) {
    detail::fail_option(
        kAppend, "in",
        "has " + std::to_string(n) + " tokens after " + std::to_string(state.header_.position),
        "at most " + std::to_string(capacity()) + " in all (" +
            std::to_string(capacity() / sizes_.block_length) + " rows of the mixing matrix times " +
            std::to_string(sizes_.block_length) + " tokens)");
  }
}

template <Scalar T, class Op, class Mixing>
void Streaming<T, Op, Mixing>::append(StreamingState<A>& state, const Inputs<T>& in,
                                      MatrixView<T> out, const Call& call) const {
  check_append(state, in, out);
  detail::expect_nothing_kept(kAppend, call);
  append_checked(state, in, out, call.workspace);
}

template <Scalar T, class Op, class Mixing>
void Streaming<T, Op, Mixing>::append_checked(StreamingState<A>& state, const Inputs<T>& in,
                                              MatrixView<T> out, Workspace workspace) const {
  using detail::Arena;
  detail::Scratch scratch(kAppend, workspace, append_workspace_bytes());
  Arena state_arena(state.memory());
  const detail::StreamMemory<A, View> p = memory(state_arena, state.head());
  detail::StateHeader& header = state.header_;
  const Index w = sizes_.block_length;
  for (Index done = 0; done < in.q.rows;) {
    const Index i = header.position / w, offset = header.position % w;
    const Index count = std::min(w - offset, in.q.rows - done);
    const detail::StreamBlock<T, Op, View> block(op_, head_, p, header, i, offset, w);
    const Inputs<T> piece = detail::middle_tokens(in, done, count);
    const MatrixView<T> piece_out = out.middle_rows(done, count);
    Arena arena(scratch.bytes().data());
    if (count == 1) {
      block.step(piece, piece_out, step_scratch(arena));
    } else {
      block.append(piece, piece_out, piece_scratch(arena));
    }
    header.position += count;
    done += count;
  }
}

}  // namespace MHLA_TARGET
}  // namespace mhla
