#pragma once

/// \file
/// Arguments of all forms.

#include <span>
#include <vector>

#include "mhla/policy/decay_mixing.hpp"
#include "support/problem.hpp"

namespace mhla::test::forward {

/// Blocks of a sequence of any length: the blocks of a problem, or blocks of equal length.
struct AnyBlocks {
  AnyPartition fixed{};
  Index length = 0;

  AnyPartition operator()(Index tokens) const {
    return length == 0 ? fixed : AnyPartition::of(Contiguous(tokens, length));
  }
};

/// A decaying matrix of one to four terms, by a seed.
template <class A>
DecayMixing<A> random_decay(std::uint64_t seed) {
  Random rng(seed);
  std::vector<A> weights(static_cast<std::size_t>(rng.integer(1, 4))), decays(weights);
  for (A& a : weights) a = static_cast<A>(rng.uniform());
  for (A& lambda : decays) lambda = static_cast<A>(rng.chance(0.2) ? 1 : rng.uniform());
  if (rng.chance(0.1)) decays[0] = 0;
  return {std::span<const A>(weights), std::span<const A>(decays)};
}

/// Arguments of a form besides the tensors.
template <class T>
struct Arguments {
  CrossBlocks<AnyBlocks, AnyBlocks> blocks;
  MixingMatrix<accumulator_t<T>> mixing;
  DecayMixing<accumulator_t<T>> decay;
  Operator<AnyMap<accumulator_t<T>>, AnyMap<accumulator_t<T>>, AnyNormalizer> op;
  double scale;  // of softmax's scores; 1 for the default

  explicit Arguments(const Problem<T>& p)
      : blocks{{p.query_blocks}, {p.key_blocks}},
        mixing(p.mixing()),
        decay(random_decay<accumulator_t<T>>(p.seed)),
        op(p.op()),
        scale(p.scale) {}

  /// The same with the mixing matrix of head h of sequence s.
  Arguments of_pair(Index s, Index h) const {
    Arguments pair = *this;
    pair.mixing = MixingMatrix(mixing.of_sequence(s).of_head(h));
    return pair;
  }
};

}  // namespace mhla::test::forward
