#pragma once

/// \file
/// Requirements of every backward form, on random problems.

#include <cfenv>
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "support/gradient_oracle.hpp"
#include "support/gradient_random.hpp"
#include "support/seeds.hpp"

namespace mhla::test {

template <class T>
struct GradientLaws {
  const AnyGradient<T>& form;

  using A = accumulator_t<T>;
  using Problem = GradientProblem<T>;
  using Buffers = GradientBuffers<T>;
  using Reals = Variables<long double>;
  using Arguments = GradientArguments<Inputs<T>>;

  // ---- the derivative ----

  /// Adds to existing values: zeros for even seeds, random numbers for odd seeds.
  void IsTheTransposeOfTheDirectionalDerivative() const {
    double worst = 0;
    for_problems<T>(form, 120, [&](const Problem& p) {
      Random rng(p.seed + 1);
      Buffers g(p, [&] { return p.seed % 2 == 0 ? 0 : rng.uniform(-2, 2); });
      const Reals start = g.template values<long double>();
      Reals direction = start;
      for (Matrix<long double>& part : direction) {
        for (long double& x : part.reshaped()) x = rng.uniform(-1, 1);
      }
      add_gradients(form, p, g);
      worst = std::max(
          worst, Oracle<T>(form, p).expect(direction, start, g.template values<long double>()));
    });
    std::cout << form.name << ": worst error " << worst << " of the bound\n";
  }

  void EveryElementIsADirectionalDerivative() const {
    for (const std::uint64_t seed : seeds(40)) {
      const Problem p = random_gradient<T>(form, seed, Size::kSmall);
      const Reals g = gradients_of(form, p).template values<long double>();
      Reals zeros;
      for (const Part part : kAllParts) zeros[part] = 0 * g[part];
      Reals direction = zeros;
      Oracle<T> oracle(form, p);
      for (const Part part : kAllParts) {
        for (long double& x : direction[part].reshaped()) {
          x = 1;
          oracle.expect(direction, zeros, g);
          x = 0;
        }
      }
    }
  }

  void EqualsCentralDifferences() const {
    for (const std::uint64_t seed : seeds(24)) {
      expect_central_differences(form, random_gradient<T>(form, seed, Size::kSmall));
    }
  }

  // ---- writes ----

  /// A call adds the values that it gives from zeros, in any layout. In half precision the sum with
  /// the existing value is rounded once.
  void IsSummedFromZeroAndThenAddedToWhatIsThereInAnyLayout() const {
    for_problems<T>(form, 40, [&](const Problem& p) {
      Random rng(p.seed);
      Buffers g(p, [&] { return rng.uniform(-2, 2); });
      const Buffers start = g;
      add_gradients(form, p, g);
      Buffers apart = start;  // column-major
      std::array<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>, kMixing> columns;
      for (const Part part : {kQ, kK, kV, kNormalizerQ, kNormalizerK})
        columns[part] = start.tensors[part];
      add_gradients(form,
                    Arguments{p.inputs(),
                              p.dout,
                              {columns[kQ], columns[kK], columns[kV], columns[kNormalizerQ],
                               columns[kNormalizerK]},
                              apart.parameter_views()},
                    p, p.blocks);
      for (const Part part : {kQ, kK, kV, kNormalizerQ, kNormalizerK})
        apart.tensors[part] = columns[part];
      expect_same(g, apart, p, "column-major");
      if constexpr (std::is_same_v<T, A>) {
        Buffers expected = gradients_of(form, p), before = start;
        expected.for_each([&](Part part, auto& m) { before.with(part, [&](auto& b) { m += b; }); });
        expect_same(expected, g, p, "added to what is there");
      }
    });
  }

  /// Leaves out every part, takes every part alone, and takes none. Wanted parts have the same
  /// bits, others stay unchanged.
  void OutputsDoNotDependOnEachOther() const {
    for_problems<T>(form, 40, [&](const Problem& p) {
      const Buffers all = gradients_of(form, p);
      const auto expect = [&](const std::function<bool(Part)>& wanted, const std::string& what) {
        Buffers g(p), expected = all;
        auto tensors = g.views();
        auto parameters = g.parameter_views();
        if (!wanted(kQ)) tensors.q = {};
        if (!wanted(kK)) tensors.k = {};
        if (!wanted(kV)) tensors.v = {};
        if (!wanted(kNormalizerQ)) tensors.normalizer_q = {};
        if (!wanted(kNormalizerK)) tensors.normalizer_k = {};
        if (!wanted(kMixing)) parameters.mixing = {};
        // Empty, but not null.
        if (!wanted(kQueryMap)) parameters.query_map = parameters.query_map.first(0);
        if (!wanted(kKeyMap)) parameters.key_map = parameters.key_map.first(0);
        expected.for_each([&](Part part, auto& m) {
          if (!wanted(part)) m.setZero();
        });
        add_gradients(form, Arguments{p.inputs(), p.dout, tensors, parameters}, p, p.blocks);
        expect_same(g, expected, p, what);
      };
      for (const Part part : kAllParts) {
        expect([part](Part other) { return other != part; },
               std::string("without ") + kPartNames[part]);
        expect([part](Part other) { return other == part; },
               std::string("only ") + kPartNames[part]);
      }
      expect([](Part) { return false; }, "nothing");
    });
  }

  /// Neither the old contents of memory (quiet NaN here) nor numbers after the last are compared,
  /// divided by, or arguments of a function.
  void OfOrdinaryNumbersRaisesNoFlag() const {
    for_problems<T>(form, 120, [&](const Problem& p) {
      Buffers g(p);
      std::feclearexcept(FE_ALL_EXCEPT);
      add_gradients(form, p, g, {}, form.mixes);
      EXPECT_EQ(std::fetestexcept(FE_DIVBYZERO | FE_INVALID), 0) << p.text();
    });
  }

  /// Masked tokens, NaN here, affect nothing; their gradients keep their values.
  void MaskedTokensAreNotReadAndTheirGradientsNotTouched() const {
    for_any_problems<T>(form, 40, [&](Problem p) {
      Random rng(p.seed);
      p.query_mask = random_mask(rng, p.blocks.queries);
      p.key_mask = random_mask(rng, p.blocks.keys);
      Buffers expected = gradients_of(form, p), g(p);
      const auto poison = [&p](auto& tensors) {
        for (const Part part : {kQ, kK, kV, kNormalizerQ, kNormalizerK}) {
          const Matrix<bool>& mask = part == kQ || part == kNormalizerQ ? p.query_mask : p.key_mask;
          poison_masked(mask, tensors[part]);
        }
      };
      poison(p.tensors);
      poison_masked(p.query_mask, p.dout);
      poison(g.tensors);
      poison(expected.tensors);
      Buffers kept = g;
      add_gradients(form, p, g);
      expect_same(expected, g, p, "masked");
      add_gradients(form, p, kept, {}, true);
      expect_same(expected, kept, p, "masked, kept");
    });
  }

  /// Separate queries and keys of the denominator without division: their gradient is 0.
  void UnusedTensorsAreNotRead() const {
    for_problems<T>(form, 16, [&](Problem p) {
      p.op.normalizer = {NoNormalizer{}};
      p.tensors[kNormalizerQ] = p.tensors[kNormalizerK] = {};
      Buffers expected = gradients_of(form, p);
      p.tensors[kNormalizerQ] = unwritten<T>(p.queries(), p.tensors[kQ].cols());
      p.tensors[kNormalizerK] = unwritten<T>(p.keys(), p.tensors[kK].cols());
      expected.tensors[kNormalizerQ] = Matrix<T>::Zero(p.queries(), p.tensors[kQ].cols());
      expected.tensors[kNormalizerK] = Matrix<T>::Zero(p.keys(), p.tensors[kK].cols());
      expect_same(expected, gradients_of(form, p), p, "unused");
    });
  }

  /// No values, no queries, no keys.
  void NothingIsAddedWhereNothingIs() const {
    const auto expect_unchanged = [&](const Problem& p, const char* what) {
      Buffers g(p, [] { return 3; });
      const Buffers before = g;
      add_gradients(form, p, g);
      expect_same(before, g, p, what);
    };
    const auto cut = [&](Problem p, bool queries, bool keys) {
      const auto none = [](AnyPartition& blocks) {
        blocks = AnyPartition::of(BlockSizes({0, 0, 0}));
      };
      const auto clear = [&](Part part) {
        if (p.tensors[part].cols() > 0) p.tensors[part].resize(0, p.tensors[part].cols());
      };
      if (queries) {
        none(p.blocks.queries);
        for (const Part part : {kQ, kNormalizerQ}) clear(part);
        p.dout.resize(0, p.dout.cols());
      }
      if (keys) {
        none(p.blocks.keys);
        for (const Part part : {kK, kV, kNormalizerK}) clear(part);
      }
      form.fit(p);
      return p;
    };
    const Problem p = complete_problem<T>(form);
    Problem no_values = p;
    no_values.tensors[kV].resize(p.keys(), 0);
    no_values.dout.resize(p.queries(), 0);
    expect_unchanged(no_values, "no values");
    expect_unchanged(cut(p, true, true), "no tokens");
    const Problem no_keys = cut(p, false, true);
    if (form.causal || no_keys.keys() > 0) return;  // a form of self-attention alone
    expect_unchanged(no_keys, "no keys");
    expect_unchanged(cut(p, true, false), "no queries");
  }

  void IsWrittenToCoefficientsThatAreReadAlone() const {
    Index untouched = 0;
    for_problems<T>(form, 40, [&](const Problem& p) {
      Buffers g(p), expected = gradients_of(form, p);
      Matrix<bool> read = Matrix<bool>::Constant(1, p.pattern.size(), false);
      const MixingView<bool> view(read.data(), p.pattern);
      for (Index i = 0; i < p.blocks.queries.blocks(); ++i) {
        for (Index b = 0; b < (form.causal ? i + 1 : p.blocks.keys.blocks()); ++b) {
          if (p.pattern.holds(i, b)) view.at(i, b) = true;
        }
      }
      for (Index i = 0; i < read.size(); ++i) {
        if (read(0, i)) continue;
        ++untouched;
        for (Buffers* to : {&g, &expected}) to->parameters[0](0, i) = kNan;
      }
      add_gradients(form, p, g);
      expect_same(expected, g, p, "coefficients");
    });
    EXPECT_GT(untouched, 0);
  }

  // ---- computation ----

  /// Calls f(problem) for random problems, and for wide problems.
  template <class F>
  void for_problems_and_wide_ones(F&& f) const {
    for_any_problems<T>(form, 32, f);
    for (std::uint64_t seed = 0; seed < 2; ++seed) f(wide_problem<T>(form, seed));
  }

  void BitsDoNotDependOnThreadsOrMemory() const {
    ThreadPool one(1), two(2), three(3), eight(8);
    for_problems_and_wide_ones([&](const Problem& p) {
      const Buffers alone = gradients_of(form, p);
      Buffers g(p);
      std::vector<std::byte> zeros(form.bytes(p.inputs(), p, p.blocks, {}));
      form.add(arguments(p, g), p, p.blocks, {.workspace = zeros});
      expect_same(alone, g, p, "zeros in the workspace");
      Buffers allocated(p);
      form.add(arguments(p, allocated), p, p.blocks, {});
      expect_same(alone, allocated, p, "without a workspace");
      for (ThreadPool* pool : {&one, &two, &three, &eight}) {
        expect_same(alone, gradients_of(form, p, *pool), p,
                    std::to_string(pool->workers()) + " workers");
      }
    });
  }

  void KeptSummariesGiveTheSameBits() const {
    ThreadPool three(3);
    for_problems_and_wide_ones([&](const Problem& p) {
      const Buffers alone = gradients_of(form, p);
      expect_same(alone, gradients_of(form, p, {}, true), p, "kept");
      expect_same(alone, gradients_of(form, p, three, true), p, "kept, 3 workers");
    });
  }

 private:
  static constexpr A kNan = std::numeric_limits<A>::quiet_NaN();

  static Arguments arguments(const Problem& p, Buffers& g) {
    return {p.inputs(), p.dout, g.views(), g.parameter_views()};
  }
  static void poison_masked(const Matrix<bool>& mask, Matrix<T>& rows) {
    for (Index t = 0; t < rows.rows(); ++t) {
      if (!mask(0, t)) rows.row(t).setConstant(static_cast<T>(kNan));
    }
  }
};

}  // namespace mhla::test
