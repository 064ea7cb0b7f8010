#include "contract/gradient.hpp"

#include "support/add_test.hpp"
#include "support/gradient_causality.hpp"
#include "support/gradient_errors.hpp"
#include "support/gradient_laws.hpp"
#include "support/gradient_zeros.hpp"

namespace mhla::test {
namespace {

/// Laws that do not depend on storage, for float and double.
template <class T>
void add_full_tests(const std::string& prefix, const AnyGradient<T>& form) {
  const GradientLaws<T> laws{form};
  const GradientErrors<T> errors{form};
  const GradientCausality<T> causality{form};
  const auto suite = [&](const char* name) { return prefix + "/" + name + "/" + name_of<T>(); };
  const std::string full = suite("FullGradient"), causal = suite("CausalGradient"),
                    mixing = suite("MixingGradient");
  MHLA_ADD_TEST(full, laws, EveryElementIsADirectionalDerivative);
  MHLA_ADD_TEST(full, laws, OutputsDoNotDependOnEachOther);
  MHLA_ADD_TEST(full, laws, UnusedTensorsAreNotRead);
  MHLA_ADD_TEST(full, laws, NothingIsAddedWhereNothingIs);
  MHLA_ADD_TEST(full, errors, ErrorsNameTheArgumentBeforeAnythingIsWritten);
  if (form.causal) {
    MHLA_ADD_TEST(causal, causality, OfQueriesDoesNotDependOnLaterTokens);
    MHLA_ADD_TEST(causal, causality, OfKeysDoesNotDependOnEarlierQueries);
    MHLA_ADD_TEST(causal, causality, IsZeroBehindTheLastOutputWithAGradient);
  }
  if (form.mixes) MHLA_ADD_TEST(mixing, laws, KeptSummariesGiveTheSameBits);
  if (form.mixes && !form.decays) {
    MHLA_ADD_TEST(mixing, laws, IsWrittenToCoefficientsThatAreReadAlone);
  }
}

}  // namespace

template <class T>
void add_gradient_tests(const std::string& prefix, const AnyGradient<T>& form) {
  const GradientLaws<T> laws{form};
  const GradientZeros<T> zeros{form};
  const std::string suite = prefix + "/Gradient/" + name_of<T>();
  MHLA_ADD_TEST(suite, laws, IsTheTransposeOfTheDirectionalDerivative);
  MHLA_ADD_TEST(suite, laws, BitsDoNotDependOnThreadsOrMemory);
  MHLA_ADD_TEST(suite, laws, MaskedTokensAreNotReadAndTheirGradientsNotTouched);
  MHLA_ADD_TEST(suite, laws, IsSummedFromZeroAndThenAddedToWhatIsThereInAnyLayout);
  MHLA_ADD_TEST(suite, laws, OfOrdinaryNumbersRaisesNoFlag);
  MHLA_ADD_TEST(suite, zeros, RowsWithoutGradientsAreLeftOut);
  MHLA_ADD_TEST(suite, zeros, ZeroDenominatorsAddNothing);
  if constexpr (std::is_same_v<T, accumulator_t<T>>) add_full_tests(prefix, form);
  if constexpr (std::is_same_v<T, double>) {
    MHLA_ADD_TEST(prefix + "/DoubleGradient/double", laws, EqualsCentralDifferences);
  }
}
template void add_gradient_tests(const std::string&, const AnyGradient<float>&);
template void add_gradient_tests(const std::string&, const AnyGradient<double>&);
template void add_gradient_tests(const std::string&, const AnyGradient<Eigen::half>&);
template void add_gradient_tests(const std::string&, const AnyGradient<Eigen::bfloat16>&);

}  // namespace mhla::test
