// Outputs of the causal form against the definition in double, what the kernel reads and writes,
// and that no later token enters an output.
//
// Bound. phi(q), phi(k) and S~ are what they are, rounded, and products of numbers of T are floats.
// P = m_ii phi(q).phi(k) is off by D additions and a product, then by its rounding to T. Sums of P
// and of P v are off by that, and by their own additions: one for a row of S~ or its low part, one
// for a key. phi(q) . z~ is a product and at most D + 2 additions. Outputs then: output_bound.hpp.

#include "mhla/cuda/kernel/causal_read_out_sm90.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "emulator/device.hpp"
#include "support/cuda/output_bound.hpp"
#include "support/cuda/problem.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct Case {
  int tokens, width;
  FeatureMap query_map = FeatureMap::relu(), key_map = FeatureMap::relu();
  Denominator denominator = Denominator::kKeySum;
  int batch = 1, heads = 1, layout = 0;
  std::uint64_t seed = 1;
};

template <class T, int D, int E, Precision P>
struct Problem {
  using Kernel = CausalReadOutSm90<T, D, E, P>;
  Case c;
  TokenBlocks partition;
  int blocks, pairs;
  Tensor<T> q, k, v, o;
  Array<T> high, low;
  Array<float> key_sum, mixing;
  CausalReadOutParameters params;
  emulator::Report report;
  int multiprocessors = 2;

  /// What kernels must not read is NaN: mixtures of no blocks, coefficients off the diagonal.
  explicit Problem(const Case& given)
      : c(given),
        partition(1, 1, c.tokens, 1, 1, c.width),
        blocks(partition.blocks()),
        pairs(c.batch * c.heads),
        q(tensor(D, 0)),
        k(tensor(D, 1)),
        v(tensor(E, 2)),
        o(tensor(E, 1)),
        high(std::int64_t{pairs} * blocks * D * E),
        low(high.size()),
        key_sum(std::int64_t{pairs} * blocks * D),
        mixing(std::int64_t{blocks} * (blocks + 3)) {
    Random rng(c.seed);
    const bool positive = c.denominator != Denominator::kNone;  // well-conditioned then
    for (Tensor<T>* x : {&q, &k}) {
      x->fill([&] { return positive ? rng.uniform(0.1, 2) : rng.normal(); });
    }
    v.fill([&] { return rng.normal(); });
    for (std::int64_t i = 0; i < high.size(); ++i) {
      if (i / (D * E) % blocks == 0) continue;
      const double x = rng.normal();
      high[i] = from_double<T>(x);
      low[i] = from_double<T>(x - high.value(i));
    }
    for (std::int64_t i = 0; i < key_sum.size(); ++i) {
      if (i / D % blocks != 0) key_sum[i] = static_cast<float>(rng.uniform(1, 9));
    }
    for (int i = 0; i < blocks; ++i) {
      mixing[i * (blocks + 4)] = static_cast<float>(rng.uniform(0.1, 1));
    }
    params = {q.input(),
              k.input(),
              v.input(),
              o.output(),
              partition,
              c.heads,
              c.query_map,
              c.key_map,
              {high.raw(), low.raw(), key_sum.data()},
              {c.denominator, 0.75f, 1e-3f},
              {mixing.data(), blocks + 3}};
  }

  Tensor<T> tensor(int width, int turn) const {
    return {c.batch, c.tokens, c.heads, width,
            Layout::any((c.layout + turn) % 3, c.tokens, c.heads, width)};
  }

  /// Whether the kernel can do it.
  bool prepare(typename Kernel::Params& p) {
    TensorBox boxes[7];
    if (!Kernel::prepare(params, pairs, multiprocessors, p, boxes)) return false;
    for (int i = 0; i < 7; ++i) {
      if (boxes[i].base != nullptr) p.maps[i] = emulator::tensor_map(boxes[i]);
    }
    return true;
  }

  /// Only what the case needs may be read.
  void launch() {
    using emulator::Access;
    typename Kernel::Params p{};
    ASSERT_TRUE(prepare(p));
    emulator::Device device(c.seed % 7);
    device.track("q", q.raw(), q.bytes(), Access::kRead);
    device.track("k", k.raw(), k.bytes(), Access::kRead);
    device.track("v", v.raw(), v.bytes(), Access::kRead);
    device.track("o", o.raw(), o.bytes(), Access::kWrite);
    device.track("m", mixing.raw(), mixing.bytes(), Access::kRead);
    device.track("high", high.raw(), high.bytes(), Access::kRead);
    if (P == Precision::kPair) device.track("low", low.raw(), low.bytes(), Access::kRead);
    if (c.denominator == Denominator::kKeySum) {
      device.track("z", key_sum.raw(), key_sum.bytes(), Access::kRead);
    }
    const Grid grid = Kernel::grid(p, pairs);
    try {
      report = device.launch<Kernel>({grid.x, grid.y, grid.z}, p);
    } catch (const emulator::Fault& fault) {
      FAIL() << fault.what();
    }
  }

  /// Compares the outputs of token t.
  void compare(Comparison& comparison, int b, int t, int h) const {
    const int i = t / c.width;
    const std::int64_t item = std::int64_t{b * c.heads + h} * blocks + i;
    const double parts = P == Precision::kPair ? 2 : 1;
    std::vector<double> phi(D);
    BoundedSum d;
    for (int j = 0; j < D; ++j) {
      phi[static_cast<std::size_t>(j)] = rounded_phi(c.query_map, q.at(b, t, h, j));
      if (i > 0) d.add(phi[static_cast<std::size_t>(j)] * key_sum.value(item * D + j));
    }
    std::vector<Bounded> weights;
    for (int s = i * c.width; s <= t; ++s) {
      BoundedSum score;
      for (int j = 0; j < D; ++j) {
        score.add(phi[static_cast<std::size_t>(j)] * rounded_phi(c.key_map, k.at(b, s, h, j)));
      }
      const double m = mixing.value(i * (blocks + 4));
      const Bounded exact = score.after(D + 1);
      weights.push_back(then_rounded<T>({m * exact.value, m * exact.error}));
      d.add(weights.back().value, weights.back().error);
    }
    const double keys = (static_cast<double>(weights.size()) + 63) / 64 * 64;
    const double chain = keys + parts * D + 4;
    for (int e = 0; e < E; ++e) {
      BoundedSum n;
      for (int j = 0; i > 0 && j < D; ++j) {
        const std::int64_t at = (item * D + j) * E + e;
        n.add(phi[static_cast<std::size_t>(j)] * high.value(at));
        if (parts == 2) n.add(phi[static_cast<std::size_t>(j)] * low.value(at));
      }
      for (std::size_t s = 0; s < weights.size(); ++s) {
        const double value = v.value(b, i * c.width + static_cast<int>(s), h, e);
        n.add(weights[s].value * value, weights[s].error * std::abs(value));
      }
      comparison.compare(o.value(b, t, h, e),
                         output<T>(n.after(chain), d.after(chain), params.normalization), b, t, h,
                         e);
    }
  }

  double compare() const {
    Comparison comparison(std::to_string(D) + " x " + std::to_string(E) + " of " +
                          Format<T>::kName + ", blocks of " + std::to_string(c.width) + ", seed " +
                          std::to_string(c.seed));
    for (int b = 0; b < c.batch; ++b) {
      for (int t = 0; t < c.tokens; ++t) {
        for (int h = 0; h < c.heads; ++h) compare(comparison, b, t, h);
      }
    }
    EXPECT_TRUE(o.padding_is_untouched());
    return comparison.worst();
  }

  /// Everything once, S~ and z~ but for the first block.
  void expect_few_bytes() const {
    const auto states = static_cast<std::size_t>(pairs) * static_cast<std::size_t>(blocks - 1);
    EXPECT_EQ(report.bytes_read("q"), q.row_bytes());
    EXPECT_EQ(report.bytes_written("o"), o.row_bytes());
    EXPECT_EQ(report.bytes_read("k"), k.row_bytes());
    EXPECT_EQ(report.bytes_read("v"), v.row_bytes());
    EXPECT_EQ(report.bytes_read("high"), states * D * E * 2);
    if (P == Precision::kPair) {
      EXPECT_EQ(report.bytes_read("low"), states * D * E * 2);
    }
    if (c.denominator == Denominator::kKeySum) {
      EXPECT_EQ(report.bytes_read("z"), states * D * 4);
    }
    EXPECT_EQ(report.bank_conflicts, 0u);
  }
};

template <class T, int D, int E, Precision P>
double expect_right(const Case& c) {
  Problem<T, D, E, P> x(c);
  x.launch();
  x.expect_few_bytes();
  return x.compare();
}

/// Both types and precisions, all four combinations for the smallest widths.
template <int D, int E>
void expect_right_for_types(const Case& c) {
  double worst = expect_right<bfloat16, D, E, Precision::kSingle>(c);
  worst = std::max(worst, expect_right<half, D, E, Precision::kPair>(c));
  if constexpr (D == 64) {
    worst = std::max(worst, expect_right<half, D, E, Precision::kSingle>(c));
    worst = std::max(worst, expect_right<bfloat16, D, E, Precision::kPair>(c));
  }
  std::cout << D << " x " << E << ": worst error " << worst << " of the bound\n";
}

TEST(CausalReadOutSm90, GivesOutputsOfEveryWidth) {
  Case c{150, 70, FeatureMap::relu(0.5f), FeatureMap::relu(0.25f), Denominator::kKeySum};
  c.batch = 2;
  expect_right_for_types<64, 64>(c);
  c.layout = 2;
  c.batch = 1;
  expect_right_for_types<128, 128>(c);
  c.width = 60;  // pairs of 128 x 256 leave room for no more than 64
  expect_right_for_types<128, 256>(c);
}

TEST(CausalReadOutSm90, GivesOutputsOfEveryFeatureMapWithoutDenominators) {
  const Case signs{
      100, 33, FeatureMap::identity(), FeatureMap::elu_plus_one(), Denominator::kNone, 1, 2, 2, 5};
  const Case elu{90, 49, FeatureMap::elu_plus_one(), FeatureMap::relu(1), Denominator::kNone, 2, 2,
                 1,  6};
  for (const Case& c : {signs, elu}) {
    expect_right_for_types<64, 64>(c);
  }
  expect_right_for_types<128, 128>(elu);
  expect_right_for_types<128, 256>(signs);
}

TEST(CausalReadOutSm90, TakesBlocksOfAnyLength) {
  std::uint64_t seed = 10;
  for (const int width : {1, 2, 15, 16, 17, 63, 64, 65, 128, 200, 256}) {
    Case c{width == 1 ? 5 : 2 * width + width / 2, width};
    c.seed = ++seed;
    c.layout = width % 3;
    expect_right<half, 64, 64, Precision::kPair>(c);
    expect_right<bfloat16, 128, 128, Precision::kSingle>(c);
    if (width > 128) continue;
    c.tokens = width;  // a single block: no mixtures
    expect_right<bfloat16, 128, 256, Precision::kSingle>(c);
  }
}

/// In every column and place of a tile there is a token with infinite or undefined values.
template <class T, int D, int E>
void expect_causal(int width, int spoilt_token) {
  Case c{2 * width, width};
  c.seed = static_cast<std::uint64_t>(spoilt_token) + 1;
  using X = Problem<T, D, E, Precision::kSingle>;
  X clean(c), spoilt(c);
  const double values[] = {std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN(),
                           -std::numeric_limits<double>::infinity()};
  const double value = values[spoilt_token % 3];
  const int column = (37 * spoilt_token) % E;
  spoilt.v.at(0, spoilt_token, 0, column) = from_double<T>(value);
  for (X* x : {&clean, &spoilt}) x->launch();
  Comparison comparison("token " + std::to_string(spoilt_token));
  for (int t = 0; t < c.tokens; ++t) spoilt.compare(comparison, 0, t, 0);
  for (int t = 0; t < c.tokens; ++t) {
    const bool later = t >= spoilt_token && t / width == spoilt_token / width;
    EXPECT_EQ(std::isfinite(spoilt.o.value(0, t, 0, column)), !later) << spoilt_token << " " << t;
    for (int e = 0; e < E && t < spoilt_token / 16 * 16; ++e) {
      ASSERT_EQ(spoilt.o.at(0, t, 0, e).bits, clean.o.at(0, t, 0, e).bits);
    }
  }
}

TEST(CausalReadOutSm90, LaterValuesNeverEnterWhateverTheyAre) {
  for (const int token : {0, 1, 15, 16, 31, 40, 63, 64, 78, 79, 81}) {
    expect_causal<bfloat16, 64, 64>(80, token);
    expect_causal<half, 128, 256>(80, token);
  }
  expect_causal<bfloat16, 128, 128>(40, 30);
}

TEST(CausalReadOutSm90, LaterKeysNeverEnterWhateverTheyAre) {
  Case c{80, 40};
  using X = Problem<bfloat16, 64, 64, Precision::kSingle>;
  X clean(c), spoilt(c);
  for (int d = 0; d < 64; ++d) spoilt.k.at(0, 21, 0, d) = bfloat16{0x7FC0};
  for (X* x : {&clean, &spoilt}) x->launch();
  clean.o.each([&](int b, int t, int h, int e) {
    if (t >= 21 && t < 40) {
      EXPECT_FALSE(std::isfinite(spoilt.o.value(b, t, h, e)));
    } else {
      EXPECT_EQ(spoilt.o.at(b, t, h, e).bits, clean.o.at(b, t, h, e).bits) << t;
    }
  });
}

TEST(CausalReadOutSm90, OrderDoesNotMatter) {
  Case c{500, 96};
  using X = Problem<bfloat16, 128, 128, Precision::kSingle>;
  X first(c);
  first.multiprocessors = 1;
  first.launch();
  for (const std::uint64_t schedule : {2, 3, 4, 5, 6}) {
    X other(c);
    other.multiprocessors = 1 + static_cast<int>(schedule % 2);
    other.c.seed = schedule;
    other.launch();
    EXPECT_EQ(std::memcmp(first.o.raw(), other.o.raw(), first.o.bytes()), 0) << schedule;
  }
}

TEST(CausalReadOutSm90, RefusesBlocksThatDoNotFit) {
  const auto fits = []<int D, int E, Precision P>(int width) {
    Problem<bfloat16, D, E, P> x({2 * width, width});
    typename decltype(x)::Kernel::Params p{};
    return x.prepare(p);
  };
  EXPECT_TRUE((fits.template operator()<64, 64, Precision::kPair>(256)));
  EXPECT_FALSE((fits.template operator()<64, 64, Precision::kSingle>(257)));
  EXPECT_TRUE((fits.template operator()<128, 128, Precision::kSingle>(256)));
  EXPECT_TRUE((fits.template operator()<128, 256, Precision::kSingle>(128)));
  EXPECT_FALSE((fits.template operator()<128, 256, Precision::kSingle>(129)));
  EXPECT_TRUE((fits.template operator()<128, 256, Precision::kPair>(64)));
  EXPECT_FALSE((fits.template operator()<128, 256, Precision::kPair>(65)));
}

}  // namespace
}  // namespace cuda_test
