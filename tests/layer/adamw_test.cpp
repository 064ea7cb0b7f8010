#include "mhla/layer/adamw.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using Wide = long double;

template <class A>
std::vector<A> numbers(test::Random& rng, Index count, double size = 1) {
  const Matrix<A> m = rng.matrix<A>(1, count, -size, size);
  return {m.data(), m.data() + count};
}

/// The algorithm of the paper, one parameter at a time.
struct Definition {
  Wide p, m = 0, v = 0;

  void step(Wide g, int t, Wide rate, const AdamWOptions& o) {
    m = o.beta1 * m + (1 - static_cast<Wide>(o.beta1)) * g;
    v = o.beta2 * v + (1 - static_cast<Wide>(o.beta2)) * g * g;
    const Wide mean = m / (1 - std::pow(static_cast<Wide>(o.beta1), static_cast<Wide>(t)));
    const Wide square = v / (1 - std::pow(static_cast<Wide>(o.beta2), static_cast<Wide>(t)));
    p -= rate * (mean / (std::sqrt(square) + o.eps) + o.weight_decay * p);
  }
};

template <class A>
class AdamW : public testing::Test {
 public:
  static constexpr Wide kRoundoff = std::numeric_limits<A>::epsilon() / 2;
};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(AdamW, Accumulators);

TYPED_TEST(AdamW, TakesTheStepsOfTheAlgorithm) {
  using A = TypeParam;
  test::Random rng(1);
  const AdamWOptions options{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.2};
  for (const Index count : {0, 1, 7, 16, 37, 5000}) {
    std::vector<A> p = numbers<A>(rng, count);
    AdamWState<A> state(count);
    std::vector<Definition> exact;
    for (const A value : p) exact.push_back({.p = value});
    constexpr int kSteps = 20;
    for (int t = 1; t <= kSteps; ++t) {
      const std::vector<A> g = numbers<A>(rng, count);
      const double rate = 0.1 / t;
      adamw<A>(p, g, state, rate, options);
      for (std::size_t i = 0; i < p.size(); ++i) exact[i].step(g[i], t, rate, options);
    }
    EXPECT_EQ(state.steps, kSteps);
    for (std::size_t i = 0; i < p.size(); ++i) {
      // m and v are below 1 and rounded 4 times a step, forgotten by beta: 20 and 80 roundings.
      // The rates add up to less than 0.4, each step of m' / sqrt(v') below 10.
      EXPECT_LE(std::abs(state.m[i] - exact[i].m), 20 * this->kRoundoff);
      EXPECT_LE(std::abs(state.v[i] - exact[i].v), 80 * this->kRoundoff);
      EXPECT_LE(std::abs(p[i] - exact[i].p), 0.4L * 10 * 100 * this->kRoundoff) << i;
    }
  }
}

TYPED_TEST(AdamW, TheFirstStepHasTheLengthOfTheRateWhateverTheSizeOfTheGradient) {
  using A = TypeParam;
  for (const double size : {1e-6, 1.0, 1e6}) {
    std::vector<A> p{0, 0, 0};
    const std::vector<A> g{static_cast<A>(size), static_cast<A>(-size), 0};
    AdamWState<A> state(3);
    adamw<A>(p, g, state, 0.5, {.eps = 1e-14});
    const Wide bound = 20 * this->kRoundoff + 1e-8L;  // eps / size
    EXPECT_LE(std::abs(p[0] + 0.5L), bound);
    EXPECT_LE(std::abs(p[1] - 0.5L), bound);
    EXPECT_EQ(p[2], 0);
  }
}

TYPED_TEST(AdamW, TheDecayShrinksParametersWithoutGradient) {
  using A = TypeParam;
  std::vector<A> p{2, -4};
  AdamWState<A> state(2);
  adamw<A>(p, std::vector<A>{0, 0}, state, 0.5, {.weight_decay = 0.5});
  EXPECT_EQ(p, (std::vector<A>{1.5, -3}));
  EXPECT_EQ(state.m, (std::vector<A>{0, 0}));
}

TYPED_TEST(AdamW, EveryNumberOfThreadsGivesTheSameBits) {
  using A = TypeParam;
  test::Random rng(2);
  const Index count = 9001;
  const std::vector<A> start = numbers<A>(rng, count), g1 = numbers<A>(rng, count),
                       g2 = numbers<A>(rng, count);
  std::vector<A> p = start;
  AdamWState<A> state(count);
  for (const auto& g : {g1, g2}) adamw<A>(p, g, state, 0.1);
  for (Index threads = 1; threads <= 5; ++threads) {
    ThreadPool pool(threads);
    std::vector<A> p2 = start;
    AdamWState<A> state2(count);
    for (const auto& g : {g1, g2}) adamw<A>(p2, g, state2, 0.1, {}, pool);
    EXPECT_TRUE(p2 == p && state2.m == state.m && state2.v == state.v) << threads;
  }
}

TEST(AdamWErrors, NameTheArgumentBeforeAnythingIsWritten) {
  std::vector<float> p{1, 2, 3};
  const std::vector<float> g{1, 1, 1}, two{1, 1};
  AdamWState<float> state(3), small(2);
  const auto text = [&](std::span<const float> gradients, AdamWState<float>& s, double rate,
                        const AdamWOptions& options) {
    return test::message_of<error>([&] { adamw<float>(p, gradients, s, rate, options); });
  };
  EXPECT_EQ(text(two, state, 1, {}), "mhla::adamw: gradients has 2 elements, expected 3");
  EXPECT_EQ(text(g, small, 1, {}), "mhla::adamw: state.m has 2 elements, expected 3");
  EXPECT_EQ(text(g, state, -1, {}), "mhla::adamw: learning_rate is -1.000000, expected 0 or more");
  EXPECT_EQ(text(g, state, 1, {.beta1 = 1}),
            "mhla::adamw: beta1 is 1.000000, expected at least 0 and less than 1");
  EXPECT_EQ(text(g, state, 1, {.beta2 = -1}),
            "mhla::adamw: beta2 is -1.000000, expected at least 0 and less than 1");
  EXPECT_EQ(text(g, state, 1, {.eps = 0}), "mhla::adamw: eps is 0.000000, expected more than 0");
  EXPECT_EQ(text(g, state, 1, {.weight_decay = -1}),
            "mhla::adamw: weight_decay is -1.000000, expected 0 or more");
  EXPECT_EQ(text(g, state, std::nan(""), {}).substr(0, 26), "mhla::adamw: learning_rate");
  EXPECT_EQ(p, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(state.steps, 0);
}

TEST(WarmupCosine, RisesFallsAndStaysAtZero) {
  EXPECT_EQ(warmup_cosine(0, 4, 12), 0.25);
  EXPECT_EQ(warmup_cosine(3, 4, 12), 1);
  EXPECT_EQ(warmup_cosine(4, 4, 12), 1);
  EXPECT_NEAR(warmup_cosine(8, 4, 12), 0.5, 1e-15);
  EXPECT_NEAR(warmup_cosine(6, 4, 12), (1 + std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_EQ(warmup_cosine(12, 4, 12), 0);
  EXPECT_EQ(warmup_cosine(100, 4, 12), 0);
  EXPECT_EQ(warmup_cosine(0, 0, 10), 1);
  EXPECT_EQ(warmup_cosine(0, 0, 0), 0);
  for (Index step = 1; step < 30; ++step) {
    const double a = warmup_cosine(step - 1, 5, 25), b = warmup_cosine(step, 5, 25);
    EXPECT_TRUE(step < 5 ? b > a : b <= a) << step;
    EXPECT_TRUE(b >= 0 && b <= 1);
  }
}

TYPED_TEST(AdamW, ClippingScalesLongGradientsDownToTheNorm) {
  using A = TypeParam;
  test::Random rng(3);
  for (const Index count : {0, 1, 5, 1024, 5000}) {
    const std::vector<A> g = numbers<A>(rng, count);
    Wide squares = 0;
    for (const A x : g) squares += static_cast<Wide>(x) * x;
    const Wide norm = std::sqrt(squares);
    // A block of 1024 numbers is summed in A.
    const Wide bound = 1024 * this->kRoundoff * norm;
    std::vector<A> kept = g, clipped = g;
    EXPECT_LE(std::abs(clip_gradients<A>(kept, 1e3) - norm), bound);
    EXPECT_EQ(kept, g);
    EXPECT_LE(std::abs(clip_gradients<A>(clipped, 0.25) - norm), bound);
    for (std::size_t i = 0; i < g.size() && norm > 0.25L; ++i) {
      EXPECT_LE(std::abs(clipped[i] - g[i] * (0.25L / norm)), 1030 * this->kRoundoff);
    }
  }
}

TYPED_TEST(AdamW, ClippingLeavesGradientsThatAreNotFinite) {
  using A = TypeParam;
  constexpr A kInfinity = std::numeric_limits<A>::infinity();
  std::vector<A> g{1, kInfinity};
  EXPECT_EQ(clip_gradients<A>(g, 1), std::numeric_limits<double>::infinity());
  EXPECT_EQ(g, (std::vector<A>{1, kInfinity}));
  EXPECT_EQ(test::message_of<option_error>([&] { clip_gradients<A>(g, -1); }),
            "mhla::clip_gradients: largest_norm is -1.000000, expected 0 or more");
}

}  // namespace
}  // namespace mhla
