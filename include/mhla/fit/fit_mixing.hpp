#pragma once

/// \file
/// A mixing matrix fitted to one example in rounds. Each round takes its denominators from the
/// matrix of the round before. mixing_fit.hpp has the method, and fits to many examples.

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/fit/mixing_fit.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Options of a fit in rounds.
struct FitRounds {
  Index rounds = 3;  ///< round 1 is exact if no normaliser divides
  Order order = Order::kBidirectional;
  ExecutorRef executor{};
};

/// A fitted matrix, and the residuals of the start and of the fit.
template <Accumulator A>
struct FittedMixing {
  MixingMatrix<A> mixing;
  FitResidual before{}, after{};
};

/// Returns the fitted matrix. Each row is the best of all rounds, and of the start if its row
/// fulfils the options. The best row leaves out the fewest queries and, among equals, has the
/// smallest objective (mixing_fit.hpp) with the row's denominators. If the start fulfils the
/// options, after.total <= before.total without a ridge, unless queries are left out.
/// \throws as MixingFit does; option_error unless rounds >= 1.
/// Cost: rounds + 2 times the sums of MixingFit.
template <AttentionInputs In, AttentionBlocks Blocks, OperatorOn<detail::scalar_of<In>> Op>
FittedMixing<detail::sum_of<In>> fit_mixing(
    const In& in, const Blocks& blocks, const Op& op,
    const std::type_identity_t<detail::dout_of<In>>& target,
    const std::type_identity_t<MixingMatrix<detail::sum_of<In>>>& start,
    const std::type_identity_t<FitOptions<detail::sum_of<In>>>& options = {},
    const FitRounds& how = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

/// True if row i of m fulfils the options of a fit. Rounding may move a sum of 1.
template <class A>
bool fulfils(const FitOptions<A>& options, std::span<const Index> columns, const MixingMatrix<A>& m,
             Index i) {
  Index nonzeros = 0;
  double sum = 0;
  for (const Index b : columns) {
    if (!(m(i, b) >= 0)) return false;
    nonzeros += m(i, b) > 0;
    sum += double{m(i, b)};
  }
  const double rounding =
      static_cast<double>(columns.size()) * double{std::numeric_limits<A>::epsilon()};
  return (options.nonzeros == 0 || nonzeros <= options.nonzeros) &&
         (!options.sum_to_one || std::abs(sum - 1) <= rounding);
}

/// Returns the queries that row i of m leaves out, and the objective of the other queries. `fit`
/// starts from m.
template <class A>
std::pair<Index, double> row_cost(const MixingFit<A>& fit, const FitOptions<A>& options,
                                  const MixingMatrix<A>& m, Index i) {
  const BlockSums& sums = fit.sums(i);
  double distance = 0;  // |m_i - prior_i|^2
  for (const Index b : fit.columns(i)) {
    const double apart =
        double{m(i, b)} - (options.prior.absent() ? 0 : double{options.prior(i, b)});
    distance += apart * apart;
  }
  const double squares =
      sums.residual([&](Index r) { return m(i, fit.columns(i)[static_cast<std::size_t>(r)]); });
  return {sums.left_out, squares + options.ridge * sums.mean_diagonal() * distance};
}

}  // namespace detail

template <AttentionInputs In, AttentionBlocks Blocks, OperatorOn<detail::scalar_of<In>> Op>
FittedMixing<detail::sum_of<In>> fit_mixing(
    const In& in, const Blocks& blocks, const Op& op,
    const std::type_identity_t<detail::dout_of<In>>& target,
    const std::type_identity_t<MixingMatrix<detail::sum_of<In>>>& start,
    const std::type_identity_t<FitOptions<detail::sum_of<In>>>& options, const FitRounds& how) {
  using A = detail::sum_of<In>;
  if (how.rounds < 1) {
    detail::fail_option("fit_mixing", "rounds", "is " + std::to_string(how.rounds), "at least 1");
  }
  const auto fit_from = [&](const MixingMatrix<A>& start_of_round) {
    MixingFit<A> fit(start_of_round, how.order);
    fit.add(in, blocks, op, target, how.executor);
    return fit;
  };
  MixingFit<A> fit = fit_from(start);
  FittedMixing<A> best{.mixing = start, .before = fit.residual(start)};
  MixingMatrix<A> m = fit.solve(options, how.executor);  // throws for unsuitable options
  std::vector<std::pair<Index, double>> least;
  for (Index i = 0; i < start.rows(); ++i) {
    least.push_back(detail::fulfils(options, fit.columns(i), start, i)
                        ? detail::row_cost(fit, options, start, i)
                        : std::pair{std::numeric_limits<Index>::max(), 0.0});
  }
  for (Index round = 1; round <= how.rounds; ++round) {
    fit = fit_from(m);
    for (Index i = 0; i < m.rows(); ++i) {
      const std::pair<Index, double> cost = detail::row_cost(fit, options, m, i);
      if (!(cost < least[static_cast<std::size_t>(i)])) continue;
      least[static_cast<std::size_t>(i)] = cost;
      best.mixing.view().for_each_in_row(i, [&](Index b, A& c) { c = m(i, b); });
    }
    if (round < how.rounds) m = fit.solve(options, how.executor);
  }
  best.after = fit_from(best.mixing).residual(best.mixing);
  return best;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
