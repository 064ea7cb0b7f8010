#pragma once

/// \file
/// The steps of a stream: open a block, append one or several tokens, close it (streaming.hpp).
///
/// The tokens of a block prepare the next one, so that all tokens take about the same time
/// (row_schedule.hpp). Each token adds missing keys to a part of the summary and of R
/// (open_block.hpp), and mixes a share of R and z of later blocks. The last token of a block
/// completes the summary. The first token adds the block before to R while it reads R.
///
/// Multiply-adds of a token of block i, over D*E:
///
///     1              to read R
///     1              for the summary
///     1/4            for R, and for keys that its parts lack
///     i/W            to mix later blocks (2R/W with R decaying terms; earlier_blocks.hpp)
///     3.5            more at the last token, for the summary
///     1              more at the first token, for R
///
/// No token takes more than 3 times the median, for any W and number of blocks, if R has 64 numbers
/// to mix per token. The first token after a piece takes no more, since the piece mixed its share.

#include <algorithm>

#include "mhla/attention/causal_block.hpp"
#include "mhla/attention/earlier_blocks.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/streaming_state.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/open_block.hpp"
#include "mhla/tokens/gather.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Sizes of the tensors a stream takes.
struct StreamingSizes {
  Index width;                 ///< of q and k, before the feature maps
  Index values;                ///< E
  Index block_length;          ///< W
  Index normalizer_width = 0;  ///< of normalizer_q and normalizer_k; 0: none
};

namespace detail {

/// The parts of a stream's memory.
template <class A, class Mixing>
struct StreamMemory {
  EarlierBlocks<A, Mixing> earlier;
  Rows<A> open_keys;             ///< [W,D]
  Rows<A> open_values;           ///< [W,E]
  Rows<A> open_normalizer_keys;  ///< [W,Dz]

  StreamMemory(const char* function, Arena& arena, const HeadSizes& n, const Mixing& mixing,
               Index w)
      : earlier(function, arena, n, mixing),
        open_keys(function, arena, w, n.features),
        open_values(function, arena, w, n.values),
        open_normalizer_keys(function, arena, w, n.normalizer_features) {}
};

/// Scratch of one append of one token.
template <class A>
struct StepScratch {
  QueryScratch<A> rows;
  A* key;  ///< [D or Dz] times m_ii

  StepScratch(const char* function, Arena& arena, Index raw, const HeadSizes& n)
      : rows(function, arena, raw, n.features, n.normalizer_features, n.values),
        key(arena.take<A>(function, n.widest())) {}
};

/// One append to block i of a stream, on the memory and the header of one state.
template <Scalar T, class Op, class Mixing>
class StreamBlock {
  using A = accumulator_t<T>;

 public:
  /// \param tokens  of the block that have been appended     \param w  tokens of a block
  StreamBlock(const Op& op, const HeadSizes& sizes, const StreamMemory<A, Mixing>& memory,
              StateHeader& header, Index i, Index tokens, Index w)
      : op_(op),
        n_(sizes),
        p_(memory),
        open_{.running = memory.earlier.running(i),
              .summary = memory.earlier.summary(i),
              .keys = memory.open_keys,
              .values = memory.open_values,
              .features = sizes.features,
              .width = sizes.values,
              .weight = memory.earlier.diagonal(i)},
        z_(memory.earlier.running_key_sum(i)),
        header_(header),
        i_(i),
        tokens_(tokens),
        w_(w),
        keys_(header.open_keys) {
    if (tokens_ > 0) return;
    p_.earlier.add_last_sums(i_);
    std::fill_n(p_.earlier.key_sum(i_), n_.sum_features(), A(0));
  }

  /// Appends several tokens.
  void append(const Inputs<T>& piece, MatrixView<T> out, const CausalScratch<A>& scratch) const {
    const Index count = piece.q.rows;
    if (tokens_ == 0) complete(0, n_.features);
    open_.take_into_running(header_.open_keys, header_.in_running);
    read_causal_block(piece, Contiguous(count, count), 0, op_, n_,
                      CausalSums<A>{open_.weight, open_.running, z_}, scratch, out, true);
    keep(piece, scratch.keys.raw);
    header_.in_running = header_.open_keys;
    take();
    prepare(count);
  }

  /// Appends one token.
  void step(const Inputs<T>& token, MatrixView<T> out, const StepScratch<A>& scratch) const {
    const bool first = tokens_ == 0, reads = token.query_mask[0];
    if (token.key_mask[0]) keep_token(token, scratch.rows.raw);
    if (kept() > 0 && !(first && reads)) extend_key_sum();
    if (!reads) {
      if (first) complete(0, n_.features);
      clear_masked(Contiguous(1, 1), 0, token.query_mask, out);
    } else {
      gather_query(token, scratch.rows);
      first ? read_first(scratch) : read(scratch);
      if (n_.sums != WeightSums::kNone) divide(scratch.rows);
      scatter(scratch.rows.outputs, kToken, 1, out);
    }
    take();
    prepare(1);
  }

 private:
  static constexpr Index kToken[] = {0};

  /// Keys that this append has kept.
  Index kept() const { return header_.open_keys - keys_; }
  /// Parts of S_i and R take in turn the keys that this append has kept.
  void take() const { open_.take(keys_, header_.open_keys, header_.in_running); }

  /// Adds the block before to rows [begin, end) of R.
  void complete(Index begin, Index end) const {
    p_.earlier.add_last(i_, begin * n_.values, end * n_.values);
  }

  void gather_query(const Inputs<T>& token, const QueryScratch<A>& rows) const {
    const A factor = static_cast<A>(op_.scale);
    gather_queries(token.q, kToken, 1, op_.query_map, factor, rows.raw, rows.queries);
    if (!n_.separate_normalizer()) return;
    gather_queries(token.normalizer_q, kToken, 1, op_.query_map, factor, rows.raw,
                   rows.normalizer_queries);
  }
  /// Numerator, and sum of the weights unless there is none, of the block's first token.
  void read_first(const StepScratch<A>& scratch) const {
    A score = open_.read_first(scratch.rows.queries.row(0), kept() > 0, scratch.key,
                               scratch.rows.outputs.row(0),
                               [this](Index begin, Index end) { complete(begin, end); });
    sum_weights(scratch.rows);
    if (kept() == 0) return;
    if (n_.separate_normalizer()) {
      score = score_of(scratch.rows.normalizer_queries.row(0), p_.open_normalizer_keys.row(0),
                       n_.normalizer_features, open_.weight, scratch.key);
    }
    scratch.rows.denominators[0] += score;
    extend_key_sum();
  }
  /// The same of another token.
  void read(const StepScratch<A>& scratch) const {
    open_.read(scratch.rows.queries.row(0), keys_, header_.open_keys, header_.in_running,
               scratch.rows.outputs.row(0));
    sum_weights(scratch.rows);
  }
  void sum_weights(const QueryScratch<A>& rows) const {
    detail::sum_weights(rows.normalizer_queries, 1, n_.sum_features(), z_, rows.denominators);
  }
  void divide(const QueryScratch<A>& rows) const {
    A* const r = rows.denominators;
    op_.normalizer.denominators(static_cast<const A*>(r), 1, r);
    divide_rows(rows.outputs, 1, n_.values, r, rows.factors);
  }

  /// Prepares the next block with the `count` tokens of this append.
  void prepare(Index count) const {
    const Index tokens = tokens_ + count;
    if (header_.capacity - w_ > i_ * w_) {
      if (tokens == w_) open_.complete_summary(header_.open_keys);
      p_.earlier.prepare(i_, tokens_, tokens, w_);
    }
    if (tokens == w_) header_.open_keys = header_.in_running = 0;
  }

  /// Stores the kept keys and values of a piece after those of the open block.
  void keep(const Inputs<T>& piece, A* raw) const {
    const Contiguous whole(piece.k.rows, piece.k.rows);
    StripCursor strip(whole, 0, piece.key_mask);
    while (strip.next() > 0) {
      const Index count = strip.count();
      gather_features(piece.k, strip.tokens(), count, op_.key_map, raw, next(p_.open_keys));
      gather(piece.v, strip.tokens(), count, next(p_.open_values));
      if (n_.separate_normalizer()) {
        gather_features(piece.normalizer_k, strip.tokens(), count, op_.key_map, raw,
                        next(p_.open_normalizer_keys));
      }
      accumulate_key_sum(next(sum_keys()), count, n_.sum_features(), p_.earlier.key_sum(i_));
      header_.open_keys += count;
    }
  }
  /// Stores the key and value of a token and adds the key to z_i.
  void keep_token(const Inputs<T>& token, A* raw) const {
    gather_features(token.k, kToken, 1, op_.key_map, raw, next(p_.open_keys));
    gather(token.v, kToken, 1, next(p_.open_values));
    if (n_.separate_normalizer()) {
      gather_features(token.normalizer_k, kToken, 1, op_.key_map, raw,
                      next(p_.open_normalizer_keys));
    }
    add_to(next(sum_keys()).row(0), p_.earlier.key_sum(i_), n_.sum_features());
    ++header_.open_keys;
  }
  /// Adds the key of a token to z of R.
  void extend_key_sum() const {
    add_scaled(open_.weight, sum_keys().row(header_.open_keys - 1), z_, n_.sum_features());
  }
  /// Rows after those of the kept keys.
  Rows<A> next(Rows<A> rows) const { return rows.below(header_.open_keys); }
  /// Keys that key sums are of.
  Rows<A> sum_keys() const {
    return n_.separate_normalizer() ? p_.open_normalizer_keys : p_.open_keys;
  }

  const Op& op_;
  const HeadSizes& n_;
  const StreamMemory<A, Mixing>& p_;
  OpenBlock<A> open_;
  A* z_;  // of R
  StateHeader& header_;
  Index i_, tokens_, w_;
  Index keys_;  // kept before this append
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
