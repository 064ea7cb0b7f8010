#include "mhla/policy/decay_mixing.hpp"

#include <gtest/gtest.h>

#include "support/message_of.hpp"

namespace mhla::test {
namespace {

TEST(DecayMixing, MatrixIsTheSumOfPowersOfTheDistance) {
  const DecayMixing<double> mixing({2, 3}, {0.5, 1});
  const MixingMatrix<double> m = decay_matrix(mixing, 4);
  for (Index i = 0; i < 4; ++i) {
    for (Index b = 0; b < 4; ++b) {
      const double expected = b > i ? 0 : 2 * std::pow(0.5, static_cast<double>(i - b)) + 3;
      EXPECT_EQ(m(i, b), expected) << i << ", " << b;
    }
  }
  EXPECT_EQ(decay_matrix(DecayMixing<float>({1}, {0}), 3).dense(), (Matrix<float>::Identity(3, 3)));
}

TEST(DecayMixing, AViewIsIntoAFlatBuffer) {
  float parameters[] = {1, 2, 0.5f, 0.25f};
  const DecayView<float> view(parameters, 2);
  view.weights()[1] = 4;
  EXPECT_EQ(view.terms(), 2);
  EXPECT_EQ(decay_matrix(view, 2)(1, 0), 1.5f);
  EXPECT_EQ(view.matrix()(1, 0), 0.5f);
}

TEST(DecayMixing, RefusesTermsThatAreNone) {
  const auto text = [](std::vector<double> weights, std::vector<double> decays) {
    return message_of<error>([&] { DecayMixing<double>(weights, decays); });
  };
  EXPECT_EQ(text({1, 2}, {0.5}),
            "mhla::DecayMixing: decays has 1 entries, expected 2, one for each weight");
  EXPECT_EQ(text({}, {}), "mhla::DecayMixing: mixing has no term, expected at least one");
  for (const double decay : {1.5, -0.5, std::nan("")}) {
    EXPECT_EQ(text({1}, {decay}), "mhla::DecayMixing: decays holds " + std::to_string(decay) +
                                      ", expected numbers from 0 to 1");
  }
}

}  // namespace
}  // namespace mhla::test
