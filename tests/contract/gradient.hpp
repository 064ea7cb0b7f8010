#pragma once

/// \file
/// Requirements of every backward form, as suites over a Form (support/gradient_forms.hpp) and a
/// type of numbers:
///
///     Gradient           all forms in all types
///     FullGradient       all forms in double and float: laws that do not depend on storage
///     DoubleGradient     all forms in double
///     CausalGradient     forms whose queries read no later key
///     MixingGradient     forms that have a mixing matrix and keep summaries
///
///     INSTANTIATE_TYPED_TEST_SUITE_P(Double, Gradient, AllForms<double>, FormNames);

#include "support/gradient_causality.hpp"
#include "support/gradient_errors.hpp"
#include "support/gradient_laws.hpp"
#include "support/gradient_zeros.hpp"

namespace mhla::test {

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
/// All forms in one type of numbers, and those of CausalGradient and of MixingGradient.
template <class T>
using AllForms = decltype(cases_of<T>(BackwardForms()));
template <class T>
using CausalForms =
    testing::Types<Case<CausalForm, T>, Case<LinearCausal, T>, Case<SoftmaxCausal, T>>;
template <class T>
using MixingForms = testing::Types<Case<BidirectionalForm, T>, Case<CausalForm, T>>;
struct FormNames {
  template <class C>
  static std::string GetName(int /*index*/) {
    return C::Form::kName;
  }
};

template <class C>
struct Gradient : testing::Test {
  using Laws = GradientLaws<typename C::Form, typename C::T>;
  using Zeros = GradientZeros<typename C::Form, typename C::T>;
};
template <class C>
struct FullGradient : Gradient<C> {};
template <class C>
struct DoubleGradient : Gradient<C> {};
template <class C>
struct CausalGradient : testing::Test {
  using Laws = GradientCausality<typename C::Form, typename C::T>;
};
template <class C>
struct MixingGradient : Gradient<C> {};

TYPED_TEST_SUITE_P(Gradient);
TYPED_TEST_P(Gradient, IsTheTransposeOfTheDirectionalDerivative) {
  TestFixture::Laws::is_the_transpose();
}
TYPED_TEST_P(Gradient, BitsDoNotDependOnThreadsOrMemory) {
  TestFixture::Laws::bits_do_not_depend_on_threads_or_memory();
}
TYPED_TEST_P(Gradient, MaskedTokensAreNotReadAndTheirGradientsNotTouched) {
  TestFixture::Laws::masked_tokens_are_not_read();
}
TYPED_TEST_P(Gradient, IsSummedFromZeroAndThenAddedToWhatIsThereInAnyLayout) {
  TestFixture::Laws::what_is_there_is_added_to();
}
TYPED_TEST_P(Gradient, OfOrdinaryNumbersRaisesNoFlag) {
  TestFixture::Laws::ordinary_numbers_raise_no_flags();
}
TYPED_TEST_P(Gradient, RowsWithoutGradientsAreLeftOut) {
  TestFixture::Zeros::rows_without_gradients_are_left_out();
}
TYPED_TEST_P(Gradient, ZeroDenominatorsAddNothing) {
  TestFixture::Zeros::zero_denominators_add_nothing();
}
REGISTER_TYPED_TEST_SUITE_P(Gradient, IsTheTransposeOfTheDirectionalDerivative,
                            BitsDoNotDependOnThreadsOrMemory,
                            MaskedTokensAreNotReadAndTheirGradientsNotTouched,
                            IsSummedFromZeroAndThenAddedToWhatIsThereInAnyLayout,
                            OfOrdinaryNumbersRaisesNoFlag, RowsWithoutGradientsAreLeftOut,
                            ZeroDenominatorsAddNothing);

TYPED_TEST_SUITE_P(FullGradient);
TYPED_TEST_P(FullGradient, EveryElementIsADirectionalDerivative) {
  TestFixture::Laws::every_element_is_a_derivative();
}
TYPED_TEST_P(FullGradient, OutputsDoNotDependOnEachOther) {
  TestFixture::Laws::outputs_do_not_depend_on_each_other();
}
TYPED_TEST_P(FullGradient, UnusedTensorsAreNotRead) {
  TestFixture::Laws::unused_tensors_are_not_read();
}
TYPED_TEST_P(FullGradient, NothingIsAddedWhereNothingIs) { TestFixture::Laws::nothing_is_added(); }
TYPED_TEST_P(FullGradient, ErrorsNameTheArgumentBeforeAnythingIsWritten) {
  GradientErrors<typename TypeParam::Form, typename TypeParam::T>::wrong_calls_are_rejected();
}
REGISTER_TYPED_TEST_SUITE_P(FullGradient, EveryElementIsADirectionalDerivative,
                            OutputsDoNotDependOnEachOther, UnusedTensorsAreNotRead,
                            NothingIsAddedWhereNothingIs,
                            ErrorsNameTheArgumentBeforeAnythingIsWritten);

TYPED_TEST_SUITE_P(CausalGradient);
TYPED_TEST_P(CausalGradient, OfQueriesDoesNotDependOnLaterTokens) {
  TestFixture::Laws::queries_do_not_depend_on_later_tokens();
}
TYPED_TEST_P(CausalGradient, OfKeysDoesNotDependOnEarlierQueries) {
  TestFixture::Laws::keys_do_not_depend_on_earlier_queries();
}
TYPED_TEST_P(CausalGradient, IsZeroBehindTheLastOutputWithAGradient) {
  TestFixture::Laws::is_zero_behind_the_loss();
}
REGISTER_TYPED_TEST_SUITE_P(CausalGradient, OfQueriesDoesNotDependOnLaterTokens,
                            OfKeysDoesNotDependOnEarlierQueries,
                            IsZeroBehindTheLastOutputWithAGradient);

TYPED_TEST_SUITE_P(MixingGradient);
TYPED_TEST_P(MixingGradient, KeptSummariesGiveTheSameBits) {
  TestFixture::Laws::kept_summaries_give_the_same_bits();
}
TYPED_TEST_P(MixingGradient, IsWrittenToCoefficientsThatAreReadAlone) {
  TestFixture::Laws::only_coefficients_that_are_read_are_written();
}
REGISTER_TYPED_TEST_SUITE_P(MixingGradient, KeptSummariesGiveTheSameBits,
                            IsWrittenToCoefficientsThatAreReadAlone);

TYPED_TEST_SUITE_P(DoubleGradient);
TYPED_TEST_P(DoubleGradient, EqualsCentralDifferences) {
  using Form = typename TypeParam::Form;
  for (std::uint64_t seed = 100; seed < 124; ++seed) {
    expect_central_differences<Form>(random_gradient<Form, double>(seed, Size::kSmall));
  }
}
REGISTER_TYPED_TEST_SUITE_P(DoubleGradient, EqualsCentralDifferences);

}  // namespace mhla::test
