#pragma once

/// \file
/// Stage 4 of 5 with a decaying mixing matrix: summaries are folded into R running states,
///
///     T_r(0) = 0     T_r(i + 1) = lambda_r (T_r(i) + S_i)     [D,E]
///     S~_i   = sum_r a_r T_r(i) = sum_{b < i} sum_r a_r lambda_r^(i-b) S_b
///
/// and z alike. Elements are independent of each other: a scan over all blocks is split over
/// columns, and has the bits of a stream that takes one block after another.
///
/// Adjoint, from the gradients dS~_i: the same scan over the blocks backwards,
///
///     U_r(M - 1) = 0     U_r(b) = lambda_r (U_r(b + 1) + dS~_{b+1})     dS_b = sum_r a_r U_r(b)
///     da_r += <T_r(i), dS~_i>     dlambda_r += a_r <V_r(i), dS~_i>
///     V_r = dT_r / dlambda_r:     V_r(i + 1) = lambda_r V_r(i) + T_r(i) + S_i
///
/// Cost: 4*M*R*D*E flops, the adjoint 14*M*R*D*E.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/policy/decay_mixing.hpp"
#include "mhla/stage/summary.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Columns of a piece of a scan: states of four terms take half of L1.
inline constexpr Index kDecayColumns = 1024;

inline Index decay_pieces_of_slab(Index values) {
  return ceil_div(kTile.slab * values, kDecayColumns);
}

/// mixture = sum_r a_r T_r.                                                        // [cols]
/// \param states  T [R,cols]
template <class A>
void mix_states(const DecayView<const A>& m, Rows<const A> states, Index cols, A* mixture) {
  multiply<A>({.out = {mixture, cols},
               .a = {m.weights().data(), 1, m.terms(), m.terms()},
               .b = states,
               .cols = cols});
}

/// T_r = lambda_r (T_r + s).
template <class A>
void advance_states(const DecayView<const A>& m, const A* s, Index cols, Rows<A> states) {
  for (Index r = 0; r < m.terms(); ++r) {
    add_to(s, states.row(r), cols);
    scale(m.decays()[static_cast<std::size_t>(r)], states.row(r), cols);
  }
}

/// Which way a scan goes over the blocks: to later ones, or its adjoint to earlier ones.
enum class Scan { kForwards, kBackwards };

/// Writes the mixtures of all blocks, for some columns.
/// \param summaries  S [M,cols], or dS~; that of the block behind all others is not read
/// \param states     room for [R,cols]
/// \param mixtures   S~ [M,cols], or dS; not the summaries
template <class A>
void scan_mixtures(Scan scan, const DecayView<const A>& m, Rows<const A> summaries, Index blocks,
                   Index cols, Rows<A> states, Rows<A> mixtures) {
  for (Index r = 0; r < m.terms(); ++r) std::fill_n(states.row(r), cols, A(0));
  for (Index step = 0; step < blocks; ++step) {
    const Index i = scan == Scan::kForwards ? step : blocks - 1 - step;
    mix_states<A>(m, states, cols, mixtures.row(i));
    if (step + 1 < blocks) advance_states(m, summaries.row(i), cols, states);
  }
}

/// Adds to the gradients of weights and decays, from some columns.
/// \param states   room for [2R,cols]
/// \param dterms   [2R], da and behind it dlambda
template <class A>
void add_decay_adjoint(const DecayView<const A>& m, Rows<const A> summaries,
                       Rows<const A> dmixtures, Index blocks, Index cols, Rows<A> states,
                       A* dterms) {
  const Index terms = m.terms();
  for (Index r = 0; r < 2 * terms; ++r) std::fill_n(states.row(r), cols, A(0));
  for (Index i = 0; i < blocks; ++i) {
    for (Index r = 0; r < terms; ++r) {
      const A weight = m.weights()[static_cast<std::size_t>(r)];
      const A decay = m.decays()[static_cast<std::size_t>(r)];
      A* const state = states.row(r);          // T_r
      A* const slope = states.row(terms + r);  // V_r
      dterms[r] += dot<A>(state, dmixtures.row(i), cols);
      dterms[terms + r] += weight * dot<A>(slope, dmixtures.row(i), cols);
      if (i + 1 == blocks) continue;
      add_to(summaries.row(i), state, cols);
      scale(decay, slope, cols);
      add_to(static_cast<const A*>(state), slope, cols);
      scale(decay, state, cols);
    }
  }
}

/// Calls f(piece, worker, rows of it in slabs, rows of it in mixtures, columns) for the pieces that
/// summaries and mixtures consist of.
template <class A, class F>
void for_each_piece(const Summaries<A>& summaries, Rows<A> mixtures, const ExecutorRef& executor,
                    F&& f) {
  const Index of_slab = decay_pieces_of_slab(summaries.values);
  executor.for_each(summaries.slabs() * of_slab, [&](Index piece, Index worker) {
    const Index slab = piece / of_slab, first = piece % of_slab * kDecayColumns;
    const Index cols = std::min(kDecayColumns, summaries.slab_columns(slab) - first);
    if (cols <= 0) return;
    f(piece, worker, summaries.slab(slab).right_of(first),
      mixtures.right_of(slab * kTile.slab * summaries.values + first), cols);
  });
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
