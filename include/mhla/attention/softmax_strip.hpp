#pragma once

/// \file
/// A strip of queries that runs over the tiles of keys of softmax attention: scores and sums of one
/// tile after another, with a running maximum. The form and its tangent share it.

#include <algorithm>
#include <cmath>
#include <limits>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/exponential.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/tokens/packed_keys.hpp"
#include "mhla/tokens/strip.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Memory of one worker, and the steps of a query r.
template <class A>
struct SoftmaxStrip {
  Rows<A> queries;  ///< [strip, D], scaled
  Rows<A> scores;   ///< [strip, tile], later weights
  Rows<A> outputs;  ///< [strip, E]
  A* maxima;        ///< [strip]
  Rows<A> sums;     ///< [strip, lanes] of weights

  SoftmaxStrip(const char* function, Arena& arena, Index d, Index e)
      : queries(function, arena, kStripTokens, d),
        scores(function, arena, kStripTokens, kStripTokens),
        outputs(function, arena, kStripTokens, e),
        maxima(arena.take<A>(function, kStripTokens)),
        sums(function, arena, kStripTokens, kLanes<Packet<A>>) {}

  /// Begins with no keys.
  void start(Index rows, Index e) const {
    for (Index r = 0; r < rows; ++r) {
      std::fill_n(outputs.row(r), e, A(0));
      std::fill_n(sums.row(r), kLanes<Packet<A>>, A(0));
    }
    std::fill_n(maxima, rows, -std::numeric_limits<A>::infinity());
  }

  /// Makes sums those of weights exp(score - largest), and returns the factor that does so.
  A rescale(Index r, A largest, Index e) const {
    const A factor = std::exp(maxima[r] - largest);
    scale(factor, sums.row(r), kLanes<Packet<A>>);
    scale(factor, outputs.row(r), e);
    maxima[r] = largest;
    return factor;
  }

  /// Weights in place of the first `seen` scores, and their sum, lane by lane.
  void weigh(Index r, Index seen) const {
    using P = Packet<A>;
    A* const row = scores.row(r);
    const Index whole = round_up(seen, kLanes<P>);
    constexpr A kNothing = -std::numeric_limits<A>::infinity();  // has weight 0
    std::fill(row + seen, row + whole, kNothing);
    const P largest = Eigen::internal::pset1<P>(maxima[r] == kNothing ? A(0) : maxima[r]);
    P total = load<A, P>(sums.row(r));
    for (Index j = 0; j < whole; j += kLanes<P>) {
      const P p = exponential_below_zero(Eigen::internal::psub(load<A, P>(row + j), largest));
      store(row + j, p);
      total = Eigen::internal::padd(total, p);
    }
    store(sums.row(r), total);
  }

  /// Divides the output by the sum of weights, and returns that. Without keys both are 0.
  A divide(Index r, Index e) const {
    const A den = sum(sums.row(r), kLanes<Packet<A>>);
    if (den == 0) return den;
    transform(outputs.row(r), outputs.row(r), e, [den](auto p) {
      return Eigen::internal::pdiv(p, Eigen::internal::pset1<decltype(p)>(den));
    });
    return den;
  }
};

/// Calls read(tile, seen) for the tiles of keys that a strip of queries reads. Query r reads the
/// first seen[r] keys of the tile; seen is ascending.
/// \param tokens  of the queries
/// \param causal  whether query t reads keys 0..t only
template <class A, class Read>
void for_each_key_tile(const PackedKeys<A>& packed, const Index* tokens, Index rows, bool causal,
                       const Read& read) {
  Index keys[kStripTokens]{};  // that each query reads
  for (Index r = 0; r < rows; ++r) keys[r] = causal ? packed.visible(tokens[r]) : packed.count();
  for (Index tile = 0; tile * kStripTokens < keys[rows - 1]; ++tile) {
    Index seen[kStripTokens];  // of this tile
    for (Index r = 0; r < rows; ++r) seen[r] = packed.visible_in_tile(keys[r], tile);
    read(tile, seen);
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
