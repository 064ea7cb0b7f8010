#pragma once

/// \file
/// A mixing matrix fitted to one example in rounds, each with the denominators of the matrix found
/// in the round before. mixing_fit.hpp has the method, and fits to many examples.

#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/fit/mixing_fit.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// How a fit in rounds goes.
struct FitRounds {
  Index rounds = 3;  ///< without a normaliser that divides the first is exact
  Order order = Order::kBidirectional;
  ExecutorRef executor{};
};

/// A fitted matrix, and how far outputs are from their targets with the start and with it.
template <Accumulator A>
struct FittedMixing {
  MixingMatrix<A> mixing;
  FitResidual before{}, after{};
};

/// Returns the fitted matrix, of every row the best of all rounds, of one whose targets are 0 the
/// first.
/// \throws as MixingFit does, and option_error unless rounds >= 1. Cost: rounds + 2 of its sums.
template <AttentionInputs In, AttentionBlocks Blocks, OperatorOn<detail::scalar_of<In>> Op>
FittedMixing<detail::sum_of<In>> fit_mixing(
    const In& in, const Blocks& blocks, const Op& op,
    const std::type_identity_t<detail::dout_of<In>>& target,
    const std::type_identity_t<MixingMatrix<detail::sum_of<In>>>& start,
    const std::type_identity_t<FitOptions<detail::sum_of<In>>>& options = {},
    const FitRounds& how = {});

// ------------------------------------------------------------------------------------------------

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
  std::vector<double> least(static_cast<std::size_t>(start.rows()));
  for (Index round = 0; round < how.rounds; ++round) {
    const MixingMatrix<A> m = fit.solve(options, how.executor);
    fit = fit_from(m);
    const std::vector<double> residual = fit.residual(m).of_block;
    for (Index i = 0; i < m.rows(); ++i) {
      const std::size_t row = static_cast<std::size_t>(i);
      if (round > 0 && !(residual[row] < least[row])) continue;
      least[row] = residual[row];
      best.mixing.view().for_each_in_row(i, [&](Index b, A& c) { c = m(i, b); });
    }
  }
  best.after = fit_from(best.mixing).residual(best.mixing);
  return best;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
