#pragma once

/// \file
/// Requirements of every form for special values, and in any floating-point environment.

#include <algorithm>
#include <cfenv>
#include <cstring>
#include <limits>
#include <string>

#include "mhla/core/executor.hpp"
#include "support/environment.hpp"
#include "support/form_runs.hpp"
#include "support/seeds.hpp"

namespace mhla::test {

template <class T>
struct FormSpecials : FormRuns<T> {
  using FormRuns<T>::form, FormRuns<T>::run, FormRuns<T>::problem;

  /// Problems of tiny numbers, in every rounding mode, with and without subnormal numbers. The
  /// caller's environment stays.
  void BoundsHoldForTinyNumbersInEveryEnvironment() const {
    ThreadPool three(3);
    Tally tally;
    const Seeds all = seeds(40);
    for (const std::uint64_t seed : all) {
      if (testing::Test::HasFatalFailure()) break;
      auto p = problem(seed);
      Random rng(seed);
      for (Matrix<T>* m : {&p.q, &p.k, &p.v, &p.normalizer_q, &p.normalizer_k})
        make_special(rng, Special::kTiny, *m);
      const int mode = kRoundingModes[seed / 2 % 4];
      const bool flush = seed % 2 == 1;
      const Environment environment(mode, flush);
      const auto out = run(p), other = run(p, {.executor = three});
      EXPECT_TRUE(same_bits(out, other)) << p.text();
      EXPECT_EQ(std::fegetround(), mode);
      compare(p, form.expected(p), out, form.name, tally);
    }
    // Otherwise the test could check nothing. One problem may have no bound at all.
    if (all.count > 1) {
      EXPECT_LT(tally.ill, tally.outputs / 2);
    }
  }

  /// A NaN in a key reaches all outputs of the queries that read it. In a value it reaches the
  /// outputs of its column, and in a query its own outputs. Other outputs keep their bits. Outputs
  /// that read no key may be 0 or NaN.
  void ANaNReachesWhatReadsIt() const {
    const Seeds all = seeds(100);
    int compared = 0;
    for (const std::uint64_t seed : all) {
      auto p = problem(seed);
      // A coefficient of 0 may be multiplied or left out, and CrossQuery reads other queries.
      bool zero = p.normalizer == WeightSums::kCrossQuery;
      for (Index i = 0; i < p.coefficients.rows(); ++i) {
        const Index earlier = std::min(i + 1, p.coefficients.cols());
        zero = zero || (p.coefficients.row(i).head(earlier).array() == 0).any();
      }
      if (zero || p.k.rows() == 0 || p.q.rows() == 0) continue;
      ++compared;
      if (form.has_operator) p.query_map = p.key_map = {EluPlusOne{}};  // has a NaN of a NaN alone
      const auto clean = run(p);
      auto reads = naive_problem<double>(p.inputs(), p.blocks(), p.mixing(), p.op(), p.order());
      reads.q.setConstant(1);
      reads.k.setConstant(1);
      if (!form.has_operator) reads.mixing.setOnes();
      const Matrix<double> weights = naive_weights(reads);
      Random rng(seed);
      const Index key = rng.integer(0, p.k.rows() - 1), query = rng.integer(0, p.q.rows() - 1);
      const Index column = rng.integer(0, std::max<Index>(0, p.v.cols() - 1));
      const auto nan = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
      const auto expect = [&](const Problem<T>& poisoned, const auto& reached, const char* what) {
        const auto out = run(poisoned);
        for (Index t = 0; t < out.rows(); ++t) {
          if (!(weights.row(t).array() != 0).any()) continue;  // 0, or NaN
          for (Index e = 0; e < out.cols(); ++e) {
            const T before = clean(t, e), after = out(t, e);
            const bool same = std::memcmp(&before, &after, sizeof(T)) == 0;
            ASSERT_TRUE(reached(t, e) ? after != after : same)
                << what << " at (" << t << "," << e << ") is " << after << ", NaN in key " << key
                << ", column " << column << ", query " << query << "\n"
                << p.text();
          }
        }
      };
      auto in_key = p, in_value = p, in_query = p;
      in_key.k(key, rng.integer(0, p.k.cols() - 1)) = nan;
      expect(
          in_key, [&](Index t, Index) { return weights(t, key) != 0; }, "output of a key");
      if (p.v.cols() > 0) in_value.v(key, column) = nan;
      expect(
          in_value, [&](Index t, Index e) { return e == column && weights(t, key) != 0; },
          "output of a value");
      in_query.q(query, 0) = nan;
      expect(
          in_query, [&](Index t, Index) { return t == query; }, "output of a query");
    }
    if (all.count > 1) {
      EXPECT_GT(compared, 0);
    }
  }
};

}  // namespace mhla::test
