#include "mhla/policy/gate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/policy/locality.hpp"
#include "support/bands.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

template <class A>
class GateOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(GateOf, Accumulators);

template <class A>
MixingMatrix<A> random_mixing(Random& rng, const Pattern& pattern, Index heads, Index sequences) {
  MixingMatrix<A> m(pattern, heads, sequences);
  m.view().for_each([&rng](A& c) { c = static_cast<A>(rng.uniform(-1, 1)); });
  return m;
}

/// Calls f(rng, m, g) for matrices and factors in bands and lists, with and without a matrix per
/// head and per sequence.
template <class A, class F>
void for_gates(F&& f) {
  for_bands([&](Random& rng, Index rows, Index cols, Index lower, Index upper) {
    Pattern pattern(rows, cols, lower, upper);
    if (upper == 5) {
      pattern = MixingMatrix<A>::sparse(random_mixing<A>(rng, pattern, 1, 1)).pattern();
    }
    const Pattern of_g = lower % 2 == 1 ? Pattern(rows, 1) : pattern;
    const std::pair<Index, Index> counts[] = {{1, 1}, {3, 1}, {1, 2}, {3, 2}};
    for (const auto& [heads, sequences] : counts) {
      for (const auto& [g_heads, g_sequences] : counts) {
        f(rng, random_mixing<A>(rng, pattern, heads, sequences),
          random_mixing<A>(rng, of_g, g_heads, g_sequences));
      }
    }
  });
}

/// The factor of a coefficient in one matrix of g.
template <class A>
A factor(const MixingView<const A>& g, const Pattern& pattern, Index i, Index b) {
  return g.pattern() == pattern ? g(i, b) : g(i, 0);
}

TYPED_TEST(GateOf, MultipliesEveryCoefficientByItsFactor) {
  using A = TypeParam;
  for_gates<A>([](Random&, const MixingMatrix<A>& m, const MixingMatrix<A>& g) {
    const MixingMatrix<A> c = gate_mixing(m, g);
    EXPECT_EQ(c.pattern(), m.pattern());
    EXPECT_EQ(c.heads(), std::max(m.heads(), g.heads()));
    EXPECT_EQ(c.sequences(), std::max(m.sequences(), g.sequences()));
    for (Index s = 0; s < c.sequences(); ++s) {
      for (Index h = 0; h < c.heads(); ++h) {
        const auto part = [s, h](const MixingMatrix<A>& of) {
          return of.of_sequence(of.sequences() == 1 ? 0 : s).of_head(of.heads() == 1 ? 0 : h);
        };
        for (Index i = 0; i < c.rows(); ++i) {
          part(c).for_each_in_row(i, [&](Index b, A x) {
            EXPECT_EQ(x, part(m)(i, b) * factor(part(g), m.pattern(), i, b));
          });
        }
      }
    }
    std::vector<A> wide(c.storage().size() + 2, A(7));
    gate_mixing(m.view(), g,
                MixingView<A>(wide.data() + 1, c.pattern(), c.heads(), c.pattern().size(),
                              c.sequences(), c.heads() * c.pattern().size()));
    EXPECT_EQ(wide.front() + wide.back(), A(14));
    const MixingView<const A> written(wide.data() + 1, c.pattern(), c.heads(), c.pattern().size(),
                                      c.sequences(), c.heads() * c.pattern().size());
    written.for_each_place(
        [&c](Index n, Index i, Index b, A x) { EXPECT_EQ(x, c.matrix(n)(i, b)); });
  });
}

/// The gradients against their sums in long double, begun at 3.
TYPED_TEST(GateOf, AdjointAddsTheSumsOfItsProducts) {
  using A = TypeParam;
  constexpr long double u = std::numeric_limits<A>::epsilon() / 2;
  for_gates<A>([](Random& rng, const MixingMatrix<A>& m, const MixingMatrix<A>& g) {
    const MixingMatrix<A> c = gate_mixing(m, g),
                          dc = random_mixing<A>(rng, c.pattern(), c.heads(), c.sequences());
    MixingMatrix<A> dm = zeros_like(m), dg = zeros_like(g), more_dm = dm, more_dg = dg;
    for (MixingMatrix<A>* more : {&more_dm, &more_dg}) {
      more->view().for_each([](A& x) { x = A(3); });
    }
    gate_mixing_adjoint(m, g, dc, {.mixing = dm, .gate = dg});
    gate_mixing_adjoint(m, g, dc, {.mixing = more_dm});
    gate_mixing_adjoint(m.view(), g, dc, {.gate = more_dg});
    const auto check = [&](const MixingMatrix<A>& d, const MixingMatrix<A>& more, bool of_g) {
      d.view().for_each_place([&](Index n, Index i, Index b, A got) {
        EXPECT_EQ(more.matrix(n)(i, b), A(3) + got);
        const bool row = d.pattern() != c.pattern();
        long double sum = 0, size = 0;
        Index terms = 0;
        for (Index s = 0; s < c.sequences(); ++s) {
          for (Index h = 0; h < c.heads(); ++h) {
            const auto place = [s, h](const MixingMatrix<A>& of) {
              return (of.sequences() == 1 ? 0 : s) * of.heads() + (of.heads() == 1 ? 0 : h);
            };
            if (place(d) != n) continue;
            dc.matrix(place(dc)).for_each_in_row(i, [&](Index at, A x) {
              if (!row && at != b) return;
              const A other =
                  of_g ? m.matrix(place(m))(i, at) : factor(g.matrix(place(g)), m.pattern(), i, at);
              const long double product = static_cast<long double>(x) * other;
              sum += product, size += std::abs(product), ++terms;
            });
          }
        }
        // A product and an addition per term.
        const long double w = static_cast<long double>(terms + 1) * u;
        EXPECT_LE(std::abs(got - sum), w / (1 - w) * size);
      });
    };
    check(dm, more_dm, false);
    check(dg, more_dg, true);
  });
}

/// Two sequences of three heads, and a matrix that they share.
struct Example {
  static constexpr Index kHeads = 3, kSequences = 2, kTokens = 11, kBlocks = 4;  // a short one
  Tensor<double> q, k, v, dout;
  MixingMatrix<double> m{Pattern(kBlocks, kBlocks)};
  Contiguous blocks{kTokens, 3};
  Random rng{3};

  Example()
      : q({kSequences, kTokens, kHeads, 4}), k(q), v({kSequences, kTokens, kHeads, 5}), dout(v) {
    for (Tensor<double>* t : {&q, &k, &v, &dout}) {
      for (double& x : t->data()) x = rng.uniform(0.1, 1);
    }
    m.view().for_each([this](double& c) { c = rng.uniform(0.2, 1); });
  }
  BatchInputs<double> in() const { return inputs(q, k, v); }
  MixingMatrix<double> factors(const Pattern& pattern) {
    MixingMatrix<double> g(pattern, kHeads, kSequences);
    g.view().for_each([this](double& x) { x = rng.uniform(0.2, 2); });
    return g;
  }
};

/// Central differences of <dout, o> in m and g.
TEST(Gate, GradientsOfGatedAttentionAreItsDerivatives) {
  Example x;
  const Operator op{Relu{}, Relu{}, KeySum{0.1}};
  const auto expect = [&](const auto& run, const auto& add_gradient) {
    for (const Pattern& pattern : {x.m.pattern(), Pattern(x.kBlocks, 1)}) {
      MixingMatrix<double> g = x.factors(pattern), c = gate_mixing(x.m, g);
      MixingMatrix<double> dc = zeros_like(c), dm = zeros_like(x.m), dg = zeros_like(g);
      add_gradient(c, dc);
      gate_mixing_adjoint(x.m, g, dc, {.mixing = dm, .gate = dg});
      const auto value = [&] {
        const Tensor<double> o = run(gate_mixing(x.m, g));
        double sum = 0;
        for (std::size_t i = 0; i < o.data().size(); ++i) sum += x.dout.data()[i] * o.data()[i];
        return sum;
      };
      const auto differs = [&](std::span<double> of, std::span<const double> gradient) {
        for (std::size_t i = 0; i < of.size(); ++i) {
          const double at = of[i], step = 1e-5;
          of[i] = at + step;
          const double above = value();
          of[i] = at - step;
          const double slope = (above - value()) / (2 * step);
          of[i] = at;
          EXPECT_NEAR(gradient[i], slope, 1e-8) << i;
        }
      };
      differs(x.m.storage(), dm.storage());
      differs(g.storage(), dg.storage());
    }
  };
  expect([&](const MixingMatrix<double>& c) { return bidirectional(x.in(), x.blocks, c, op); },
         [&](const MixingMatrix<double>& c, MixingMatrix<double>& dc) {
           bidirectional_gradient(x.in(), x.blocks, c, op, x.dout, {}, {.mixing = dc});
         });
  expect([&](const MixingMatrix<double>& c) { return causal(x.in(), x.blocks, c, op); },
         [&](const MixingMatrix<double>& c, MixingMatrix<double>& dc) {
           causal_gradient(x.in(), x.blocks, c, op, x.dout, {}, {.mixing = dc});
         });
}

TEST(Gate, FactorsOfRowsCancelInKeySumsAndScaleOtherOutputs) {
  Example x;
  const MixingMatrix<double> g = x.factors(Pattern(x.kBlocks, 1)), c = gate_mixing(x.m, g);
  const auto run = [&x](const auto& op, const MixingMatrix<double>& m) {
    return causal(x.in(), x.blocks, m, op);
  };
  const Operator sums{Relu{}, Relu{}, KeySum{0}};
  const Operator none{Relu{}, Relu{}, NoNormalizer{}};
  const auto plain = run(sums, x.m), gated = run(sums, c);
  const auto plain_none = run(none, x.m), gated_none = run(none, c);
  for (Index s = 0; s < x.kSequences; ++s) {
    for (Index t = 0; t < x.kTokens; ++t) {
      for (Index h = 0; h < x.kHeads; ++h) {
        const double factor_of_row = g.of_sequence(s).of_head(h)(t / 3, 0);
        for (Index e = 0; e < 5; ++e) {
          EXPECT_NEAR(gated(s, t, h, e), plain(s, t, h, e), 1e-14);
          EXPECT_NEAR(gated_none(s, t, h, e), factor_of_row * plain_none(s, t, h, e), 1e-14);
        }
      }
    }
  }
}

TEST(Gate, FactorsOfOneLeaveEveryBit) {
  Example x;
  MixingMatrix<double> ones(x.m.pattern(), x.kHeads, x.kSequences);
  ones.view().for_each([](double& g) { g = 1; });
  EXPECT_EQ(bidirectional(x.in(), x.blocks, gate_mixing(x.m, ones)).data(),
            bidirectional(x.in(), x.blocks, x.m).data());
}

TEST(Gate, RefusesWhatDoesNotFitBeforeAnythingIsWritten) {
  const MixingMatrix<float> m(Pattern(3, 4), 2), g(Pattern(3, 4), 2, 5), odd(Pattern(3, 3)),
      three(Pattern(3, 1), 3, 1);
  MixingMatrix<float> dm = zeros_like(m), to(Pattern(3, 4), 2, 5);
  to.view().for_each([](float& x) { x = 7; });
  const auto text = [](auto&& call) { return message_of<error>(call); };
  EXPECT_EQ(text([&] { gate_mixing(m, odd); }),
            "mhla::gate_mixing: g has shape [3, 3], expected the shape and the pattern of m, [3, "
            "4], or [3, 1]");
  EXPECT_EQ(text([&] { gate_mixing(m, three); }),
            "mhla::gate_mixing: g has 3 matrices, expected as many as m, which has 2, or one along "
            "an axis");
  EXPECT_EQ(text([&] { gate_mixing(m, MixingView<const float>()); }),
            "mhla::gate_mixing: g is absent, expected a view of coefficients");
  EXPECT_EQ(text([&] { gate_mixing(MixingView<const float>(), g); }),
            "mhla::gate_mixing: m is absent, expected a view of coefficients");
  EXPECT_EQ(text([&] { gate_mixing(m, g, dm); }),
            "mhla::gate_mixing: gated has shape [1, 2, 3, 4], expected [5, 2, 3, 4] and the same "
            "pattern");
  EXPECT_EQ(text([&] { gate_mixing(m, g, MixingView<float>(nullptr, m.pattern(), 2, 12, 5, 24)); }),
            "mhla::gate_mixing: gated is absent, expected a view of coefficients");
  EXPECT_EQ(text([&] { gate_mixing_adjoint(m, g, m, {}); }),
            "mhla::gate_mixing_adjoint: dgated has shape [1, 2, 3, 4], expected [5, 2, 3, 4] and "
            "the same pattern");
  EXPECT_EQ(text([&] { gate_mixing_adjoint(m, g, g, {.mixing = to}); }),
            "mhla::gate_mixing_adjoint: gradients.mixing has shape [5, 2, 3, 4], expected [1, 2, "
            "3, 4] and the same pattern");
  EXPECT_EQ(text([&] { gate_mixing_adjoint(m, g, g, {.mixing = dm, .gate = dm}); }),
            "mhla::gate_mixing_adjoint: gradients.gate has shape [1, 2, 3, 4], expected [5, 2, 3, "
            "4] and the same pattern");
  for (const float x : to.storage()) EXPECT_EQ(x, 7);
  for (const float x : dm.storage()) EXPECT_EQ(x, 0);
}

}  // namespace
}  // namespace mhla::test
