// The whole operator of a pair in one block: outputs against the definition in double, what it
// moves, what it must not touch.
//
// Bound. Let u be the unit roundoff of T and eta its least normal number: rounding moves x by at
// most u (|x| + eta). A term phi(q) m phi(k) v of a numerator is rounded to T four times, phi(q),
// phi(k), its summary and its mixture, and m is off by at most u^2 |m| + u eta, being the sum of
// two numbers of T; one of a denominator is rounded twice, with m itself. exp2 and the additions of
// feature maps cost 2^-20. Sums of a term's chain of n floats are off by gamma_n. With plus for
// magnitudes, eta added to what is rounded,
//
//     e_n = (1 + u)^4 (1 + 2^-20)^2 (1 + gamma_n) - 1       e_d = (1 + u)^2 (...) - 1
//     dN  = phi(q)+ . (sum_b (e_n |m| + (1 + e_n) (u^2 |m| + u eta)) S_b+ + e_n eta)
//     dZ  = e_d phi(q)+ . sum_b |m| z_b+
//     |o^ - o| <= s (dN + |o| dZ) / (|den| - s dZ), and the output's rounding.

#include "mhla/cuda/kernel/fused_sm80.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "emulator/device.hpp"
#include "support/cuda/problem.hpp"

namespace {

using namespace mhla::cuda;  // NOLINT
using cuda_test::Array;
using cuda_test::Layout;
using cuda_test::Random;
using cuda_test::Tensor;

using Extent = std::array<std::int32_t, 3>;

TokenBlocks blocks_of(Extent n, Extent w) { return {n[0], n[1], n[2], w[0], w[1], w[2]}; }

struct Case {
  Extent queries, query_block, keys, key_block;
  FeatureMap map = FeatureMap::relu();
  Denominator denominator = Denominator::kKeySum;
  int batch = 1, heads = 1, layout = 0;
  unsigned seed = 1;

  static Case of(Extent tokens, Extent block) { return {tokens, block, tokens, block}; }
  static Case run(int n, int w) { return of({1, 1, n}, {1, 1, w}); }
};

double phi(const FeatureMap& map, double x) {
  if (map.exponential) return x > 0 ? x + 1 : std::exp(x);
  return std::max(x, static_cast<double>(map.floor)) + static_cast<double>(map.eps);
}

template <class T, int D>
struct Problem {
  TokenBlocks query_blocks, key_blocks;
  Tensor<T> q, k, v, o;
  Array<float> mixing;
  std::int64_t stride;
  DirectParameters params;

  explicit Problem(const Case& c)
      : query_blocks(blocks_of(c.queries, c.query_block)),
        key_blocks(blocks_of(c.keys, c.key_block)),
        q(tensor(c, query_blocks.tokens(), c.layout)),
        k(tensor(c, key_blocks.tokens(), (c.layout + 1) % 3)),
        v(tensor(c, key_blocks.tokens(), c.layout)),
        o(tensor(c, query_blocks.tokens(), (c.layout + 2) % 3)),
        mixing((query_blocks.blocks() - 1) * (key_blocks.blocks() + 3) + key_blocks.blocks()),
        stride(key_blocks.blocks() + 3) {
    Random random(c.seed);
    for (Tensor<T>* x : {&q, &k, &v}) x->fill([&] { return random.normal(); });
    const double low = c.denominator == Denominator::kNone ? -1 : 0;
    for (std::int32_t i = 0; i < query_blocks.blocks(); ++i) {
      for (std::int32_t b = 0; b < key_blocks.blocks(); ++b) {
        mixing[i * stride + b] = static_cast<float>(random.uniform(low, 1));
      }
    }
    params = {q.input(),
              k.input(),
              v.input(),
              o.output(),
              query_blocks,
              key_blocks,
              c.heads,
              c.map,
              c.map,
              {c.denominator, 0.75f, 1e-3f},
              {mixing.data(), stride}};
  }

  static Tensor<T> tensor(const Case& c, int tokens, int layout) {
    return {c.batch, tokens, c.heads, D, Layout::any(layout, tokens, c.heads, D)};
  }

  double m(int i, int b) const { return mixing.value(i * stride + b); }
};

/// Sums over blocks of keys, of one pair.
template <class T, int D>
struct Summaries {
  using Sums = std::vector<std::array<double, D>>;
  Sums s, s_plus, z, z_plus;  ///< [M D][D], and [M][D] of z

  Summaries(const Problem<T, D>& x, int batch, int head) {
    const double eta = std::ldexp(1.0, cuda_test::Format<T>::kLowest);
    const auto blocks = static_cast<std::size_t>(x.key_blocks.blocks());
    s.resize(blocks * D);
    z.resize(blocks);
    z_plus = z;
    s_plus.resize(blocks * D);
    for (auto& row : s_plus) row.fill(eta);
    for (int t = 0; t < x.k.tokens(); ++t) {
      const auto b = static_cast<std::size_t>(x.key_blocks.block_of(t));
      for (std::size_t d = 0; d < D; ++d) {
        const double key = phi(x.params.key_map, x.k.value(batch, t, head, static_cast<int>(d)));
        z[b][d] += key;
        z_plus[b][d] += std::abs(key) + eta;
        for (std::size_t e = 0; e < D; ++e) {
          const double value = x.v.value(batch, t, head, static_cast<int>(e));
          s[b * D + d][e] += key * value;
          s_plus[b * D + d][e] += (std::abs(key) + eta) * std::abs(value);
        }
      }
    }
  }
};

/// Compares the outputs of a pair. \return the worst error over its bound
template <class T, int D>
double compare(const Problem<T, D>& x, int batch, int head) {
  const Summaries<T, D> sums(x, batch, head);
  const double u = cuda_test::kRoundoff<T>, eta = std::ldexp(1.0, cuda_test::Format<T>::kLowest);
  const int blocks = x.key_blocks.blocks();
  const double chain = (1 + cuda_test::gamma(x.key_blocks.slots() + 3.0 * blocks + 2 * D + 16)) *
                       (1 + 0x1p-20) * (1 + 0x1p-20);
  const double e_n = std::pow(1 + u, 4) * chain - 1, e_d = std::pow(1 + u, 2) * chain - 1;
  const Normalization& norm = x.params.normalization;
  const double scale = norm.scale;
  double worst = 0;
  std::vector<std::array<double, D>> mixed(D), off(D);
  int mixed_block = -1;
  std::array<double, D> z{}, z_plus{};
  std::vector<int> order(static_cast<std::size_t>(x.q.tokens()));
  for (std::size_t t = 0; t < order.size(); ++t) order[t] = static_cast<int>(t);
  const auto place = [&](int t) { return std::pair(x.query_blocks.block_of(t), t); };
  std::sort(order.begin(), order.end(), [&](int r, int t) { return place(r) < place(t); });
  for (const int t : order) {
    const int i = x.query_blocks.block_of(t);
    if (i != mixed_block) {
      mixed_block = i;
      z.fill(0);
      z_plus.fill(0);
      for (std::size_t d = 0; d < D; ++d) {
        mixed[d].fill(0);
        off[d].fill(e_n * eta);
        for (int b = 0; b < blocks; ++b) {
          const double m = x.m(i, b), weight = std::abs(m);
          const double share = e_n * weight + (1 + e_n) * (u * u * weight + u * eta);
          const auto row = static_cast<std::size_t>(b);
          z[d] += m * sums.z[row][d];
          z_plus[d] += weight * sums.z_plus[row][d];
          for (std::size_t e = 0; e < D; ++e) {
            mixed[d][e] += m * sums.s[row * D + d][e];
            off[d][e] += share * sums.s_plus[row * D + d][e];
          }
        }
      }
    }
    std::array<double, D> n{}, dn{};
    double den = 0, dz = 0;
    for (std::size_t d = 0; d < D; ++d) {
      const double q = phi(x.params.query_map, x.q.value(batch, t, head, static_cast<int>(d)));
      den += q * z[d];
      dz += e_d * (std::abs(q) + eta) * z_plus[d];
      for (std::size_t e = 0; e < D; ++e) {
        n[e] += q * mixed[d][e];
        dn[e] += (std::abs(q) + eta) * off[d][e];
      }
    }
    const bool divided = norm.denominator == Denominator::kKeySum;
    const double divisor = divided ? scale * den + static_cast<double>(norm.eps) : 1;
    for (std::size_t e = 0; e < D; ++e) {
      const double o = scale * n[e] / divisor;
      const double room = std::abs(divisor) - (divided ? scale * dz : 0);
      if (!(room > 0)) return std::numeric_limits<double>::infinity();
      const double before = scale * (dn[e] + (divided ? std::abs(o) * dz : 0)) / room;
      const double bound = before + u * (std::abs(o) + before + eta);
      const double error = std::abs(x.o.value(batch, t, head, static_cast<int>(e)) - o);
      if (!(error <= bound)) {
        ADD_FAILURE() << "o(" << batch << "," << t << "," << head << "," << e << ") is off by "
                      << error << ", may be by " << bound << ", is " << o;
        return std::numeric_limits<double>::infinity();
      }
      worst = std::max(worst, error / bound);
    }
  }
  return worst;
}

template <class Kernel, class T, int D>
emulator::Report launch(Problem<T, D>& x, unsigned seed) {
  using emulator::Access;
  emulator::Device device(seed);
  device.track("q", x.q.raw(), x.q.bytes(), Access::kRead);
  device.track("k", x.k.raw(), x.k.bytes(), Access::kRead);
  device.track("v", x.v.raw(), x.v.bytes(), Access::kRead);
  device.track("o", x.o.raw(), x.o.bytes(), Access::kWrite);
  device.track("mixing", x.mixing.data(), x.mixing.bytes(), Access::kRead);
  const Grid grid = Kernel::grid(x.params, x.q.batches() * x.q.heads());
  return device.launch<Kernel>({grid.x, grid.y, grid.z}, x.params);
}

/// Runs a case under a schedule and checks everything a run must fulfil.
template <class T, int D, int kRegions, Arch kFor = Arch::kSm80>
void check(const Case& c) {
  SCOPED_TRACE(std::string(cuda_test::Format<T>::kName) + " D " + std::to_string(D) + " regions " +
               std::to_string(kRegions) + " seed " + std::to_string(c.seed));
  Problem<T, D> x(c);
  ASSERT_LE(std::max(x.query_blocks.blocks(), x.key_blocks.blocks()), kRegions);
  const auto report = launch<FusedSm80<T, D, D, kRegions, kFor>>(x, c.seed);
  EXPECT_EQ(report.bytes_read("q"), x.q.row_bytes());
  EXPECT_EQ(report.bytes_read("k"), x.k.row_bytes());
  EXPECT_EQ(report.bytes_read("v"), x.v.row_bytes());
  EXPECT_EQ(report.bytes_written("o"), x.o.row_bytes());
  EXPECT_EQ(report.bank_conflicts, 0u);
  EXPECT_TRUE(x.o.padding_is_untouched());
  double worst = 0;
  for (int b = 0; b < c.batch; ++b) {
    for (int h = 0; h < c.heads; ++h) worst = std::max(worst, compare(x, b, h));
  }
  EXPECT_GT(worst, 0);
  testing::Test::RecordProperty("worst_of_bound", std::to_string(worst));
}

Case with(Case c, FeatureMap map, Denominator denominator, unsigned seed, int batch = 1,
          int heads = 1, int layout = 0) {
  c.map = map;
  c.denominator = denominator;
  c.seed = seed;
  c.batch = batch;
  c.heads = heads;
  c.layout = layout;
  return c;
}

constexpr auto kNone = Denominator::kNone;
constexpr auto kKeySum = Denominator::kKeySum;
const FeatureMap kRelu = FeatureMap::relu(), kElu = FeatureMap::elu_plus_one(),
                 kIdentity = FeatureMap::identity();

TEST(FusedSm80, FourBlocksOfAnyLengthAreMixedAndReadOut) {
  check<bfloat16, 64, 4>(with(Case::run(256, 64), kRelu, kKeySum, 1));
  check<half, 64, 4>(with(Case::run(4, 1), kElu, kKeySum, 2, 2, 2, 1));
  check<bfloat16, 64, 4>(with(Case::run(100, 49), kElu, kKeySum, 3, 1, 2, 2));
  check<half, 64, 4>(with(Case::run(421, 210), kRelu, kKeySum, 0));
  check<bfloat16, 64, 4>(with(Case::run(37, 37), kIdentity, kNone, 4, 2, 1, 2));
  check<half, 64, 4>(with(Case::run(61, 16), kIdentity, kNone, 5));
  check<bfloat16, 64, 4>(with(Case::run(1100, 1024), kRelu, kNone, 6));
}

TEST(FusedSm80, BoxesOfAGridMayReachBeyondIt) {
  check<bfloat16, 64, 16>(with(Case::of({1, 27, 26}, {1, 7, 7}), kElu, kKeySum, 1));
  check<bfloat16, 64, 16>(with(Case::of({3, 5, 7}, {2, 3, 4}), kRelu, kKeySum, 2, 1, 2, 1));
  check<half, 72, 8>(with(Case::of({3, 5, 7}, {2, 3, 4}), kElu, kKeySum, 3, 1, 1, 2));
}

TEST(FusedSm80, SixteenBlocksFillTheRegions) {
  check<bfloat16, 64, 16>(with(Case::run(16 * 16, 16), kRelu, kKeySum, 1));
  check<half, 64, 16>(with(Case::run(16 * 33 - 5, 33), kIdentity, kNone, 2));
  check<bfloat16, 64, 16, Arch::kSm90a>(with(Case::run(16 * 33, 33), kElu, kKeySum, 3));
}

TEST(FusedSm80, SeventyTwoColumnsAreSharedByTenWarps) {
  check<bfloat16, 72, 12>(with(Case::run(12 * 33 - 2, 33), kElu, kKeySum, 1));
  check<half, 72, 12>(with(Case::run(9 * 90, 90), kIdentity, kNone, 2, 1, 1, 1));
  check<bfloat16, 72, 16, Arch::kSm90a>(with(Case::run(16 * 20, 20), kRelu, kKeySum, 3));
}

TEST(FusedSm80, WideSummariesFillWhatFits) {
  check<bfloat16, 128, 4>(with(Case::run(4 * 70 - 9, 70), kElu, kKeySum, 1, 1, 2, 2));
  check<half, 128, 4>(with(Case::run(3 * 17, 17), kIdentity, kNone, 2, 2));
  check<half, 128, 5, Arch::kSm90a>(with(Case::run(5 * 40, 40), kRelu, kKeySum, 3));
}

TEST(FusedSm80, MoreThanSixteenBlocksAreMixedInTwoSteps) {
  check<bfloat16, 64, 24, Arch::kSm90a>(with(Case::run(24 * 9, 9), kElu, kKeySum, 1));
  check<half, 64, 24, Arch::kSm90a>(with(Case::run(17 * 12, 12), kIdentity, kNone, 2));
}

TEST(FusedSm80, QueriesAndKeysMayDifferInNumber) {
  Case c{{1, 1, 150}, {1, 1, 50}, {1, 1, 35}, {1, 1, 3}, kRelu, kKeySum, 1, 1, 0, 1};
  check<bfloat16, 64, 16>(c);
  std::swap(c.queries, c.keys);
  std::swap(c.query_block, c.key_block);
  check<bfloat16, 64, 16>(c);
}

TEST(FusedSm80, SchedulesChangeNoBit) {
  const Case c = with(Case::run(150, 40), kElu, kKeySum, 1);
  Problem<half, 64> first(c);
  launch<FusedSm80<half, 64, 64, 4>>(first, 0);
  for (unsigned seed = 1; seed < 5; ++seed) {
    Problem<half, 64> again(c);
    launch<FusedSm80<half, 64, 64, 4>>(again, seed);
    first.o.each([&](int b, int t, int h, int d) {
      ASSERT_EQ(first.o.at(b, t, h, d).bits, again.o.at(b, t, h, d).bits) << seed;
    });
  }
}

TEST(FusedSm80, TheMixingMatrixKeepsMoreDigitsThanTheTensors) {
  Problem<bfloat16, 64> x(with(Case::run(32, 16), kIdentity, kNone, 1));
  x.k.fill([] { return 1; });
  x.q.fill([] { return 1; });
  x.v.each([&](int b, int t, int h, int d) {  // S_1 = -S_0: only the difference of the m is left
    x.v.at(b, t, h, d) = cuda_test::from_double<bfloat16>(t < 16 ? 1 : -1);
  });
  for (int i = 0; i < 2; ++i) {
    x.mixing[i * x.stride] = 1 + 0x1p-12f;
    x.mixing[i * x.stride + 1] = 1;
  }
  launch<FusedSm80<bfloat16, 64, 64, 4>>(x, 1);
  const double expected = 0.75 * 64 * 16 * 0x1p-12;
  x.o.each([&](int b, int t, int h, int d) { ASSERT_EQ(x.o.value(b, t, h, d), expected); });
}

TEST(FusedSm80, AQueryThatIsNanSpoilsNoOther) {
  Case c = with(Case::run(96, 24), kIdentity, kNone, 1);
  Problem<bfloat16, 64> x(c);
  Problem<bfloat16, 64> y(c);
  for (int d = 0; d < 64; ++d) y.q.at(0, 30, 0, d) = {0x7FFF};  // a query that is NaN
  launch<FusedSm80<bfloat16, 64, 64, 4>>(x, 1);
  launch<FusedSm80<bfloat16, 64, 64, 4>>(y, 1);
  x.o.each([&](int b, int t, int h, int d) {
    if (t == 30) {
      ASSERT_TRUE(std::isnan(y.o.value(b, t, h, d)));
    } else {
      ASSERT_EQ(x.o.at(b, t, h, d).bits, y.o.at(b, t, h, d).bits);
    }
  });
}

}  // namespace
