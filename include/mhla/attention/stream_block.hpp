#pragma once

/// \file
/// The steps of a stream: open a block, append one or several tokens, close it (streaming.hpp).
///
/// What a boundary of blocks needs is prepared by the tokens before it, so that they take about the
/// same time each: a token adds kPreparedKeys keys to a slab of the block's summary, in turn, and
/// mixes the earlier blocks into its share of the next block's R.

#include <algorithm>

#include "mhla/attention/causal_block.hpp"
#include "mhla/attention/earlier_blocks.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/streaming_state.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/streaming_product.hpp"
#include "mhla/stage/summary.hpp"
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
  A* running[2];                 ///< R of the blocks of even and of odd places [D,E]
  Rows<A> open_keys;             ///< [W,D]
  Rows<A> open_values;           ///< [W,E]
  A* running_key_sum;            ///< z of R [Dz]
  Rows<A> open_normalizer_keys;  ///< [W,Dz]

  StreamMemory(const char* function, Arena& arena, const HeadSizes& n, const Mixing& mixing,
               Index w)
      : earlier(function, arena, n, mixing),
        running{arena.take<A>(function, {n.features, n.values}),
                arena.take<A>(function, {n.features, n.values})},
        open_keys(function, arena, w, n.features),
        open_values(function, arena, w, n.values),
        running_key_sum(arena.take<A>(function, n.sum_features())),
        open_normalizer_keys(function, arena, w, n.normalizer_features) {}
};

/// Scratch of one append of one token.
template <class A>
struct StepScratch {
  QueryScratch<A> rows;
  Rows<A> keys;  ///< [2, D or Dz] keys times m_ii

  StepScratch(const char* function, Arena& arena, Index raw, const HeadSizes& n)
      : rows(function, arena, raw, n.features, n.normalizer_features, n.values),
        keys(function, arena, kFoldedKeys, n.widest()) {}
};

/// The steps of block i of a stream, on the memory and the header of one state.
template <Scalar T, class Op, class Mixing>
class StreamBlock {
  using A = accumulator_t<T>;

 public:
  StreamBlock(const Op& op, const HeadSizes& sizes, const StreamMemory<A, Mixing>& memory,
              StateHeader& header, Index i)
      : op_(op),
        n_(sizes),
        p_(memory),
        running_{memory.running[i % 2], sizes.features, sizes.values, memory.open_keys,
                 memory.open_values},
        header_(header),
        i_(i) {}

  /// Makes R, before the first token.
  void open() const {
    p_.earlier.mix(i_, header_.mixed, n_.features * n_.values, running_.matrix);
    p_.earlier.add_last(i_, running_.matrix, p_.running_key_sum);
    header_.open_keys = header_.in_running = header_.in_summary = header_.mixed = 0;
  }

  /// Appends the first token, or several tokens, of one block.
  void append(const Inputs<T>& piece, MatrixView<T> out, CausalScratch<A>& scratch) const {
    const Index count = piece.q.rows;
    const A weight = p_.earlier.own(i_);
    running_.level(header_.open_keys, header_.open_keys - header_.in_running, weight);
    read_causal_block(piece, Contiguous(count, count), 0, op_, n_,
                      CausalRead<A>{weight, running_.matrix, p_.running_key_sum}, scratch, out);
    keep(piece, scratch.keys.raw);
    extend_running(scratch, n_, running_.matrix, p_.running_key_sum);
    header_.in_running = header_.open_keys;
  }

  /// Appends one token of a block, not its first.
  void step(const Inputs<T>& token, MatrixView<T> out, const StepScratch<A>& scratch) const {
    const A weight = p_.earlier.own(i_);
    const QueryScratch<A>& rows = scratch.rows;
    const A factor = static_cast<A>(op_.scale);
    const bool kept = token.key_mask[0];
    if (kept) keep_token(token, weight, scratch);
    const Index count = header_.open_keys, m = count - header_.in_running;
    if (!token.query_mask[0]) {
      if (kept) running_.take(count, m, weight);
      clear_masked(Contiguous(1, 1), 0, token.query_mask, out);
      return;
    }
    gather_queries(token.q, kToken, 1, op_.query_map, factor, rows.raw, rows.queries);
    running_.read(rows.queries.row(0), count, m, kept, weight, scratch.keys, rows.outputs.row(0));
    if (n_.sums != WeightSums::kNone) {
      if (n_.own()) {
        gather_queries(token.normalizer_q, kToken, 1, op_.query_map, factor, rows.raw,
                       rows.normalizer_queries);
      }
      A* const r = rows.denominators;
      sum_weights(rows.normalizer_queries, 1, n_.sum_features(), p_.running_key_sum, r);
      op_.normalizer.denominators(static_cast<const A*>(r), 1, r);
      divide_rows(rows.outputs, 1, n_.values, r, rows.factors);
    }
    scatter(rows.outputs, kToken, 1, out);
  }

  /// Does the share of the boundary's work that is due after so many tokens of a block of `length`.
  void prepare(Index tokens, Index length) const {
    const Index whole = header_.open_keys - (kPreparedKeys - 1);
    summarize(std::max<Index>(0, whole) * slabs() / kPreparedKeys);
    if (i_ + 1 == header_.capacity / length) return;
    const Index end = n_.features * n_.values * tokens / length;
    if (end <= header_.mixed) return;
    p_.earlier.mix(i_ + 1, header_.mixed, end, p_.running[(i_ + 1) % 2]);
    header_.mixed = end;
  }

  /// Makes S_i and z_i, after the last token.
  void close() const {
    for (Index slab = 0; slab < slabs(); ++slab) {
      add_to_slab(slab, kPreparedKeys * turns(slab, header_.in_summary), header_.open_keys);
    }
    A* const key_sum = p_.earlier.key_sum(i_);
    std::fill_n(key_sum, n_.sum_features(), A(0));
    accumulate_key_sum(n_.own() ? p_.open_normalizer_keys : p_.open_keys, header_.open_keys,
                       n_.sum_features(), key_sum);
  }

 private:
  static constexpr Index kToken[] = {0};

  Index slabs() const { return ceil_div(n_.features, kTile.slab); }
  /// Slabs take kPreparedKeys keys each in turn: how often one has been among so many turns.
  Index turns(Index slab, Index all) const { return all / slabs() + (slab < all % slabs()); }
  /// Adds keys to the slabs of S_i until they have had so many turns.
  void summarize(Index end) const {
    for (auto& done = header_.in_summary; done < end; ++done) {
      const Index slab = done % slabs(), begin = done / slabs() * kPreparedKeys;
      add_to_slab(slab, begin, begin + kPreparedKeys);
    }
  }
  /// Adds open keys [begin, end).
  void add_to_slab(Index slab, Index begin, Index end) const {
    accumulate_slab(slab, begin == 0 ? Start::kZero : Start::kTarget, p_.open_keys.below(begin),
                    p_.open_values.below(begin), end - begin, n_.features, n_.values,
                    p_.earlier.summary(i_));
  }

  /// Stores the kept keys and values of a piece after those of the open block.
  void keep(const Inputs<T>& piece, A* raw) const {
    const Contiguous whole(piece.k.rows, piece.k.rows);
    StripCursor strip(whole, 0, piece.key_mask);
    while (strip.next() > 0) {
      const Index kept = header_.open_keys, count = strip.count();
      gather_features(piece.k, strip.tokens(), count, op_.key_map, raw, p_.open_keys.below(kept));
      gather(piece.v, strip.tokens(), count, p_.open_values.below(kept));
      if (n_.own()) {
        gather_features(piece.normalizer_k, strip.tokens(), count, op_.key_map, raw,
                        p_.open_normalizer_keys.below(kept));
      }
      header_.open_keys += count;
    }
  }

  /// Stores the key and value of a token and adds the key to z. Leaves m_ii times the key in
  /// scratch, after m_ii times the previous key.
  void keep_token(const Inputs<T>& token, A weight, const StepScratch<A>& scratch) const {
    const Index kept = header_.open_keys++;
    const auto scale_key = [&](const A* key, Index d, A* to) {
      transform(key, to, d, [weight](auto x) {
        return Eigen::internal::pmul(Eigen::internal::pset1<decltype(x)>(weight), x);
      });
    };
    const Rows<A>& keys = p_.open_keys;
    gather(token.v, kToken, 1, p_.open_values.below(kept));
    if (n_.own()) {
      gather_features(token.normalizer_k, kToken, 1, op_.key_map, scratch.rows.raw,
                      p_.open_normalizer_keys.below(kept));
      scale_key(p_.open_normalizer_keys.row(kept), n_.normalizer_features, scratch.keys.row(1));
      add_to(scratch.keys.row(1), p_.running_key_sum, n_.normalizer_features);
    }
    gather_features(token.k, kToken, 1, op_.key_map, scratch.rows.raw, keys.below(kept));
    if (kept > 0) scale_key(keys.row(kept - 1), n_.features, scratch.keys.row(0));
    scale_key(keys.row(kept), n_.features, scratch.keys.row(1));
    if (!n_.own()) add_to(scratch.keys.row(1), p_.running_key_sum, n_.sum_features());
  }

  const Op& op_;
  const HeadSizes& n_;
  const StreamMemory<A, Mixing>& p_;
  Running<A> running_;
  StateHeader& header_;
  Index i_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
