#include "mhla/policy/distance_derivatives.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/tangent/bidirectional.hpp"
#include "mhla/tangent/causal.hpp"
#include "support/distance_tables.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

template <class A>
class DistanceDerivativesOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(DistanceDerivativesOf, Accumulators);

/// Tangents by the rule of quotients in long double: dm = J df, and <dm', J df> = <J^T dm', df>.
TYPED_TEST(DistanceDerivativesOf, AdjointIsTheTransposeOfTheTangent) {
  using A = TypeParam;
  constexpr long double u = std::numeric_limits<A>::epsilon() / 2;
  for_tables<A>(
      [](Random& rng, const DistanceMixing<A>& f, GridShape blocks, const Pattern& pattern) {
        DistanceMixing<A> along(f.offsets(), f.heads()), df = along, more = along;
        for (A& x : along.storage()) x = static_cast<A>(rng.uniform(-1, 1));
        for (A& x : more.storage()) x = 3;
        MixingMatrix<A> dm(pattern, f.heads());
        dm.view().for_each([&rng](A& d) { d = static_cast<A>(rng.uniform(-1, 1)); });
        const MixingMatrix<A> tangents = distance_matrix_tangent(f, along.view(), blocks, pattern);
        distance_matrix_adjoint(f, blocks, dm, df);
        distance_matrix_adjoint(f.view(), blocks, dm.view(), more.view());
        // Sums in double, of up to M^2 terms, and one rounding to A.
        const long double count = static_cast<long double>(pattern.rows() * pattern.cols());
        const long double bound = (count + 8) * std::numeric_limits<double>::epsilon() + 2 * u;
        long double left = 0, right = 0, size = 0;
        dm.view().for_each_place([&](Index h, Index i, Index b, A d) {
          const long double w = table_at(f, blocks, h, i, b), dw = table_at(along, blocks, h, i, b);
          long double tangent = dw, terms = std::abs(dw);
          if (f.rows_sum_to_one()) {
            const long double s = row_sum(f, blocks, pattern, h, i);
            const long double ds = row_sum(along, blocks, pattern, h, i);
            tangent = (dw * s - w * ds) / (s * s);
            terms = 1 / s + w * static_cast<long double>(pattern.cols()) / (s * s);
          }
          const long double got = tangents.view().of_head(h)(i, b);
          EXPECT_LE(std::abs(got - tangent), bound * terms);
          left += d * tangent;
          size += terms;
        });
        for (std::size_t n = 0; n < df.storage().size(); ++n) {
          right += static_cast<long double>(df.storage()[n]) * along.storage()[n];
          EXPECT_EQ(more.storage()[n], A(3) + df.storage()[n]);
        }
        EXPECT_LE(std::abs(left - right), bound * size);
      });
}

/// Central differences in the table, of <dout, o> and of o.
TEST(DistanceDerivatives, GradientsAndTangentsOfFormsAreDerivatives) {
  Random rng(4);
  const Matrix<double> q = rng.matrix<double>(23, 4, 0.1, 1), v = rng.matrix<double>(23, 5, -1, 1),
                       dout = rng.matrix<double>(23, 5, -1, 1);
  const Contiguous blocks(23, 4);
  const Operator op{Relu{}, Relu{}, KeySum{0.1}};
  auto f = random_table<double>(rng, {5}, 1, true);
  const auto in = inputs(q, q, v);
  const auto expect = [&](const Pattern& pattern, const auto& run, const auto& add,
                          const auto& differentiate) {
    MixingMatrix<double> dm(pattern);
    DistanceMixing<double> df(GridShape(5));
    add(distance_matrix(f, {6}, pattern), dm);
    distance_matrix_adjoint(f, {6}, dm, df);
    for (std::size_t n = 0; n < 5; ++n) {
      const auto value = [&](double step) {
        auto moved = f;
        moved.storage()[n] += step;
        return run(distance_matrix(moved, {6}, pattern)).cwiseProduct(dout).sum();
      };
      const double difference = (value(1e-5) - value(-1e-5)) / 2e-5;
      EXPECT_NEAR(df.storage()[n], difference, 1e-9);
      DistanceMixing<double> along(GridShape(5));
      along.storage()[n] = 1;
      const auto tangent = differentiate(distance_matrix(f, {6}, pattern),
                                         distance_matrix_tangent(f, along, {6}, pattern));
      EXPECT_NEAR(tangent.cwiseProduct(dout).sum(), difference, 1e-9);
    }
  };
  expect(
      Pattern(6, 6),
      [&](const MixingMatrix<double>& m) { return bidirectional(in, blocks, m, op); },
      [&](const MixingMatrix<double>& m, MixingMatrix<double>& dm) {
        bidirectional_gradient(in, blocks, m, op, dout, {}, {.mixing = dm});
      },
      [&](const MixingMatrix<double>& m, const MixingMatrix<double>& along) {
        return bidirectional_tangent(in, blocks, m, op, {}, {.mixing = along}).tangent;
      });
  expect(
      Pattern(6, 6, 6, 0), [&](const MixingMatrix<double>& m) { return causal(in, blocks, m, op); },
      [&](const MixingMatrix<double>& m, MixingMatrix<double>& dm) {
        causal_gradient(in, blocks, m, op, dout, {}, {.mixing = dm});
      },
      [&](const MixingMatrix<double>& m, const MixingMatrix<double>& along) {
        return causal_tangent(in, blocks, m, op, {}, {.mixing = along}).tangent;
      });
}

/// Causal forms do not read later blocks.
TEST(DistanceDerivatives, OfLaterOffsetsAreZero) {
  Random rng(3);
  auto f = random_table<double>(rng, {9}, 1, true);
  const Index m = 5;
  const Pattern triangle(m, m, m, 0);
  DistanceMixing<double> df(GridShape(9)), along(GridShape(9));
  MixingMatrix<double> dm(triangle);
  dm.view().for_each([&rng](double& d) { d = rng.uniform(-1, 1); });
  distance_matrix_adjoint(f, {m}, dm, df);
  for (Index offset = -4; offset < 0; ++offset) {
    EXPECT_EQ(df.view().at({0, 0, offset}), 0);
    f.view().at({0, 0, offset}) = along.view().at({0, 0, offset}) = NAN;
  }
  distance_matrix_tangent(f, along, {m}, triangle).view().for_each([](double d) {
    EXPECT_EQ(d, 0);
  });
}

TEST(DistanceDerivatives, RefuseWhatDoesNotFitBeforeAnythingIsWritten) {
  const auto text = [](auto&& call) { return message_of<error>(call); };
  DistanceMixing<double> f({3}, 2), df = f, other({5}, 2);
  const Pattern all(4, 4);
  const MixingMatrix<double> dm(all, 2), one(all);
  EXPECT_EQ(
      text([&] { distance_matrix_adjoint(f, {4}, dm, df); }),
      "mhla::distance_matrix_adjoint: f has row 0 of matrix 0 with sum 0.000000, expected rows "
      "with a finite sum other than 0");
  EXPECT_EQ(
      text([&] { distance_matrix_tangent(f, df, {4}, all); }),
      "mhla::distance_matrix_tangent: f has row 0 of matrix 0 with sum 0.000000, expected rows "
      "with a finite sum other than 0");
  EXPECT_EQ(
      text([&] { distance_matrix_adjoint(f, {5}, dm, df); }),
      "mhla::distance_matrix_adjoint: mixing has shape [4, 4], expected [5, 5] (query blocks, "
      "key blocks)");
  EXPECT_EQ(text([&] { distance_matrix_adjoint(f, {4}, one, df); }),
            "mhla::distance_matrix_adjoint: dm has 1 matrices, expected 2, one per table of f");
  EXPECT_EQ(text([&] { distance_matrix_adjoint(f, {4}, dm, other); }),
            "mhla::distance_matrix_adjoint: df has 10 numbers, expected a table of the offsets and "
            "heads of f");
  EXPECT_EQ(text([&] { distance_matrix_tangent(f, other, {4}, all); }),
            "mhla::distance_matrix_tangent: df has 10 numbers, expected a table of the offsets and "
            "heads of f");
  EXPECT_EQ(text([&] { distance_matrix_tangent(f, {}, {4}, all); }),
            "mhla::distance_matrix_tangent: df is absent, expected a table of the offsets and "
            "heads of f");
  for (const double x : df.storage()) EXPECT_EQ(x, 0);
}

}  // namespace
}  // namespace mhla::test
