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
#include <utility>

#include "mhla/attention/causal.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/streaming_state.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/stage/running.hpp"

namespace mhla::inline MHLA_TARGET {

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
  /// \throws option_error for a size that cannot be, shape_error if the mixing is not square.
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
    detail::HeadSummaries<T, Op> summaries;
    detail::Running<A> running;            // R, and the open block's keys and values
    A* running_key_sum;                    // z of R [D or Dz]
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
  static constexpr bool kKeySums = detail::kUsesKeySums<detail::normalizer_t<Op>>;

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
  detail::expect_mixing(kName, mixing_, mixing_.rows(), mixing_.rows());
  detail::checked_product(kName, "capacity", {mixing_.rows(), sizes.block_length});
  head_ = {0, 0, op_.query_map.features(sizes.width),
           sizes.normalizer_width == 0 ? 0 : op_.query_map.features(sizes.normalizer_width),
           sizes.values};
  memory_bytes_ = detail::bytes_of<Parts>(*this);
  append_bytes_ = std::max(detail::bytes_of<Worker>(*this), detail::bytes_of<StepScratch>(*this));
}

template <Scalar T, class Op>
Streaming<T, Op>::Parts::Parts(detail::Arena& arena, const Streaming& s)
    : summaries(kName, arena, s.head_, s.mixing_.rows()),
      running{arena.take<A>(kName, {s.head_.features, s.head_.values}), s.head_.features,
              s.head_.values,
              detail::Rows<A>(kName, arena, s.sizes_.block_length, s.head_.features),
              detail::Rows<A>(kName, arena, s.sizes_.block_length, s.head_.values)},
      running_key_sum(arena.take<A>(kName, detail::key_sum_features(s.head_))),
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
      keys(kName, arena, detail::kFoldedKeys,
           std::max(s.head_.features, s.head_.normalizer_features)) {}

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
  detail::read_causal_block(piece, Contiguous(count, count), 0, op_, weight, p.running.matrix,
                            p.running_key_sum, head_, worker.scratch, out);
  keep_piece(header, p, piece, worker);
  detail::extend_running(worker.scratch, head_, p.running.matrix,
                         kKeySums ? p.running_key_sum : nullptr);
  header.in_running = header.open_keys;
}

/// R of a block nothing of which has been seen.
template <Scalar T, class Op>
void Streaming<T, Op>::open_block(Index i, const Parts& p, const Worker& worker) const {
  const detail::MixingGroup<A> row(mixing_, i, i + 1, detail::Reach::kEarlier, mixing_.rows(),
                                   worker.coefficients);
  detail::Mixtures<A> running;
  running.kv = p.running.matrix;
  running.key_sum = p.running_key_sum;
  running.values = head_.values;
  p.summaries.mix_group(row, running);
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
    if (head_.normalizer_features > 0) {
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
  const Index* const tokens = kOwnRows.data();
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
  if constexpr (kKeySums) {
    if (head_.normalizer_features > 0) {
      gather_queries(token.normalizer_q, tokens, 1, op_.query_map, factor, rows.raw,
                     rows.normalizer_queries);
    }
    key_sum_denominators(rows.normalizer_queries, 1, key_sum_features(head_), p.running_key_sum,
                         static_cast<A>(op_.normalizer.eps), rows.denominators);
    divide_rows(rows.outputs, 1, head_.values, rows.denominators);
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
  const Index* const tokens = kOwnRows.data();
  const Index kept = header.open_keys++;
  const auto scale_key = [&](const A* key, Index d, A* to) {
    transform(key, to, d, [weight](auto x) {
      return Eigen::internal::pmul(Eigen::internal::pset1<decltype(x)>(weight), x);
    });
  };
  gather(token.v, tokens, 1, p.running.values.below(kept));
  if (head_.normalizer_features > 0) {
    gather_features(token.normalizer_k, tokens, 1, op_.key_map, scratch.rows.raw,
                    p.open_normalizer_keys.below(kept));
    scale_key(p.open_normalizer_keys.row(kept), head_.normalizer_features, scratch.keys.row(1));
    if constexpr (kKeySums) {
      accumulate_key_sum(scratch.keys.below(1), 1, head_.normalizer_features, p.running_key_sum);
    }
  }
  gather_features(token.k, tokens, 1, op_.key_map, scratch.rows.raw, p.running.keys.below(kept));
  if (kept > 0) scale_key(p.running.keys.row(kept - 1), head_.features, scratch.keys.row(0));
  scale_key(p.running.keys.row(kept), head_.features, scratch.keys.row(1));
  if constexpr (kKeySums) {
    if (head_.normalizer_features > 0) return;
    accumulate_key_sum(scratch.keys.below(1), 1, head_.features, p.running_key_sum);
  }
}

/// S_i and z_i of a block all of which has been seen.
template <Scalar T, class Op>
void Streaming<T, Op>::close_block(Index i, Index kept, const Parts& p) const {
  detail::accumulate_summary(detail::Start::kZero, p.running.keys, p.running.values, kept,
                             head_.features, p.summaries.block(i));
  if constexpr (kKeySums) {
    const Index dz = detail::key_sum_features(head_);
    A* const key_sum = p.summaries.key_sum(i);
    std::fill_n(key_sum, dz, A(0));
    detail::accumulate_key_sum(
        head_.normalizer_features > 0 ? p.open_normalizer_keys : p.running.keys, kept, dz, key_sum);
  }
}

}  // namespace mhla::inline MHLA_TARGET
