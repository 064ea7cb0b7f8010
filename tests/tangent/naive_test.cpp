// The definition of tangents against central differences of the definition.

#include "mhla/tangent/naive.hpp"

#include <gtest/gtest.h>

#include "support/gradient_forms.hpp"
#include "support/gradient_random.hpp"
#include "support/seeds.hpp"

namespace mhla::test {
namespace {

/// Central differences with steps 2^-20 and 2^-19 (Richardson) are off by 2^-80 times a fifth
/// derivative, and by 2^-63 / 2^-20 times the output.
Matrix<long double> difference(const NaiveProblem<long double, AnyNormalizer>& p,
                               const NaiveDirection<long double>& x) {
  const auto moved = [&](long double step) {
    auto at = p;
    const auto move = [step](Matrix<long double>& m, const Matrix<long double>& along) {
      if (along.size() > 0) m += step * along;
    };
    move(at.q, x.q);
    move(at.k, x.k);
    move(at.v, x.v);
    move(at.mixing, x.mixing);
    move(at.normalizer_q, x.normalizer_q);
    move(at.normalizer_k, x.normalizer_k);
    return naive_attention(at);
  };
  const auto central = [&](long double h) -> Matrix<long double> {
    return (moved(h) - moved(-h)) / (2 * h);
  };
  constexpr long double kStep = 0x1p-20L;
  return (4 * central(kStep) - central(2 * kStep)) / 3;
}

template <class Form>
void expect_differences() {
  for (const std::uint64_t seed : seeds(120)) {
    const auto p = random_gradient<double>(Form(), seed, Size::kAny);
    const auto at = naive_problem<long double>(p.inputs(), p.blocks, p.mixing(), p.op,
                                               p.causal ? Order::kCausal : Order::kBidirectional);
    Random rng(seed);
    const auto draw = [&](const Matrix<long double>& like) -> Matrix<long double> {
      if (rng.chance(0.2)) return {};
      return rng.matrix<double>(like.rows(), like.cols()).template cast<long double>();
    };
    const NaiveDirection<long double> x{
        draw(at.q),           draw(at.k), draw(at.v), draw(at.mixing), draw(at.normalizer_q),
        draw(at.normalizer_k)};
    const auto got = naive_tangent(at, x), right = difference(at, x);
    if (got.size() == 0) continue;
    EXPECT_LE((got - right).cwiseAbs().maxCoeff(), 1e-11L * (1 + right.cwiseAbs().maxCoeff()))
        << p.text();
  }
}

TEST(NaiveTangent, EqualsCentralDifferences) {
  expect_differences<BidirectionalForm>();
  expect_differences<CausalForm>();
}

TEST(NaiveTangent, OfAnOutputOverZeroIsZero) {
  using M = Matrix<double>;
  const M q = M::Ones(2, 1), k{{1}, {-1}}, v{{1}, {2}}, same{{1}, {1}}, x = M::Ones(2, 1);
  const Contiguous block(2, 2);
  const MixingMatrix<double> one(M::Ones(1, 1));
  const Operator op{Identity{}, Identity{}, KeySum{}};
  for (const M& values : {v, same}) {  // -1 / 0, 0 / 0
    const auto t = naive_tangent(inputs(q, k, values), block, one, op, {.q = x, .k = x, .v = x});
    EXPECT_EQ(t, M::Zero(2, 1));
  }
}

}  // namespace
}  // namespace mhla::test
