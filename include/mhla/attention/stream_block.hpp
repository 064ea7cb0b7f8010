#pragma once

/// \file
/// The steps of a stream: open a block, append one or several tokens, close it (streaming.hpp).
///
/// What a boundary of blocks needs is prepared by the tokens before it, so that they take about the
/// same time each: a token adds kPreparedKeys keys to a slab of the block's summary, in turn, and
/// mixes the earlier summaries into its share of the next block's R.

#include <algorithm>

#include "mhla/attention/causal_block.hpp"
#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/streaming_state.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/streaming_product.hpp"
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
template <class A>
struct StreamMemory {
  HeadSummaries<A> summaries;
  A* running[2];                 ///< R of the blocks of even and of odd places [D,E]
  Rows<A> open_keys;             ///< [W,D]
  Rows<A> open_values;           ///< [W,E]
  A* running_key_sum;            ///< z of R [Dz]
  Rows<A> open_normalizer_keys;  ///< [W,Dz]

  StreamMemory(const char* function, Arena& arena, const HeadSizes& n, Index blocks, Index w)
      : summaries(function, arena, n, blocks),
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
template <Scalar T, class Op>
class StreamBlock {
  using A = accumulator_t<T>;

 public:
  StreamBlock(MixingView<const A> mixing, const Op& op, const HeadSizes& sizes,
              const StreamMemory<A>& memory, StateHeader& header, Index i)
      : mixing_(mixing),
        op_(op),
        n_(sizes),
        p_(memory),
        running_{memory.running[i % 2], sizes.features, sizes.values, memory.open_keys,
                 memory.open_values},
        header_(header),
        i_(i) {}

  /// Makes R, before the first token.
  void open() const {
    const ColumnSpan own = read_by(i_), before = prepared_for(i_);
    mix(i_, {before.end, own.end}, 0, header_.mixed, Start::kTarget);
    mix(i_, own, header_.mixed, n_.features * n_.values, Start::kZero);
    multiply<A>({.out = {p_.running_key_sum, 0},
                 .a = coefficients(i_, own),
                 .b = p_.summaries.key_sums().below(own.begin),
                 .cols = n_.sum_features()});
    header_.open_keys = header_.in_running = header_.in_summary = header_.mixed = 0;
  }

  /// Appends the first token, or several tokens, of one block.
  void append(const Inputs<T>& piece, MatrixView<T> out, CausalScratch<A>& scratch) const {
    const Index count = piece.q.rows;
    const A weight = mixing_(i_, i_);
    running_.level(header_.open_keys, header_.open_keys - header_.in_running, weight);
    read_causal_block(piece, Contiguous(count, count), 0, op_, n_,
                      CausalRead<A>{weight, running_.matrix, p_.running_key_sum}, scratch, out);
    keep(piece, scratch.keys.raw);
    extend_running(scratch, n_, running_.matrix, p_.running_key_sum);
    header_.in_running = header_.open_keys;
  }

  /// Appends one token of a block, not its first.
  void step(const Inputs<T>& token, MatrixView<T> out, const StepScratch<A>& scratch) const {
    const A weight = mixing_(i_, i_);
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
    if (i_ + 1 == mixing_.rows()) return;
    const ColumnSpan before = prepared_for(i_ + 1);
    const Index end = n_.features * n_.values * tokens / length;
    if (before.begin == before.end || end <= header_.mixed) return;
    mix(i_ + 1, before, header_.mixed, end, Start::kZero);
    header_.mixed = end;
  }

  /// Makes S_i and z_i, after the last token.
  void close() const {
    for (Index slab = 0; slab < slabs(); ++slab) {
      add_to_slab(slab, kPreparedKeys * turns(slab, header_.in_summary), header_.open_keys);
    }
    A* const key_sum = p_.summaries.key_sum(i_);
    std::fill_n(key_sum, n_.sum_features(), A(0));
    accumulate_key_sum(n_.own() ? p_.open_normalizer_keys : p_.open_keys, header_.open_keys,
                       n_.sum_features(), key_sum);
  }

 private:
  static constexpr Index kToken[] = {0};

  Index slabs() const { return p_.summaries.values().slabs(); }
  /// The earlier blocks that a block reads.
  ColumnSpan read_by(Index block) const {
    return readable(mixing_.band(), block, Reach::kEarlier, mixing_.rows());
  }

  /// Those of them that are closed while the block before is open.
  ColumnSpan prepared_for(Index block) const {
    const ColumnSpan own = read_by(block);
    return {own.begin, std::clamp(block - 1, own.begin, own.end)};
  }
  MatrixView<const A> coefficients(Index block, ColumnSpan of) const {
    return {mixing_.row_from_zero(block) + of.begin, 1, of.end - of.begin, 0};
  }

  /// Mixes blocks `of` into the numbers [begin, end) of the D*E of a block's R.
  void mix(Index block, ColumnSpan of, Index begin, Index end, Start start) const {
    const Summaries<A>& s = p_.summaries.values();
    const Index whole = kTile.slab * n_.values;  // numbers of a slab
    for (Index next; begin < end; begin = next) {
      const Index slab = begin / whole;
      next = std::min(end, (slab + 1) * whole);
      multiply<A>({.out = {p_.running[block % 2] + begin, 0},
                   .a = coefficients(block, of),
                   .b = s.slab(slab).below(of.begin).right_of(begin - slab * whole),
                   .cols = next - begin,
                   .start = start});
    }
  }

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
                    p_.summaries.values().block(i_));
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

  MixingView<const A> mixing_;
  const Op& op_;
  const HeadSizes& n_;
  const StreamMemory<A>& p_;
  Running<A> running_;
  StateHeader& header_;
  Index i_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
