#pragma once

/// \file
/// Requirements of every tangent form, as suites over a form (support/tangent_forms.hpp) and a type
/// of numbers:
///
///     Tangent           all forms in all types
///     FullTangent       all forms in double and float: laws that do not depend on storage
///     CausalTangent     forms whose queries read no later key
///
///     INSTANTIATE_TYPED_TEST_SUITE_P(Double, Tangent, AllTangents<double>, FormNames);

#include <cfenv>
#include <cmath>
#include <iostream>
#include <limits>
#include <string>

#include "support/seeds.hpp"
#include "support/tangent_errors.hpp"
#include "support/tangent_forms.hpp"

namespace mhla::test {

/// A form in a type of numbers.
template <class F, class Number>
struct Case {
  using Form = F;
  using T = Number;
};
/// A form in float.
template <class F>
using InFloat = testing::Types<Case<F, float>>;
template <class T, class... F>
testing::Types<Case<F, T>...> cases_of(testing::Types<F...>);
struct FormNames {
  template <class C>
  static std::string GetName(int /*index*/) {
    return C::Form::kName;
  }
};

template <class T>
using AllTangents = decltype(cases_of<T>(TangentForms()));
template <class T>
using CausalTangents = decltype(cases_of<T>(CausalTangentForms()));

template <class C>
struct Tangent : testing::Test {};
template <class C>
struct FullTangent : testing::Test {};
template <class C>
struct CausalTangent : testing::Test {};

/// Sets masked rows to NaN.
template <class T>
void poison_rows(const Matrix<bool>& kept, Matrix<T>& rows) {
  for (Index t = 0; t < rows.rows(); ++t) {
    if (!kept(0, t))
      rows.row(t).setConstant(static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
  }
}

TYPED_TEST_SUITE_P(Tangent);

TYPED_TEST_P(Tangent, IsTheDirectionalDerivative) {
  using Form = typename TypeParam::Form;
  using T = typename TypeParam::T;
  double worst = 0;
  for_problems<T>(Form(), 120, [&](const GradientProblem<T>& p) {
    auto x = random_directions(p, p.seed);
    const auto got = tangent_of<Form>(p, x);
    worst = std::max(worst, expect_tangent<Form>(p, got.tangent, x, [](Part) { return true; }));
    if (Form::kExactOutput) {
      const Matrix<T> out = Form::forward(p.inputs(), p, p.blocks);
      EXPECT_TRUE(same_bits(out, got.value)) << p.text();
    }
  });
  std::cout << Form::kName << ": worst error " << worst << " of the bound\n";
}

TYPED_TEST_P(Tangent, BitsDoNotDependOnThreadsOrMemory) {
  using Form = typename TypeParam::Form;
  using T = typename TypeParam::T;
  ThreadPool two(2), three(3), eight(8);
  const auto expect = [&](const GradientProblem<T>& p) {
    auto x = random_directions(p, p.seed);
    const auto alone = tangent_of<Form>(p, x);
    WithTangent<Matrix<T>> views{alone.value, alone.tangent};
    Form::write(tangent_arguments(p, x, views), p, p.blocks, {});
    expect_same(alone, views, p, "without a workspace");
    for (ThreadPool* pool : {&two, &three, &eight}) {
      expect_same(alone, tangent_of<Form>(p, x, *pool), p,
                  std::to_string(pool->workers()) + " workers");
    }
  };
  for_any_problems<T>(Form(), 32, expect);
  for (std::uint64_t seed = 0; seed < 2; ++seed) expect(wide_problem<T>(Form(), seed));
}

TYPED_TEST_P(Tangent, MaskedTokensAreNotReadAndTheirRowsAreZero) {
  using Form = typename TypeParam::Form;
  using T = typename TypeParam::T;
  for_problems<T>(Form(), 40, [](GradientProblem<T> p) {
    Random rng(p.seed);
    p.query_mask = random_mask(rng, p.blocks.queries);
    p.key_mask = random_mask(rng, p.blocks.keys);
    auto x = random_directions(p, p.seed);
    const auto clean = tangent_of<Form>(p, x);
    for (auto* tensors : {&p.tensors, &x.tensors}) {
      for (const Part part : {kQ, kNormalizerQ}) poison_rows(p.query_mask, (*tensors)[part]);
      for (const Part part : {kK, kV, kNormalizerK}) poison_rows(p.key_mask, (*tensors)[part]);
    }
    expect_same(clean, tangent_of<Form>(p, x), p, "masked");
    for (Index t = 0; t < p.queries(); ++t) {
      if (p.query_mask(0, t)) continue;
      EXPECT_TRUE(detail::is_zero(clean.value.row(t).data(), clean.value.cols()) &&
                  detail::is_zero(clean.tangent.row(t).data(), clean.tangent.cols()));
    }
  });
}

TYPED_TEST_P(Tangent, OfOrdinaryNumbersRaisesNoFlag) {
  using Form = typename TypeParam::Form;
  using T = typename TypeParam::T;
  for_problems<T>(Form(), 120, [](const GradientProblem<T>& p) {
    auto x = random_directions(p, p.seed);
    std::feclearexcept(FE_ALL_EXCEPT);
    static_cast<void>(tangent_of<Form>(p, x));
    EXPECT_EQ(std::fetestexcept(FE_DIVBYZERO | FE_INVALID), 0) << p.text();
  });
}

/// <dout, J x'> = <J^T dout, x'>, within the bounds of both sides.
TYPED_TEST_P(Tangent, IsTheTransposeOfTheGradient) {
  using Form = typename TypeParam::Form;
  using T = typename TypeParam::T;
  using A = accumulator_t<T>;
  using Real = long double;
  for_problems<T>(Form(), 40, [](const GradientProblem<T>& p) {
    auto x = random_directions(p, p.seed);
    const auto along = x.template values<Real>();
    const auto got = tangent_of<Form>(p, x);
    const auto g = gradients_of(kGradientOn<typename Form::Backward, T>, p).template values<Real>();
    auto point = values_of<Dual<A>>(p);
    Real left = 0, right = 0, size = 0, storage = 0;
    for (const Part part : kAllParts) {
      for (Index i = 0; i < g[part].size(); ++i) {
        point[part].data()[i].tangent = along[part].data()[i];
        point[part].data()[i].tangent_size = std::abs(along[part].data()[i]);
        right += along[part].data()[i] * g[part].data()[i];
        if (part < kMixing) storage += std::abs(along[part].data()[i] * g[part].data()[i]) + 1;
      }
    }
    const Matrix<Dual<A>> out = Form::template definition<Dual<A>>(p, point);
    for (Index i = 0; i < out.size(); ++i) {
      const auto dout = static_cast<Real>(static_cast<A>(p.dout.data()[i]));
      const Real term = dout * static_cast<Real>(static_cast<A>(got.tangent.data()[i]));
      left += term;
      storage += std::abs(term) + 1;
      size += out.data()[i].tangent_size * std::abs(dout);
    }
    const Real u(kUnitRoundoff<T>);
    const Real bound = (gamma(Form::chain(p), u) + gamma(longest_chain(p), u)) * size +
                       Real(kStorageRoundoff<T>) * storage;
    EXPECT_LE(std::abs(left - right), bound * (1 + Real(1) / 16)) << p.text();
  });
}

REGISTER_TYPED_TEST_SUITE_P(Tangent, IsTheDirectionalDerivative, BitsDoNotDependOnThreadsOrMemory,
                            MaskedTokensAreNotReadAndTheirRowsAreZero,
                            OfOrdinaryNumbersRaisesNoFlag, IsTheTransposeOfTheGradient);

TYPED_TEST_SUITE_P(FullTangent);

/// Each direction alone, all but one, and none: an absent one counts as zeros.
TYPED_TEST_P(FullTangent, AbsentDirectionsAreZero) {
  using Form = typename TypeParam::Form;
  using T = typename TypeParam::T;
  const auto expect_each = [](const GradientProblem<T>& p) {
    auto x = random_directions(p, p.seed);
    const auto all = tangent_of<Form>(p, x);
    const auto expect = [&](const auto& wanted) {
      const auto got = tangent_of<Form>(p, x, {}, [&](auto& a) {
        for (const Part part : kAllParts) {
          if (!wanted(part)) remove_part(a, part);
        }
      });
      EXPECT_TRUE(same_bits(all.value, got.value)) << p.text();
      expect_tangent<Form>(p, got.tangent, x, wanted);
    };
    for (const Part part : kAllParts) {
      expect([part](Part other) { return other == part; });
      expect([part](Part other) { return other != part; });
    }
    expect([](Part) { return false; });
  };
  for (const std::uint64_t seed : seeds(40)) {
    expect_each(random_gradient<T>(Form(), seed, Size::kSmall));
  }
  expect_each(random_gradient<T>(Form(), 7, Size::kLong));
}

/// An output over a denominator of 0 is a constant: 0, or infinite where its numerator is not 0.
TYPED_TEST_P(FullTangent, OverADenominatorOfZeroIsZero) {
  using Form = typename TypeParam::Form;
  using T = typename TypeParam::T;
  Index zeros = 0, infinite = 0;
  for_problems<T>(Form(), 80, [&](GradientProblem<T> p) {
    if (p.op.normalizer.sums() == WeightSums::kNone) return;
    // Keys whose features cancel in pairs, vanish, or are random.
    p.op.normalizer = {p.op.normalizer.sums(), 0};
    p.op.query_map = p.op.key_map = {Identity{}};
    p.tensors[kNormalizerQ] = p.tensors[kNormalizerK] = {};
    Random rng(p.seed);
    p.coefficients = p.coefficients.cwiseSign();
    const Index kind = rng.integer(0, 2);
    Matrix<T>&q = p.tensors[kQ], &k = p.tensors[kK];
    q = Matrix<T>::Ones(q.rows(), q.cols());
    k = rng.matrix<T>(k.rows(), q.cols());
    for (Index t = 0; kind < 2 && t < k.rows(); ++t) {
      k.row(t).setConstant(static_cast<T>(kind * (t % 2 == 0 ? 1 : -1)));
    }
    Form::fit(p);
    auto x = random_directions(p, p.seed);
    const auto got = tangent_of<Form>(p, x);
    const auto exact = naive_problem<T>(p.inputs(), p.blocks, p.mixing(), p.op,
                                        p.causal ? Order::kCausal : Order::kBidirectional);
    const Matrix<T> den = naive_denominators(exact);
    for (Index t = 0; t < p.queries(); ++t) {
      if (!p.mask(p.query_mask)[t]) continue;
      for (Index e = 0; e < got.value.cols(); ++e) {
        if (den(t, 0) != 0) {
          EXPECT_TRUE(std::isfinite(got.tangent(t, e))) << p.text();
          continue;
        }
        const T out = got.value(t, e);
        (out == 0 ? zeros : infinite) += 1;
        EXPECT_TRUE(out == 0 || std::isinf(out)) << out << " " << p.text();
        EXPECT_EQ(got.tangent(t, e), 0) << p.text();
      }
    }
  });
  if (Form::kDivides) {
    EXPECT_GT(zeros, 0);
    EXPECT_GT(infinite, 0);
  }
}

TYPED_TEST_P(FullTangent, ErrorsNameTheArgumentBeforeAnythingIsWritten) {
  TangentErrors<typename TypeParam::Form, typename TypeParam::T>::wrong_calls_are_rejected();
}

REGISTER_TYPED_TEST_SUITE_P(FullTangent, AbsentDirectionsAreZero, OverADenominatorOfZeroIsZero,
                            ErrorsNameTheArgumentBeforeAnythingIsWritten);

TYPED_TEST_SUITE_P(CausalTangent);
TYPED_TEST_P(CausalTangent, DoesNotDependOnLaterTokensOrTheirDirections) {
  using Form = typename TypeParam::Form;
  using T = typename TypeParam::T;
  for_problems<T>(Form(), 60, [](GradientProblem<T> p) {
    if (p.queries() < 2) return;
    const Index first = Random(p.seed).integer(1, p.queries() - 1);
    auto x = random_directions(p, p.seed);
    const auto clean = tangent_of<Form>(p, x);
    for (auto* tensors : {&p.tensors, &x.tensors}) {
      for (Matrix<T>& m : *tensors) {
        if (m.rows() > 0) m.bottomRows(m.rows() - first).setConstant(static_cast<T>(NAN));
      }
    }
    const auto got = tangent_of<Form>(p, x);
    EXPECT_TRUE(same_bits<T>(clean.value.topRows(first), got.value.topRows(first))) << p.text();
    EXPECT_TRUE(same_bits<T>(clean.tangent.topRows(first), got.tangent.topRows(first))) << p.text();
  });
}
REGISTER_TYPED_TEST_SUITE_P(CausalTangent, DoesNotDependOnLaterTokensOrTheirDirections);

}  // namespace mhla::test
