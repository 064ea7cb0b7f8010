#pragma once

/// \file
/// What a causal backward form must do: time has a direction, bit by bit.

#include <cmath>

#include "support/gradient_laws.hpp"

namespace mhla::test {

/// Expects the same bits in rows [begin, begin + count).
inline void expect_same_rows(const Matrix<float>& a, const Matrix<float>& b, Index begin,
                             Index count, const char* what, const Problem<float>& p) {
  EXPECT_TRUE(same_bits(Matrix<float>(a.middleRows(begin, count)),
                        Matrix<float>(b.middleRows(begin, count))))
      << what << " [" << begin << ", " << begin + count << ") " << p.text();
}

/// A query reads keys up to its own, so nothing later reaches dq: not k, v, nor other queries.
template <class Form>
void expect_queries_do_not_depend_on_later_tokens() {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const auto p = any_problem<Form, float>(seed);
    const Index n = p.q.rows();
    if (n < 2) continue;
    const Matrix<float> dout = random_dout(p);
    const auto before = gradients_of<Form>(p, dout);
    Random rng(seed);
    for (const float poison : {NAN, INFINITY, 1e30f}) {
      const Index first = rng.integer(1, n - 1), later = n - first;
      auto changed = p;
      Matrix<float> changed_dout = dout;
      for (Matrix<float>* m : {&changed.q, &changed.k, &changed.v, &changed_dout}) {
        m->bottomRows(later).setConstant(poison);
      }
      if (p.has_own_normalizer()) {
        changed.normalizer_q.bottomRows(later).setConstant(poison);
        changed.normalizer_k.bottomRows(later).setConstant(poison);
      }
      const auto after = gradients_of<Form>(changed, changed_dout);
      expect_same_rows(before.q, after.q, 0, first, "q", p);
      if (p.has_own_normalizer()) {
        expect_same_rows(before.normalizer_q, after.normalizer_q, 0, first, "normalizer_q", p);
      }
    }
  }
}

/// A key is read by queries from its own on, so no earlier query reaches dk and dv.
template <class Form>
void expect_keys_do_not_depend_on_earlier_queries() {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const auto p = any_problem<Form, float>(seed);
    const Index n = p.q.rows();
    if (n < 2) continue;
    const Matrix<float> dout = random_dout(p);
    const auto before = gradients_of<Form>(p, dout);
    Random rng(seed);
    for (const float poison : {NAN, INFINITY, 1e30f}) {
      const Index first = rng.integer(1, n - 1);
      auto changed = p;
      Matrix<float> changed_dout = dout;
      changed.q.topRows(first).setConstant(poison);
      changed_dout.topRows(first).setConstant(poison);
      if (p.has_own_normalizer()) changed.normalizer_q.topRows(first).setConstant(poison);
      const auto after = gradients_of<Form>(changed, changed_dout);
      expect_same_rows(before.k, after.k, first, n - first, "k", p);
      expect_same_rows(before.v, after.v, first, n - first, "v", p);
      if (p.has_own_normalizer()) {
        expect_same_rows(before.normalizer_k, after.normalizer_k, first, n - first, "normalizer_k",
                         p);
      }
    }
  }
}

/// Where dout is 0 from a token on, so is every gradient.
template <class Form>
void expect_no_gradient_behind_the_loss() {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    auto p = any_problem<Form, float>(seed);
    const Index n = p.q.rows();
    Index masked = 0;
    if (n < 2 || !make_comparable(p, masked)) continue;
    const Index first = Random(seed).integer(1, n - 1);
    Matrix<float> dout = random_dout(p);
    dout.bottomRows(n - first).setZero();
    const auto g = gradients_of<Form>(p, dout);
    for (const Matrix<float>* m : {&g.q, &g.k, &g.v, &g.normalizer_q, &g.normalizer_k}) {
      if (m->rows() == 0) continue;
      EXPECT_TRUE((m->bottomRows(n - first).array() == 0).all()) << first << " " << p.text();
    }
  }
}

}  // namespace mhla::test
