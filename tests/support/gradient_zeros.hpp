#pragma once

/// \file
/// Requirements of every backward form without a gradient: outputs whose dout is 0, and outputs
/// over a denominator of 0.

#include <cmath>
#include <variant>

#include "support/any_gradient.hpp"
#include "support/gradient_random.hpp"

namespace mhla::test {

template <class T>
struct GradientZeros {
  const AnyGradient<T>& form;

  using A = accumulator_t<T>;
  using Problem = GradientProblem<T>;
  using Buffers = GradientBuffers<T>;
  /// Rows of dout that are 0 add exactly 0: nothing flows through their queries, nor to keys that
  /// they alone read. (A slot of CrossQuery is read by the queries of all blocks.)
  void RowsWithoutGradientsAreLeftOut() const {
    for_problems<T>(form, 60, [&](Problem p) {
      if (p.op.normalizer.sums() == WeightSums::kCrossQuery) return;
      Random rng(p.seed);
      const Index n = p.queries(), last = rng.integer(0, n);
      Matrix<bool> left_out = Matrix<bool>::Constant(1, n, false);
      for (Index t = 0; t < n; ++t) left_out(0, t) = rng.chance(0.3) || (p.causal && t >= last);
      for (Index t = 0; t < n; ++t) {
        if (left_out(0, t)) p.dout.row(t).setZero();
      }
      const Buffers clean = gradients_of(form, p);
      for (const float poison : {NAN, INFINITY}) {
        Problem poisoned = p;
        for (const Part part : {kQ, kNormalizerQ, kK, kV, kNormalizerK}) {
          Matrix<T>& m = poisoned.tensors[part];
          const bool query = part == kQ || part == kNormalizerQ;
          for (Index t = 0; t < (query || p.causal ? m.rows() : 0); ++t) {
            if (query ? left_out(0, t) : t >= last) m.row(t).setConstant(static_cast<T>(poison));
          }
        }
        expect_same(clean, gradients_of(form, poisoned), p, "poisoned");
      }
    });
  }

  /// A query that reads no key has the output 0 / 0, a constant. So has every query of a block
  /// whose row of the mixing matrix is 0.
  void ZeroDenominatorsAddNothing() const {
    for_problems<T>(form, 120, [&](Problem p) {
      const auto& normalizer = p.op.normalizer.normalizer;
      if (std::holds_alternative<KeySum>(normalizer)) p.op.normalizer = {KeySum{0}};
      if (std::holds_alternative<CrossQuery>(normalizer)) p.op.normalizer = {CrossQuery{0}};
      if (std::holds_alternative<NoNormalizer>(normalizer)) return;
      if (std::holds_alternative<SquarePlusOne>(normalizer)) return;
      Random rng(p.seed);
      const Index masked = rng.chance(0.2) ? p.keys() : rng.integer(0, p.keys());
      p.key_mask = Matrix<bool>::Constant(1, p.keys(), true);
      p.key_mask.leftCols(masked).setConstant(false);
      Problem without = p;
      if (masked == p.keys()) without.dout.setZero();
      if (p.causal) without.dout.topRows(masked).setZero();
      const AnyPartition& blocks = p.blocks.queries;
      for (Index i = 0; form.mixes && !form.decays && i < blocks.blocks(); ++i) {
        if (rng.chance(0.7)) continue;
        for (Index b = 0; b < p.pattern.cols(); ++b) {
          if (p.pattern.holds(i, b)) MixingView<A>(p.coefficients.data(), p.pattern).at(i, b) = 0;
        }
        for (Index r = 0; r < blocks.runs(i); ++r) {
          const Run run = blocks.run(i, r);
          without.dout.middleRows(run.begin, run.length).setZero();
        }
      }
      without.coefficients = p.coefficients;
      const auto got = gradients_of(form, p).template values<A>();
      const auto right = gradients_of(form, without).template values<A>();
      for (const Part part : kAllParts) {
        EXPECT_TRUE((got[part].array() == right[part].array()).all())  // no NaN
            << kPartNames[part] << " " << p.text();
      }
    });
  }
};

}  // namespace mhla::test
