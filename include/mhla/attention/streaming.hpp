#pragma once

/// \file
/// The causal form token by token: a state that takes a prefill of any length, then one token or
/// several at a time.
///
/// The state keeps the summaries of closed blocks, the open block's keys and values, and the
/// running read-out matrix of block i,
///
///     R = sum_{b<i} m_ib S_b + m_ii sum_{t seen in i} phi(k_t) v_t^T       [D,E]
///
/// so a token costs one product with R and its share of an update, wherever it stands
/// (running.hpp). When a block closes its summary is made from its keys and values in the causal
/// form's order, so the outputs of whole blocks are bitwise those of causal(); inside a block they
/// agree within rounding. Cost: 4*D*E flops a token; once a block 2*W*D*E + 2*i*D*E more. Memory: M
/// block summaries and a block of tokens, known beforehand (state_bytes), of which a step touches
/// D*E numbers. Source: arXiv:2601.07832, section 4.2.

#include <algorithm>
#include <span>
#include <utility>

#include "mhla/attention/causal_block.hpp"
#include "mhla/attention/form.hpp"
#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/streaming_state.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/streaming_product.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Sizes of the tensors a stream takes.
struct StreamingSizes {
  Index width;                 ///< of q and k, before the feature maps
  Index values;                ///< E
  Index block_length;          ///< W
  Index normalizer_width = 0;  ///< of normalizer_q and normalizer_k, 0 where there are none
};

/// A causal operator for streams: the sizes, the mixing matrix and the policies that any number of
/// states share. Const functions may run concurrently on different states.
template <Scalar T, class Op = Operator<>>
class Streaming {
  static_assert(OperatorOn<Op, T>, "Op must have feature maps for T's accumulator");
  static_assert(CausalOperator<Op>, "a stream cannot use CrossQuery: it reads later queries");
  using A = accumulator_t<T>;

 public:
  /// \throws option_error for a size that cannot be or a normaliser that is not causal, shape_error
  /// if
  ///         the mixing is not square.
  Streaming(const StreamingSizes& sizes, MixingMatrix<A> mixing, Op op = {});

  /// A state that has seen nothing.
  StreamingState<A> start() const;

  /// Writes the outputs [n,E] of the next n tokens of a stream and moves its state past them.
  /// \param in         n more tokens: q, k [n, width], v [n, values], masks of n entries
  /// \param workspace  at least append_workspace_bytes(), or empty to allocate
  /// \throws shape_error, option_error for anything that does not fit, and option_error when the
  ///         stream would need more blocks than the mixing matrix has; the state is unchanged.
  void append(StreamingState<A>& state, const Inputs<T>& in, MatrixView<T> out,
              Workspace workspace = {}) const;

  /// The same for arguments that check_append has passed, without checking them again.
  void append_checked(StreamingState<A>& state, const Inputs<T>& in, MatrixView<T> out,
                      Workspace workspace) const;

  /// Throws what append with these arguments would throw.
  void check_append(const StreamingState<A>& state, const Inputs<T>& in, MatrixView<T> out) const;

  /// Bytes of workspace any append needs.
  std::size_t append_workspace_bytes() const { return append_bytes_; }
  /// Bytes of a state, and of its saved form.
  std::size_t state_bytes() const { return StreamingState<A>::bytes_with(memory_bytes_); }
  /// Tokens a stream can take: blocks of the mixing matrix times block length.
  Index capacity() const { return mixing_.rows() * sizes_.block_length; }

 private:
  /// The parts of a state's memory.
  struct Parts {
    detail::HeadSummaries<A> summaries;
    detail::Running<A> running;            // R, and the open block's keys and values
    A* running_key_sum;                    // z of R [Dz]
    detail::Rows<A> open_normalizer_keys;  // [W,Dz]
    Parts(detail::Arena& arena, const Streaming& s);
  };

  /// Scratch of one append.
  struct Worker {
    detail::CausalScratch<A> scratch;
    detail::Coefficients<A> coefficients;  // of one row
    Worker(detail::Arena& arena, const Streaming& s);
  };

  /// Scratch of one append of one token.
  struct StepScratch {
    detail::QueryScratch<A> rows;
    detail::Rows<A> keys;  // [2, D or Dz] keys times m_ii
    StepScratch(detail::Arena& arena, const Streaming& s);
  };

  static constexpr const char* kName = "Streaming";

  Parts parts(StreamingState<A>& state) const;
  detail::StateHeader header() const;
  void open_block(Index i, const Parts& p, const Worker& worker) const;
  void append_piece(detail::StateHeader& header, const Parts& p, const Inputs<T>& piece, A weight,
                    MatrixView<T> out, Worker& worker) const;
  void keep_piece(detail::StateHeader& header, const Parts& p, const Inputs<T>& piece,
                  const Worker& worker) const;
  void step(detail::StateHeader& header, const Parts& p, const Inputs<T>& token, A weight,
            MatrixView<T> out, const StepScratch& scratch) const;
  void keep_token(detail::StateHeader& header, const Parts& p, const Inputs<T>& token, A weight,
                  const StepScratch& scratch) const;
  void close_block(Index i, Index kept, const Parts& p) const;

  StreamingSizes sizes_;
  MixingMatrix<A> mixing_;
  Op op_;
  detail::HeadSizes head_;
  std::size_t memory_bytes_ = 0;  // of a state
  std::size_t append_bytes_ = 0;
};

/// Streaming::append of every sequence and head of a batch.
/// \param states  [sequences * H] states, the heads of a sequence side by side
/// \throws as append does, before any state or output has changed.
template <Scalar T, class Op>
void append(const Streaming<T, Op>& stream, std::span<StreamingState<accumulator_t<T>>> states,
            const BatchInputs<T>& in, std::type_identity_t<TensorView<T>> out,
            const Call& call = {});
template <Scalar T, class Op>
std::size_t append_workspace_bytes(const Streaming<T, Op>& stream,
                                   const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

template <Scalar T, class Op>
Streaming<T, Op>::Streaming(const StreamingSizes& sizes, MixingMatrix<A> mixing, Op op)
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
  detail::expect_mixing<const A>(kName, mixing_, mixing_.rows(), mixing_.rows());
  detail::checked_product(kName, "capacity", {mixing_.rows(), sizes.block_length});
  const WeightSums sums = op_.normalizer.sums();
  const bool own = sizes.normalizer_width > 0 && sums != WeightSums::kNone;
  head_ = {0,
           0,
           op_.query_map.features(sizes.width),
           sizes.values,
           sums,
           own ? op_.query_map.features(sizes.normalizer_width) : 0};
  using detail::Arena;
  memory_bytes_ = detail::counted_bytes([this](Arena& arena) { return Parts(arena, *this); });
  append_bytes_ =
      std::max(detail::counted_bytes([this](Arena& arena) { return Worker(arena, *this); }),
               detail::counted_bytes([this](Arena& arena) { return StepScratch(arena, *this); }));
}

template <Scalar T, class Op>
Streaming<T, Op>::Parts::Parts(detail::Arena& arena, const Streaming& s)
    : summaries(kName, arena, s.head_, s.mixing_.rows()),
      running{arena.take<A>(kName, {s.head_.features, s.head_.values}), s.head_.features,
              s.head_.values,
              detail::Rows<A>(kName, arena, s.sizes_.block_length, s.head_.features),
              detail::Rows<A>(kName, arena, s.sizes_.block_length, s.head_.values)},
      running_key_sum(arena.take<A>(kName, s.head_.sum_features())),
      open_normalizer_keys(kName, arena, s.sizes_.block_length, s.head_.normalizer_features) {}

template <Scalar T, class Op>
Streaming<T, Op>::Worker::Worker(detail::Arena& arena, const Streaming& s)
    : scratch(kName, arena, std::max(s.sizes_.width, s.sizes_.normalizer_width),
              std::max(s.sizes_.width, s.sizes_.normalizer_width), s.head_, s.sizes_.block_length),
      coefficients(kName, arena, 1, s.mixing_.rows()) {}

template <Scalar T, class Op>
Streaming<T, Op>::StepScratch::StepScratch(detail::Arena& arena, const Streaming& s)
    : rows(kName, arena, std::max(s.sizes_.width, s.sizes_.normalizer_width), s.head_.features,
           s.head_.normalizer_features, s.head_.values),
      keys(kName, arena, detail::kFoldedKeys, s.head_.widest()) {}

template <Scalar T, class Op>
detail::StateHeader Streaming<T, Op>::header() const {
  return {.scalar_bytes = sizeof(A),
          .width = sizes_.width,
          .values = sizes_.values,
          .block_length = sizes_.block_length,
          .normalizer_width = sizes_.normalizer_width,
          .blocks = mixing_.rows(),
          .features = head_.features,
          .normalizer_features = head_.normalizer_features};
}

template <Scalar T, class Op>
auto Streaming<T, Op>::start() const -> StreamingState<A> {
  return {header(), memory_bytes_};
}

template <Scalar T, class Op>
typename Streaming<T, Op>::Parts Streaming<T, Op>::parts(StreamingState<A>& state) const {
  detail::Arena arena(state.memory());
  return Parts(arena, *this);
}

template <Scalar T, class Op>
void Streaming<T, Op>::check_append(const StreamingState<A>& state, const Inputs<T>& in,
                                    MatrixView<T> out) const {
  constexpr const char* kAppend = "Streaming::append";
  detail::expect_inputs(kAppend, in, op_, out);
  detail::expect_shape(kAppend, "q", in.q, -1, sizes_.width);
  detail::expect_shape(kAppend, "k", in.k, in.q.rows, sizes_.width);
  detail::expect_shape(kAppend, "v", in.v, in.q.rows, sizes_.values);
  detail::expect_shape(kAppend, "normalizer_q", in.normalizer_q, -1, sizes_.normalizer_width);
  detail::expect_shape(kAppend, "normalizer_k", in.normalizer_k, -1, sizes_.normalizer_width);
  if (!state.same_stream(header())) {
    detail::fail_option(kAppend, "state", "was made by another stream", "one made by start()");
  }
  const Index n = in.q.rows;
  if (n > capacity() - state.header_.position) {
    detail::fail_option(
        kAppend, "in",
        "has " + std::to_string(n) + " tokens after " + std::to_string(state.header_.position),
        "at most " + std::to_string(capacity()) + " in all (" + std::to_string(mixing_.rows()) +
            " rows of the mixing matrix times " + std::to_string(sizes_.block_length) + " tokens)");
  }
}

template <Scalar T, class Op>
void Streaming<T, Op>::append(StreamingState<A>& state, const Inputs<T>& in, MatrixView<T> out,
                              Workspace workspace) const {
  check_append(state, in, out);
  append_checked(state, in, out, workspace);
}

template <Scalar T, class Op>
void Streaming<T, Op>::append_checked(StreamingState<A>& state, const Inputs<T>& in,
                                      MatrixView<T> out, Workspace workspace) const {
  const Index n = in.q.rows;
  detail::Scratch memory("Streaming::append", workspace, append_workspace_bytes());
  const Parts p = parts(state);
  detail::StateHeader& header = state.header_;
  for (Index done = 0; done < n;) {
    const Index i = header.position / sizes_.block_length;
    const Index offset = header.position % sizes_.block_length;
    const Index count = std::min(sizes_.block_length - offset, n - done);
    const Inputs<T> piece = detail::middle_tokens(in, done, count);
    const MatrixView<T> piece_out = out.middle_rows(done, count);
    detail::Arena arena(memory.bytes().data());
    if (offset > 0 && count == 1) {
      step(header, p, piece, mixing_(i, i), piece_out, StepScratch(arena, *this));
    } else {
      Worker worker(arena, *this);
      if (offset == 0) {
        open_block(i, p, worker);
        header.open_keys = header.in_running = 0;
      }
      append_piece(header, p, piece, mixing_(i, i), piece_out, worker);
    }
    if (offset + count == sizes_.block_length) close_block(i, header.open_keys, p);
    header.position += count;
    done += count;
  }
}

/// The first token or several tokens of one block.
template <Scalar T, class Op>
void Streaming<T, Op>::append_piece(detail::StateHeader& header, const Parts& p,
                                    const Inputs<T>& piece, A weight, MatrixView<T> out,
                                    Worker& worker) const {
  const Index count = piece.q.rows;
  p.running.level(header.open_keys, header.open_keys - header.in_running, weight);
  detail::read_causal_block(piece, Contiguous(count, count), 0, op_, head_,
                            detail::CausalRead<A>{weight, p.running.matrix, p.running_key_sum},
                            worker.scratch, out);
  keep_piece(header, p, piece, worker);
  detail::extend_running(worker.scratch, head_, p.running.matrix, p.running_key_sum);
  header.in_running = header.open_keys;
}

/// R of a block nothing of which has been seen.
template <Scalar T, class Op>
void Streaming<T, Op>::open_block(Index i, const Parts& p, const Worker& worker) const {
  const detail::MixingGroup<A> row(mixing_, i, i + 1, detail::Reach::kEarlier, mixing_.rows(),
                                   worker.coefficients);
  detail::Mixtures<A> running(p.running.matrix, head_.features, head_.values);
  detail::mix(row, p.summaries.values(), running);
  row.mix({p.running_key_sum, 0}, p.summaries.key_sums(), head_.sum_features());
}

/// Stores the kept keys and values of a piece behind those of the open block.
template <Scalar T, class Op>
void Streaming<T, Op>::keep_piece(detail::StateHeader& header, const Parts& p,
                                  const Inputs<T>& piece, const Worker& worker) const {
  A* const raw = worker.scratch.keys.raw;
  const Contiguous whole(piece.k.rows, piece.k.rows);
  detail::StripCursor strip(whole, 0, piece.key_mask);
  while (strip.next() > 0) {
    const Index kept = header.open_keys;
    detail::gather_features(piece.k, strip.tokens(), strip.count(), op_.key_map, raw,
                            p.running.keys.below(kept));
    detail::gather(piece.v, strip.tokens(), strip.count(), p.running.values.below(kept));
    if (head_.own()) {
      detail::gather_features(piece.normalizer_k, strip.tokens(), strip.count(), op_.key_map, raw,
                              p.open_normalizer_keys.below(kept));
    }
    header.open_keys += strip.count();
  }
}

/// One token of a block, not the first.
template <Scalar T, class Op>
void Streaming<T, Op>::step(detail::StateHeader& header, const Parts& p, const Inputs<T>& token,
                            A weight, MatrixView<T> out, const StepScratch& scratch) const {
  using namespace detail;
  const QueryScratch<A>& rows = scratch.rows;
  constexpr Index tokens[] = {0};
  const A factor = static_cast<A>(op_.scale);
  const bool kept = token.key_mask[0];
  if (kept) keep_token(header, p, token, weight, scratch);
  const Index count = header.open_keys, m = count - header.in_running;
  if (!token.query_mask[0]) {
    if (kept) p.running.take(count, m, weight);
    clear_masked(Contiguous(1, 1), 0, token.query_mask, out);
    return;
  }
  gather_queries(token.q, tokens, 1, op_.query_map, factor, rows.raw, rows.queries);
  p.running.read(rows.queries.row(0), count, m, kept, weight, scratch.keys, rows.outputs.row(0));
  if (head_.sums != WeightSums::kNone) {
    if (head_.own()) {
      gather_queries(token.normalizer_q, tokens, 1, op_.query_map, factor, rows.raw,
                     rows.normalizer_queries);
    }
    A* const r = rows.denominators;
    sum_weights(rows.normalizer_queries, 1, head_.sum_features(), p.running_key_sum, r);
    op_.normalizer.denominators(static_cast<const A*>(r), 1, r);
    divide_rows(rows.outputs, 1, head_.values, r, rows.factors);
  }
  scatter(rows.outputs, tokens, 1, out);
}

/// Stores the key and value of a token and adds the key to z. Leaves it times m_ii in scratch,
/// behind the key before.
template <Scalar T, class Op>
void Streaming<T, Op>::keep_token(detail::StateHeader& header, const Parts& p,
                                  const Inputs<T>& token, A weight,
                                  const StepScratch& scratch) const {
  using namespace detail;
  constexpr Index tokens[] = {0};
  const Index kept = header.open_keys++;
  const auto scale_key = [&](const A* key, Index d, A* to) {
    transform(key, to, d, [weight](auto x) {
      return Eigen::internal::pmul(Eigen::internal::pset1<decltype(x)>(weight), x);
    });
  };
  gather(token.v, tokens, 1, p.running.values.below(kept));
  if (head_.own()) {
    gather_features(token.normalizer_k, tokens, 1, op_.key_map, scratch.rows.raw,
                    p.open_normalizer_keys.below(kept));
    scale_key(p.open_normalizer_keys.row(kept), head_.normalizer_features, scratch.keys.row(1));
    add_to(scratch.keys.row(1), p.running_key_sum, head_.normalizer_features);
  }
  gather_features(token.k, tokens, 1, op_.key_map, scratch.rows.raw, p.running.keys.below(kept));
  if (kept > 0) scale_key(p.running.keys.row(kept - 1), head_.features, scratch.keys.row(0));
  scale_key(p.running.keys.row(kept), head_.features, scratch.keys.row(1));
  if (!head_.own()) add_to(scratch.keys.row(1), p.running_key_sum, head_.sum_features());
}

/// S_i and z_i of a block all of which has been seen.
template <Scalar T, class Op>
void Streaming<T, Op>::close_block(Index i, Index kept, const Parts& p) const {
  detail::accumulate_summary(detail::Start::kZero, p.running.keys, p.running.values, kept,
                             head_.features, head_.values, p.summaries.values().block(i));
  A* const key_sum = p.summaries.key_sum(i);
  std::fill_n(key_sum, head_.sum_features(), A(0));
  detail::accumulate_key_sum(head_.own() ? p.open_normalizer_keys : p.running.keys, kept,
                             head_.sum_features(), key_sum);
}

template <Scalar T, class Op>
std::size_t append_workspace_bytes(const Streaming<T, Op>& stream, const ExecutorRef& executor) {
  return static_cast<std::size_t>(detail::checked_product(
      "append", "workspace",
      {executor.workers(), static_cast<Index>(stream.append_workspace_bytes())}));
}

template <Scalar T, class Op>
void append(const Streaming<T, Op>& stream, std::span<StreamingState<accumulator_t<T>>> states,
            const BatchInputs<T>& in, std::type_identity_t<TensorView<T>> out, const Call& call) {
  using namespace detail;
  expect_batch("append", in, out, "out");
  const Index pairs = sequences(in) * heads(in);
  if (static_cast<Index>(states.size()) != pairs) {
    fail_shape("append", "states", "has " + std::to_string(states.size()) + " entries",
               std::to_string(pairs) + " (sequences times heads)");
  }
  const auto with_pair = [&](Index pair, auto&& f) {
    const Index s = pair / heads(in), h = pair % heads(in);
    f(states[static_cast<std::size_t>(pair)], head_inputs(in, s, h), head_output(in, out, s, h));
  };
  for (Index pair = 0; pair < pairs; ++pair) {
    with_pair(pair, [&](const auto& state, const Inputs<T>& head, MatrixView<T> o) {
      stream.check_append(state, head, o);
    });
  }
  const Scratch scratch("append", call.workspace, append_workspace_bytes(stream, call.executor));
  const std::size_t share = stream.append_workspace_bytes();
  call.executor.for_each(pairs, [&](Index pair, Index w) {
    with_pair(pair, [&](auto& state, const Inputs<T>& head, MatrixView<T> o) {
      stream.append_checked(state, head, o,
                            scratch.bytes().subspan(static_cast<std::size_t>(w) * share, share));
    });
  });
}

}  // namespace MHLA_TARGET
}  // namespace mhla
