#pragma once

/// \file
/// Stage 4 of 5 with a decaying mixing matrix: summaries are folded into R running states,
///
///     T_r(1) = 0     T_r(i) = lambda_r (T_r(i - 1) + S_{i-2})     [D,E]
///     S~_i   = sum_r a_r lambda_r T_r(i) + (sum_r a_r lambda_r) S_{i-1}
///            = sum_{b < i} sum_r a_r lambda_r^(i-b) S_b
///
/// z is mixed alike. States lag by one block: a stream folds S_{i-2} while block i - 1 arrives. So
/// the start of a block costs one multiply-add per element (earlier_blocks.hpp). Elements are
/// independent of each other: a scan over all blocks is split over columns and has the bits of a
/// stream.
///
/// Adjoint, from the gradients dS~_i: the same scan over the blocks backwards gives dS_b, and
///
///     da_r += <T_r(i), dS~_i>     dlambda_r += a_r <V_r(i), dS~_i>
///
/// Here T_r(i + 1) = lambda_r (T_r(i) + S_i) does not lag. Its slope V_r = dT_r / dlambda_r is
///
///     V_r(i + 1) = lambda_r V_r(i) + T_r(i) + S_i
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

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Columns per piece of a scan: states of four terms take half of L1.
inline constexpr Index kDecayColumns = 1024;

inline Index decay_pieces_of_slab(Index values) {
  return ceil_div(kTile.slab * values, kDecayColumns);
}

/// Returns sum_r a_r lambda_r^distance, for distance 0 (m_ii) or 1 (m_{i,i-1}).
template <class A>
MHLA_NOINLINE A decay_coefficient(const DecayView<const A>& m, int distance) {
  A sum = 0;
  for (std::size_t r = 0; r < m.weights().size(); ++r) {
    sum += distance == 0 ? m.weights()[r] : m.weights()[r] * m.decays()[r];
  }
  return sum;
}

/// Computes columns [0, kVectors packets) of fold_and_mix.
template <class P, int kVectors, class A>
inline void fold_and_mix_panel(const DecayView<const A>& m, const A* s, Rows<A> states,
                               A* mixture) {
  using namespace Eigen::internal;
  constexpr Index kWidth = kLanes<P>;
  P summary[kVectors], sum[kVectors];
  MHLA_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    summary[i] = load<A, P>(s + i * kWidth);
    sum[i] = pset1<P>(A(0));
  }
  for (Index r = 0; r < m.terms(); ++r) {
    const A lambda = m.decays()[static_cast<std::size_t>(r)];
    const P decay = pset1<P>(lambda);
    const P weight = pset1<P>(m.weights()[static_cast<std::size_t>(r)] * lambda);
    A* const state = states.row(r);
    MHLA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const P t = pmul(decay, padd(load<A, P>(state + i * kWidth), summary[i]));
      store(state + i * kWidth, t);
      sum[i] = multiply_add(weight, t, sum[i]);
    }
  }
  MHLA_UNROLL
  for (int i = 0; i < kVectors; ++i) store(mixture + i * kWidth, sum[i]);
}

/// Updates T_r = lambda_r (T_r + s), and writes mixture = sum_r a_r lambda_r T_r of the updated
/// states, in one pass.
/// \param s       S of a block [cols]
/// \param states  T [R,cols]
template <class A>
void fold_and_mix(const DecayView<const A>& m, const A* s, Rows<A> states, Index cols, A* mixture) {
  for_each_panel<A>(cols, [&]<class P, int kVectors>(Index j) {
    fold_and_mix_panel<P, kVectors>(m, s + j, states.right_of(j), mixture + j);
  });
}

/// Direction of a scan over the blocks: to later blocks, or to earlier blocks for its adjoint.
enum class Scan { kForwards, kBackwards };

/// Writes the mixtures of all blocks, for some columns.
/// \param summaries  S [M,cols], or dS~; the last block of the scan is not read
/// \param states     scratch [R,cols]
/// \param mixtures   S~ [M,cols], or dS; must not be the summaries
template <class A>
void scan_mixtures(Scan scan, const DecayView<const A>& m, Rows<const A> summaries, Index blocks,
                   Index cols, Rows<A> states, Rows<A> mixtures) {
  const A next = decay_coefficient(m, 1);
  for (Index r = 0; r < m.terms(); ++r) std::fill_n(states.row(r), cols, A(0));
  for (Index step = 0; step < blocks; ++step) {
    const auto place = [&](Index at) { return scan == Scan::kForwards ? at : blocks - 1 - at; };
    A* const mixture = mixtures.row(place(step));
    if (step < 2) {
      std::fill_n(mixture, cols, A(0));
    } else {
      fold_and_mix(m, summaries.row(place(step - 2)), states, cols, mixture);
    }
    if (step >= 1) add_scaled(next, summaries.row(place(step - 1)), mixture, cols);
  }
}

/// Adds to the gradients of weights and decays, from some columns. A block whose dS~ is 0 adds
/// nothing, whatever its states are.
/// \param states   scratch [2R,cols]
/// \param dterms   [2R], da followed by dlambda
template <class A>
void add_decay_adjoint(const DecayView<const A>& m, Rows<const A> summaries,
                       Rows<const A> dmixtures, Index blocks, Index cols, Rows<A> states,
                       A* dterms) {
  const Index terms = m.terms();
  for (Index r = 0; r < 2 * terms; ++r) std::fill_n(states.row(r), cols, A(0));
  for (Index i = 0; i < blocks; ++i) {
    const bool any = !is_zero(dmixtures.row(i), cols);
    for (Index r = 0; r < terms; ++r) {
      const A weight = m.weights()[static_cast<std::size_t>(r)];
      const A decay = m.decays()[static_cast<std::size_t>(r)];
      A* const state = states.row(r);          // T_r
      A* const slope = states.row(terms + r);  // V_r
      if (any) {
        dterms[r] += dot<A>(state, dmixtures.row(i), cols);
        dterms[terms + r] += weight * dot<A>(slope, dmixtures.row(i), cols);
      }
      if (i + 1 == blocks) continue;
      add_to(summaries.row(i), state, cols);
      scale(decay, slope, cols);
      add_to(static_cast<const A*>(state), slope, cols);
      scale(decay, state, cols);
    }
  }
}

/// Calls f(piece, worker, its rows in slabs, its rows in mixtures, columns) for all pieces of
/// summaries and mixtures.
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

MHLA_PACKETS_END
