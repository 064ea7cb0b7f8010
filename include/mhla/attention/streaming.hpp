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
/// so a token costs one product with R and one update of it, wherever it stands. When a block
/// closes its summary is made from its keys and values in the causal form's order, so the outputs
/// of whole blocks are bitwise those of causal(); inside a block they agree within rounding.
/// Cost: 4*D*E flops a token; once a block 2*W*D*E + 2*i*D*E more. Memory: M block summaries and a
/// block of tokens, known beforehand (state_bytes), of which a step touches D*E numbers.
/// Source: arXiv:2601.07832, section 4.2.

#include <algorithm>
#include <utility>

#include "mhla/attention/causal.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/streaming_state.hpp"
#include "mhla/core/arch.hpp"

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

  /// Throws what append with these arguments would throw.
  void check_append(const StreamingState<A>& state, const Inputs<T>& in, MatrixView<T> out) const;

  /// Bytes of workspace any append needs.
  std::size_t append_workspace_bytes() const;
  /// Bytes of a state, and of its saved form.
  std::size_t state_bytes() const { return StreamingState<A>::bytes_with(memory_bytes_); }
  /// Tokens a stream can take: blocks of the mixing matrix times block length.
  Index capacity() const { return mixing_.rows() * sizes_.block_length; }

 private:
  /// The parts of a state's memory.
  struct Parts {
    detail::HeadSummaries<T, Op> summaries;
    A* running;                            // R [D,E]
    A* running_key_sum;                    // the same of z [D or Dz]
    detail::Rows<A> open_keys;             // [W,D]
    detail::Rows<A> open_values;           // [W,E]
    detail::Rows<A> open_normalizer_keys;  // [W,Dz]
    Parts(detail::Arena& arena, const Streaming& s);
  };

  /// Scratch of one append.
  struct Worker {
    detail::CausalScratch<A> scratch;
    A* coefficients;  // [M]
    Worker(detail::Arena& arena, const Streaming& s);
  };

  static constexpr const char* kName = "Streaming";
  static constexpr bool kKeySums = detail::kUsesKeySums<detail::normalizer_t<Op>>;

  Parts parts(StreamingState<A>& state) const;
  detail::StateHeader header() const;
  void open_block(Index i, const Parts& p, Worker& worker) const;
  void keep_piece(StreamingState<A>& state, const Parts& p, const Inputs<T>& piece,
                  Worker& worker) const;
  void close_block(Index i, Index kept, const Parts& p) const;

  StreamingSizes sizes_;
  MixingMatrix<A> mixing_;
  Op op_;
  detail::HeadSizes head_;
  std::size_t memory_bytes_ = 0;
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
  detail::Arena counting;
  Parts(counting, *this);
  memory_bytes_ = counting.bytes();
}

template <Scalar T, class Op>
Streaming<T, Op>::Parts::Parts(detail::Arena& arena, const Streaming& s)
    : summaries(kName, arena, s.head_, s.mixing_.rows()),
      running(arena.take<A>(
          kName, detail::checked_product(kName, "sizes", {s.head_.features, s.head_.values}))),
      running_key_sum(arena.take<A>(kName, detail::key_sum_features(s.head_))),
      open_keys(kName, arena, s.sizes_.block_length, s.head_.features),
      open_values(kName, arena, s.sizes_.block_length, s.head_.values),
      open_normalizer_keys(kName, arena, s.sizes_.block_length, s.head_.normalizer_features) {}

template <Scalar T, class Op>
Streaming<T, Op>::Worker::Worker(detail::Arena& arena, const Streaming& s)
    : scratch(kName, arena, std::max(s.sizes_.width, s.sizes_.normalizer_width),
              std::max(s.sizes_.width, s.sizes_.normalizer_width), s.head_, s.sizes_.block_length),
      coefficients(arena.take<A>(kName, s.mixing_.rows())) {}

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
std::size_t Streaming<T, Op>::append_workspace_bytes() const {
  return detail::bytes_of<Worker>(*this);
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
  const Index n = in.q.rows;
  detail::Scratch memory("Streaming::append", workspace, append_workspace_bytes());
  Worker worker(memory.arena(), *this);
  const Parts p = parts(state);
  for (Index done = 0; done < n;) {
    const Index i = state.header_.position / sizes_.block_length;
    const Index offset = state.header_.position % sizes_.block_length;
    const Index count = std::min(sizes_.block_length - offset, n - done);
    const Inputs<T> piece = detail::middle_tokens(in, done, count);
    if (offset == 0) {
      open_block(i, p, worker);
      state.header_.open_keys = 0;
    }
    detail::read_causal_block(piece, Contiguous(count, count), 0, op_, mixing_(i, i), p.running,
                              p.running_key_sum, head_, worker.scratch,
                              out.middle_rows(done, count));
    keep_piece(state, p, piece, worker);
    if (offset + count == sizes_.block_length) {
      close_block(i, state.header_.open_keys, p);
    } else {
      detail::extend_running(worker.scratch, head_, p.running,
                             kKeySums ? p.running_key_sum : nullptr);
    }
    state.header_.position += count;
    done += count;
  }
}

/// R of a block nothing of which has been seen.
template <Scalar T, class Op>
void Streaming<T, Op>::open_block(Index i, const Parts& p, Worker& worker) const {
  const detail::MixingGroup<A> row(mixing_, i, i + 1, detail::Reach::kEarlier, mixing_.rows(),
                                   worker.coefficients);
  detail::Mixtures<A> running;
  running.kv = p.running;
  running.key_sum = p.running_key_sum;
  running.values = head_.values;
  p.summaries.mix_group(row, running);
}

/// Stores the kept keys and values of a piece behind those of the open block.
template <Scalar T, class Op>
void Streaming<T, Op>::keep_piece(StreamingState<A>& state, const Parts& p, const Inputs<T>& piece,
                                  Worker& worker) const {
  const auto behind = [](detail::Rows<A> rows, Index count) {
    rows.data += count * rows.stride;
    return rows;
  };
  A* const raw = worker.scratch.keys.raw;
  const Contiguous whole(piece.k.rows, piece.k.rows);
  detail::StripCursor strip(whole, 0, piece.key_mask);
  while (strip.next() > 0) {
    const Index kept = state.header_.open_keys;
    detail::gather_features(piece.k, strip.tokens(), strip.count(), op_.key_map, raw,
                            behind(p.open_keys, kept));
    detail::gather(piece.v, strip.tokens(), strip.count(), behind(p.open_values, kept));
    if (head_.normalizer_features > 0) {
      detail::gather_features(piece.normalizer_k, strip.tokens(), strip.count(), op_.key_map, raw,
                              behind(p.open_normalizer_keys, kept));
    }
    state.header_.open_keys += strip.count();
  }
}

/// S_i and z_i of a block all of which has been seen.
template <Scalar T, class Op>
void Streaming<T, Op>::close_block(Index i, Index kept, const Parts& p) const {
  detail::accumulate_summary(detail::Start::kZero, p.open_keys, p.open_values, kept, head_.features,
                             p.summaries.block(i));
  if constexpr (kKeySums) {
    const Index dz = detail::key_sum_features(head_);
    A* const key_sum = p.summaries.key_sum(i);
    std::fill_n(key_sum, dz, A(0));
    detail::accumulate_key_sum(head_.normalizer_features > 0 ? p.open_normalizer_keys : p.open_keys,
                               kept, dz, key_sum);
  }
}

}  // namespace mhla::inline MHLA_TARGET
