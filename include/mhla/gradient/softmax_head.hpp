#pragma once

/// \file
/// One head of the gradient of softmax attention; formulas: gradient/softmax.hpp.

#include <algorithm>
#include <cmath>
#include <limits>

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/kernel/exponential.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/tokens/gather.hpp"
#include "mhla/tokens/packed_keys.hpp"
#include "mhla/tokens/strip.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <Scalar T>
class SoftmaxGradientHead {
  using A = accumulator_t<T>;

  struct Worker {
    Rows<A> weights;   // [keys, 64] one tile below the other: scores, then P
    Rows<A> slopes;    // [keys, 64] dP, then dS
    Rows<A> features;  // [64, D] dQ of a strip, dK of a tile
    Rows<A> values;    // [64, E] dV of a tile

    Worker(const char* function, Arena& arena, Index keys, Index d, Index e)
        : weights(function, arena, keys, kStripTokens),
          slopes(function, arena, keys, kStripTokens),
          features(function, arena, kStripTokens, d),
          values(function, arena, kStripTokens, e) {}
  };

  struct Query {
    Index visible;  // number of kept keys that it reads; ascending over the queries
    A largest;      // of its scores
    A reciprocal;   // 1 / sum_j exp(score_j - largest)
    A delta;
  };

  /// Queries [first, first + rows) and a tile of keys.
  struct TilePair {
    Index first, rows, tile;
    Index seen[kStripTokens];  // [rows] keys of the tile that each query reads, ascending

    Index most() const { return seen[rows - 1]; }
    /// Columns of row r that are computed: whole vectors; the surplus enters no sum.
    Index columns(Index r) const { return round_up(seen[r], kRowAlignment); }
  };

 public:
  SoftmaxGradientHead(const char* function, Arena& arena, const Inputs<T>& in, A scale,
                      Index workers)
      : in_(in),
        scale_(scale),
        keys_(function, arena, in.k.rows, in.k.cols, in.k.cols),
        values_(function, arena, in.k.rows, in.v.cols, 0),
        key_tokens_(arena.take<Index>(function, in.k.rows)),
        scaled_(function, arena, in.q.rows, in.q.cols),
        dout_(function, arena, in.q.rows, in.v.cols),
        queries_(arena.take<Query>(function, in.q.rows)),
        query_tokens_(arena.take<Index>(function, in.q.rows)),
        workers_(function, arena, workers, [&](Arena& a) {
          const Index keys =
              checked_product(function, "workspace", {tiles(in.k.rows), kStripTokens});
          return Worker(function, a, keys, in.q.cols, in.v.cols);
        }) {}

  /// \param causal  true if query t reads keys 0..t only
  void run(bool causal, MatrixView<const T> dout, const Gradients<T>& gradients,
           const ExecutorRef& executor) {
    const bool keys_wanted = !gradients.k.absent() || !gradients.v.absent();
    if (!keys_wanted && gradients.q.absent()) return;
    pack_keys();
    pack_queries(causal, dout);
    executor.for_each(tiles(count_),
                      [&](Index s, Index w) { read_strip(s, gradients, workers_[w]); });
    if (!keys_wanted) return;
    executor.for_each(keys_.tiles(),
                      [&](Index t, Index w) { read_tile(t, gradients, workers_[w]); });
  }

 private:
  static Index tiles(Index tokens) { return Contiguous(tokens, kStripTokens).blocks(); }

  void pack_keys() {
    keys_.clear();
    values_.clear();
    if (in_.k.rows == 0) return;
    const Rows<A> k = workers_[0].features, v = workers_[0].values;
    const Contiguous all(in_.k.rows, in_.k.rows);
    StripCursor strip(all, 0, in_.key_mask);
    while (strip.next() > 0) {
      const Index* const tokens = strip.tokens();
      std::copy_n(tokens, strip.count(), key_tokens_ + keys_.count());
      gather(in_.k, tokens, strip.count(), k);
      keys_.append(k, k, tokens, strip.count(), A(1));
      gather(in_.v, tokens, strip.count(), v);
      values_.append(v, v, tokens, strip.count(), A(1));
    }
  }

  /// Packs the kept queries that read at least one key and whose dout is not 0.
  void pack_queries(bool causal, MatrixView<const T> dout) {
    count_ = 0;
    if (in_.q.rows == 0) return;
    const Contiguous all(in_.q.rows, in_.q.rows);
    StripCursor strip(all, 0, in_.query_mask);
    while (strip.next() > 0) {
      for (Index r = 0; r < strip.count(); ++r) {
        const Index* const token = strip.tokens() + r;
        const Index visible = causal ? keys_.visible(*token) : keys_.count();
        if (visible == 0 || is_zero(dout.row(*token), dout.cols, dout.col_stride)) continue;
        gather(in_.q, token, 1, scaled_.below(count_));
        scale(scale_, scaled_.row(count_), in_.q.cols);
        gather(dout, token, 1, dout_.below(count_));
        queries_[count_] = {visible, -std::numeric_limits<A>::infinity(), A(0), A(0)};
        query_tokens_[count_++] = *token;
      }
    }
  }

  TilePair pair(Index strip, Index tile) const {
    TilePair p;
    p.first = strip * kStripTokens;
    p.rows = std::min(kStripTokens, count_ - p.first);
    p.tile = tile;
    for (Index r = 0; r < p.rows; ++r) {
      p.seen[r] = keys_.visible_in_tile(queries_[p.first + r].visible, tile);
    }
    return p;
  }

  /// Scores of a pair, and dP. Columns after those that a query reads are unspecified.
  void score(const TilePair& p, Rows<A> scores) const {
    keys_.score(scaled_.below(p.first), p.seen, p.rows, p.tile, scores);
  }
  void slope(const TilePair& p, Rows<A> slopes) const {
    values_.score(dout_.below(p.first), p.seen, p.rows, p.tile, slopes);
  }

  /// The first pass over one strip of queries: fills Query, adds their gradient.
  void read_strip(Index s, const Gradients<T>& gradients, const Worker& w) const {
    const bool slopes_wanted = !gradients.q.absent() || !gradients.k.absent();
    Query* const queries = queries_ + s * kStripTokens;
    const Index rows = std::min(kStripTokens, count_ - s * kStripTokens);
    const Index last = tiles(queries[rows - 1].visible);
    for (Index t = 0; t < last; ++t) {
      const TilePair p = pair(s, t);
      const Rows<A> scores = w.weights.below(t * kStripTokens);
      score(p, scores);
      for (Index r = 0; r < rows; ++r) {
        queries[r].largest = std::max(queries[r].largest, maximum(scores.row(r), p.seen[r]));
      }
    }
    for (Index t = 0; t < last; ++t) {
      const TilePair p = pair(s, t);
      const Rows<A> weights = w.weights.below(t * kStripTokens);
      const Rows<A> slopes = w.slopes.below(t * kStripTokens);
      weigh(p, weights);
      if (slopes_wanted) slope(p, slopes);
      for (Index r = 0; r < rows; ++r) {  // sums; their reciprocals follow
        queries[r].reciprocal += sum(weights.row(r), p.seen[r]);
        if (slopes_wanted) queries[r].delta += dot(weights.row(r), slopes.row(r), p.seen[r]);
      }
    }
    for (Index r = 0; r < rows; ++r) {
      queries[r].reciprocal = A(1) / queries[r].reciprocal;
      queries[r].delta *= queries[r].reciprocal;
    }
    if (gradients.q.absent()) return;
    clear(w.features, rows, in_.q.cols);
    for (Index t = 0; t < last; ++t) {
      const TilePair p = pair(s, t);
      const Rows<A> weights = w.weights.below(t * kStripTokens);
      const Rows<A> slopes = w.slopes.below(t * kStripTokens);
      normalize(p, weights);
      center(p, weights, slopes);
      keys_.add_values(slopes, p.seen, rows, t, w.features);
    }
    for (Index r = 0; r < rows; ++r) scale(scale_, w.features.row(r), in_.q.cols);
    add_to_tokens(w.features, query_tokens_ + s * kStripTokens, rows, gradients.q);
  }

  /// The second pass over one tile of keys: the gradients of its keys and values.
  void read_tile(Index t, const Gradients<T>& gradients, const Worker& w) const {
    const Index size = keys_.size(t);
    clear(w.features, size, gradients.k.cols);
    clear(w.values, size, gradients.v.cols);
    for (Index s = 0; s < tiles(count_); ++s) {
      const TilePair p = pair(s, t);
      if (p.most() == 0) continue;
      score(p, w.weights);
      weigh(p, w.weights);
      normalize(p, w.weights);
      if (!gradients.v.absent()) add_transposed(p, w.weights, dout_, w.values, in_.v.cols);
      if (gradients.k.absent()) continue;
      slope(p, w.slopes);
      center(p, w.weights, w.slopes);
      add_transposed(p, w.slopes, scaled_, w.features, in_.k.cols);
    }
    const Index* const tokens = key_tokens_ + t * kStripTokens;
    if (!gradients.k.absent()) add_to_tokens(w.features, tokens, size, gradients.k);
    if (!gradients.v.absent()) add_to_tokens(w.values, tokens, size, gradients.v);
  }

  /// Replaces scores by exp(score - largest), and scores of keys that are not read by 1.
  void weigh(const TilePair& p, Rows<A> scores) const {
    for (Index r = 0; r < p.rows; ++r) {
      const A largest = queries_[p.first + r].largest;
      std::fill(scores.row(r) + p.seen[r], scores.row(r) + p.columns(r), largest);
      transform(scores.row(r), scores.row(r), p.columns(r), [largest](auto x) {
        return exponential(Eigen::internal::psub(x, Eigen::internal::pset1<decltype(x)>(largest)));
      });
    }
  }

  /// Replaces exp(score - largest) by P.
  void normalize(const TilePair& p, Rows<A> weights) const {
    for (Index r = 0; r < p.rows; ++r) {
      scale(queries_[p.first + r].reciprocal, weights.row(r), p.columns(r));
    }
  }

  /// Replaces dP by dS = P (dP - delta).
  void center(const TilePair& p, Rows<A> weights, Rows<A> slopes) const {
    using namespace Eigen::internal;
    using P = Packet<A>;
    constexpr Index kWidth = packet_traits<A>::size;
    for (Index r = 0; r < p.rows; ++r) {
      const P delta = pset1<P>(queries_[p.first + r].delta);
      A *const weight = weights.row(r), *const slope = slopes.row(r);
      for (Index j = 0; j < p.seen[r]; j += kWidth) {
        store(slope + j, pmul(load<A, P>(weight + j), psub(load<A, P>(slope + j), delta)));
      }
    }
  }

  /// sums[j] += sum_r x[r, j] rows[first + r] over the queries r that read key j.
  static void add_transposed(const TilePair& p, Rows<A> x, Rows<A> rows, Rows<A> sums, Index cols) {
    Product<A> product{.out = sums,
                       .a = x.matrix(p.rows, p.most()).transposed(),
                       .b = rows.below(p.first),
                       .cols = cols,
                       .start = Start::kTarget};
    ColumnSpan spans[kStripTokens];
    if (p.seen[0] != p.most()) {
      for (Index j = 0, r = 0; j < p.most(); ++j) {
        while (p.seen[r] <= j) ++r;
        spans[j] = {r, p.rows};
      }
      product.spans = spans;
    }
    multiply(product);
  }

  static void clear(Rows<A> rows, Index count, Index cols) {
    for (Index r = 0; r < count; ++r) std::fill_n(rows.row(r), cols, A(0));
  }

  const Inputs<T>& in_;
  A scale_;
  PackedKeys<A> keys_;    // K^T, and K as their values
  PackedKeys<A> values_;  // V^T as keys without values
  Index* key_tokens_;     // [keys]
  Rows<A> scaled_;        // [queries, D] scale Q
  Rows<A> dout_;          // [queries, E]
  Query* queries_;        // [queries]
  Index* query_tokens_;   // [queries]
  Index count_ = 0;       // of queries
  Workers<Worker> workers_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
