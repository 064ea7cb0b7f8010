#include "mhla/layer/adamw.hpp"

#include "contract/layer.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// Step 3: parameters, gradients, m and the root of v, all [1,n] -> parameters, m, v.
template <class A>
struct AdamWLayer {
  using Scalar = A;
  static constexpr AdamWOptions kOptions{
      .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-2, .weight_decay = 0.2};
  static constexpr double kRate = 0.1;

  static std::vector<Sizes> sizes() { return {{0}, {1}, {7}, {16}, {37}, {9001}}; }
  static Shapes inputs(const Sizes& s) { return Shapes(4, row_of(s[0])); }
  static Shapes outputs(const Sizes& s) { return Shapes(3, row_of(s[0])); }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    const Index n = in[0].cols;
    AdamWState<A> state(n);
    state.steps = 2;
    for (std::size_t i = 0; i < state.m.size(); ++i) {
      out[0].data[i] = in[0].data[i];
      state.m[i] = in[2].data[i];
      state.v[i] = in[3].data[i] * in[3].data[i];
    }
    adamw(span_of(out[0]), span_of(in[1]), state, kRate, kOptions, call.executor);
    EXPECT_EQ(state.steps, 3);
    std::copy_n(state.m.data(), n, out[1].data);
    std::copy_n(state.v.data(), n, out[2].data);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    const auto [rate, beta1, beta2, eps, decay] = std::array<Dual<A>, 5>{
        kRate, kOptions.beta1, kOptions.beta2, kOptions.eps, kOptions.weight_decay};
    std::vector<Matrix<Dual<A>>> out(3, in[0]);
    for (Index i = 0; i < in[0].size(); ++i) {
      const Dual<A> g = in[1](0, i), root = in[3](0, i);
      const Dual<A> m = beta1 * in[2](0, i) + (1 - kOptions.beta1) * g;
      const Dual<A> v = beta2 * root * root + (1 - kOptions.beta2) * g * g;
      const Dual<A> mean = m / (1 - std::pow(Wide(kOptions.beta1), 3));
      const Dual<A> square = v / (1 - std::pow(Wide(kOptions.beta2), 3));
      const Dual<A> step = mean / (sqrt(square) + eps) + decay * in[0](0, i);
      out[0](0, i) = in[0](0, i) - rate * step;
      out[1](0, i) = m;
      out[2](0, i) = v;
    }
    return out;
  }
  static Index roundings(const Sizes&) { return 16; }
};

using Steps = testing::Types<AdamWLayer<float>, AdamWLayer<double>>;
TEST_LAYERS(AdamW, Steps);

template <class A>
std::vector<A> numbers(Random& rng, Index count) {
  const Matrix<A> m = rng.matrix<A>(1, count);
  return {m.data(), m.data() + count};
}

template <class A>
class AdamW : public testing::Test {
 public:
  static constexpr Wide kRoundoff = std::numeric_limits<A>::epsilon() / 2;
};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(AdamW, Accumulators);

TYPED_TEST(AdamW, HugeGradientsMakeNoNumberThatIsNotFinite) {
  using A = TypeParam;
  const A most = std::numeric_limits<A>::max();
  for (const A size : {std::sqrt(most), 2 * std::sqrt(most), most}) {
    std::vector<A> p(20, 1);
    const std::vector<A> g(20, size);
    AdamWState<A> state(20);
    for (int step = 0; step < 2; ++step) adamw<A>(p, g, state, 0.5);
    for (const A x : p) {
      EXPECT_LE(x, 1) << size;  // in steps of at most 0.5, with the decay of weights
      EXPECT_GE(x, -0.1) << size;
    }
    if (size < 2 * std::sqrt(most)) {
      EXPECT_LT(p[0], 0.1) << size;
    }
  }
}

TYPED_TEST(AdamW, TheFirstStepHasTheLengthOfTheRateWhateverTheSizeOfTheGradient) {
  using A = TypeParam;
  for (const double size : {1e-6, 1.0, 1e6}) {
    std::vector<A> p{0, 0, 0};
    const std::vector<A> g{static_cast<A>(size), static_cast<A>(-size), 0};
    AdamWState<A> state(3);
    adamw(p, g, state, 0.5, {.eps = 1e-14});
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
  adamw(p, std::vector<A>{0, 0}, state, 0.5, {.weight_decay = 0.5});
  EXPECT_EQ(p, (std::vector<A>{1.5, -3}));
  EXPECT_EQ(state.m, (std::vector<A>{0, 0}));
}

TEST(AdamWErrors, NameTheArgumentBeforeAnythingIsWritten) {
  std::vector<float> p{1, 2, 3};
  const std::vector<float> g{1, 1, 1}, two{1, 1};
  AdamWState<float> state(3), small(2);
  const auto text = [&](std::span<const float> gradients, AdamWState<float>& s, double rate,
                        const AdamWOptions& options) {
    return message_of<error>([&] { adamw(p, gradients, s, rate, options); });
  };
  EXPECT_EQ(text(two, state, 1, {}), "mhla::adamw: gradients has 2 elements, expected 3");
  EXPECT_EQ(text(g, small, 1, {}), "mhla::adamw: state.m has 2 elements, expected 3");
  EXPECT_EQ(text(g, state, -1, {}), "mhla::adamw: learning_rate is -1.000000, expected 0 or more");
  for (const double beta : {1.0, -1.0, std::nan("")}) {
    const std::string range =
        " is " + std::to_string(beta) + ", expected at least 0 and less than 1";
    EXPECT_EQ(text(g, state, 1, {.beta1 = beta}), "mhla::adamw: beta1" + range);
    EXPECT_EQ(text(g, state, 1, {.beta2 = beta}), "mhla::adamw: beta2" + range);
  }
  for (const double eps : {0.0, 1e-50}) {  // 1e-50 is 0 as float
    EXPECT_EQ(text(g, state, 1, {.eps = eps}),
              "mhla::adamw: eps is 0.000000, expected more than 0");
  }
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
  Random rng(3);
  for (const Index count : {0, 1, 5, 1024, 5000}) {
    const std::vector<A> g = numbers<A>(rng, count);
    Wide squares = 0;
    for (const A x : g) squares += static_cast<Wide>(x) * x;
    const Wide norm = std::sqrt(squares);
    const Wide bound = 1024 * 0x1p-53L * norm;  // sums of blocks of 1024 numbers in double
    std::vector<A> kept = g, clipped = g;
    EXPECT_LE(std::abs(clip_gradients(kept, 1e3) - norm), bound);
    EXPECT_EQ(kept, g);
    EXPECT_LE(std::abs(clip_gradients(clipped, 0.25) - norm), bound);
    for (std::size_t i = 0; i < g.size() && norm > 0.25L; ++i) {
      EXPECT_LE(std::abs(clipped[i] - g[i] * (0.25L / norm)), 1030 * this->kRoundoff);
    }
  }
}

TEST(AdamWClipping, HoldsSquaresThatFloatDoesNot) {
  std::vector<float> large{3e19f, 4e19f}, small{3e-30f, 4e-30f};
  EXPECT_NEAR(clip_gradients(large, 1), 5e19, 1e13);
  EXPECT_FLOAT_EQ(large[0], 0.6f);
  EXPECT_NEAR(clip_gradients(small, 1), 5e-30, 1e-36);
  EXPECT_EQ(small[0], 3e-30f);
}

TYPED_TEST(AdamW, ClippingLeavesGradientsThatAreNotFinite) {
  using A = TypeParam;
  constexpr A kInfinity = std::numeric_limits<A>::infinity();
  std::vector<A> g{1, kInfinity};
  EXPECT_EQ(clip_gradients(g, 1), std::numeric_limits<double>::infinity());
  EXPECT_EQ(g, (std::vector<A>{1, kInfinity}));
  EXPECT_EQ(message_of<option_error>([&] { clip_gradients(g, -1); }),
            "mhla::clip_gradients: largest_norm is -1.000000, expected 0 or more");
}

}  // namespace
}  // namespace mhla::test
