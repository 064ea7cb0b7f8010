#pragma once

/// \file
/// The steps of a stream: open a block, append one or several tokens, close it (streaming.hpp).

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
  Running<A> running;            ///< R, and the open block's keys and values
  A* running_key_sum;            ///< z of R [Dz]
  Rows<A> open_normalizer_keys;  ///< [W,Dz]

  StreamMemory(const char* function, Arena& arena, const HeadSizes& n, Index blocks, Index w)
      : summaries(function, arena, n, blocks),
        running{arena.take<A>(function, {n.features, n.values}), n.features, n.values,
                Rows<A>(function, arena, w, n.features), Rows<A>(function, arena, w, n.values)},
        running_key_sum(arena.take<A>(function, n.sum_features())),
        open_normalizer_keys(function, arena, w, n.normalizer_features) {}
};

/// Scratch of one append.
template <class A>
struct PieceScratch {
  CausalScratch<A> block;
  Coefficients<A> coefficients;  ///< of one row

  PieceScratch(const char* function, Arena& arena, Index raw, const HeadSizes& n, Index blocks,
               Index w)
      : block(function, arena, raw, raw, n, w), coefficients(function, arena, 1, blocks) {}
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

/// The steps of a stream, on the memory and the header of one state.
template <Scalar T, class Op>
class StreamBlock {
  using A = accumulator_t<T>;

 public:
  StreamBlock(MixingView<const A> mixing, const Op& op, const HeadSizes& sizes,
              const StreamMemory<A>& memory, StateHeader& header)
      : mixing_(mixing), op_(op), n_(sizes), p_(memory), header_(header) {}

  /// Makes R of block i, before its first token.
  void open(Index i, const PieceScratch<A>& scratch) const {
    const MixingGroup<A> row(mixing_, i, i + 1, Reach::kEarlier, mixing_.rows(),
                             scratch.coefficients);
    const Mixtures<A> running(p_.running.matrix, n_.features, n_.values);
    mix(row, p_.summaries.values(), running);
    row.mix({p_.running_key_sum, 0}, p_.summaries.key_sums(), n_.sum_features());
    header_.open_keys = header_.in_running = 0;
  }

  /// Appends the first token, or several tokens, of one block.
  void append(const Inputs<T>& piece, A weight, MatrixView<T> out, PieceScratch<A>& scratch) const {
    const Index count = piece.q.rows;
    p_.running.level(header_.open_keys, header_.open_keys - header_.in_running, weight);
    read_causal_block(piece, Contiguous(count, count), 0, op_, n_,
                      CausalRead<A>{weight, p_.running.matrix, p_.running_key_sum}, scratch.block,
                      out);
    keep(piece, scratch.block.keys.raw);
    extend_running(scratch.block, n_, p_.running.matrix, p_.running_key_sum);
    header_.in_running = header_.open_keys;
  }

  /// Appends one token of a block, not its first.
  void step(const Inputs<T>& token, A weight, MatrixView<T> out,
            const StepScratch<A>& scratch) const {
    const QueryScratch<A>& rows = scratch.rows;
    const A factor = static_cast<A>(op_.scale);
    const bool kept = token.key_mask[0];
    if (kept) keep_token(token, weight, scratch);
    const Index count = header_.open_keys, m = count - header_.in_running;
    if (!token.query_mask[0]) {
      if (kept) p_.running.take(count, m, weight);
      clear_masked(Contiguous(1, 1), 0, token.query_mask, out);
      return;
    }
    gather_queries(token.q, kToken, 1, op_.query_map, factor, rows.raw, rows.queries);
    p_.running.read(rows.queries.row(0), count, m, kept, weight, scratch.keys, rows.outputs.row(0));
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

  /// Makes S_i and z_i of block i, after its last token.
  void close(Index i) const {
    const Index kept = header_.open_keys;
    accumulate_summary(Start::kZero, p_.running.keys, p_.running.values, kept, n_.features,
                       n_.values, p_.summaries.values().block(i));
    A* const key_sum = p_.summaries.key_sum(i);
    std::fill_n(key_sum, n_.sum_features(), A(0));
    accumulate_key_sum(n_.own() ? p_.open_normalizer_keys : p_.running.keys, kept,
                       n_.sum_features(), key_sum);
  }

 private:
  static constexpr Index kToken[] = {0};

  /// Stores the kept keys and values of a piece after those of the open block.
  void keep(const Inputs<T>& piece, A* raw) const {
    const Contiguous whole(piece.k.rows, piece.k.rows);
    StripCursor strip(whole, 0, piece.key_mask);
    while (strip.next() > 0) {
      const Index kept = header_.open_keys, count = strip.count();
      gather_features(piece.k, strip.tokens(), count, op_.key_map, raw,
                      p_.running.keys.below(kept));
      gather(piece.v, strip.tokens(), count, p_.running.values.below(kept));
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
    const Rows<A>& keys = p_.running.keys;
    gather(token.v, kToken, 1, p_.running.values.below(kept));
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
  StateHeader& header_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
