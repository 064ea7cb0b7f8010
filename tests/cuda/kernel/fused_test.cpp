// The whole operator of a pair in one block, and with it rows of summaries: outputs against the
// definition in double, what it moves, what it must not touch.
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
//
// Outputs then: output_bound.hpp.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "mhla/cuda/kernel/fused_sm80.cuh"
#include "mhla/cuda/kernel/fused_sm80_config.cuh"
#include "mhla/cuda/kernel/fused_sm90.cuh"
#include "mhla/cuda/kernel/fused_sm90_config.cuh"
#include "mhla/cuda/kernel/summary_rows.cuh"
#include "support/cuda/direct_problem.hpp"
#include "support/cuda/exact_phi.hpp"
#include "support/cuda/output_bound.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

/// Sums over blocks of keys, of one pair.
template <class T, int D>
struct BlockSums {
  using Sums = std::vector<std::array<double, D>>;
  Sums s, s_plus, z, z_plus;  ///< [M D][D], and [M][D] of z

  BlockSums(const DirectProblem<T, D, D>& x, int batch, int head) {
    const double eta = std::ldexp(1.0, Format<T>::kLowest);
    const auto blocks = static_cast<std::size_t>(x.c.key_blocks.blocks());
    s.resize(blocks * D);
    z.resize(blocks);
    z_plus = z;
    s_plus.resize(blocks * D);
    for (auto& row : s_plus) row.fill(eta);
    for (int t = 0; t < x.k.tokens(); ++t) {
      const auto b = static_cast<std::size_t>(x.c.key_blocks.block_of(t));
      for (std::size_t d = 0; d < D; ++d) {
        const double key =
            exact_phi<T>(x.c.key_map, x.k.value(batch, t, head, static_cast<int>(d)));
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

/// Compares the outputs of a pair.
template <class T, int D>
void compare_fused(Comparison& comparison, const DirectProblem<T, D, D>& x, int batch, int head) {
  const BlockSums<T, D> sums(x, batch, head);
  const double u = kRoundoff<T>, eta = std::ldexp(1.0, Format<T>::kLowest);
  const int blocks = x.c.key_blocks.blocks();
  const double chain = (1 + gamma(x.c.key_blocks.slots() + 3.0 * blocks + 2 * D + 12)) *
                       (1 + 0x1p-20) * (1 + 0x1p-20);
  const double e_n = std::pow(1 + u, 4) * chain - 1, e_d = std::pow(1 + u, 2) * chain - 1;
  std::vector<std::array<double, D>> mixed(D), off(D);
  int mixed_block = -1;
  std::array<double, D> z{}, z_plus{};
  std::vector<int> order(static_cast<std::size_t>(x.q.tokens()));
  for (std::size_t t = 0; t < order.size(); ++t) order[t] = static_cast<int>(t);
  const auto place = [&](int t) { return std::pair(x.c.blocks.block_of(t), t); };
  std::sort(order.begin(), order.end(), [&](int r, int t) { return place(r) < place(t); });
  for (const int t : order) {
    const int i = x.c.blocks.block_of(t);
    if (i != mixed_block) {
      mixed_block = i;
      z.fill(0);
      z_plus.fill(0);
      for (std::size_t d = 0; d < D; ++d) {
        mixed[d].fill(0);
        off[d].fill(e_n * eta);
        for (int b = 0; b < blocks; ++b) {
          const double m = x.mixing.value(i, b), weight = std::abs(m);
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
      const double q = exact_phi<T>(x.c.query_map, x.q.value(batch, t, head, static_cast<int>(d)));
      den += q * z[d];
      dz += e_d * (std::abs(q) + eta) * z_plus[d];
      for (std::size_t e = 0; e < D; ++e) {
        n[e] += q * mixed[d][e];
        dn[e] += (std::abs(q) + eta) * off[d][e];
      }
    }
    for (std::size_t e = 0; e < D; ++e) {
      const int column = static_cast<int>(e);
      comparison.compare(x.o.value(batch, t, head, column),
                         output<T>({n[e], dn[e]}, {den, dz}, x.c.normalization()), batch, t, head,
                         column);
    }
  }
}

struct FusedOfSm80 {
  static constexpr Arch kArch = Arch::kSm80;
  template <class T, int D, int kRegions>
  using Kernel = FusedSm80<T, D, D, kRegions>;
};
struct FusedOfSm90 {
  static constexpr Arch kArch = Arch::kSm90a;
  template <class T, int D, int kRegions>
  using Kernel = FusedSm90<T, D, D, kRegions>;
};

template <class Kernels, class T, int D, int kRegions>
struct FusedRun : DirectProblem<T, D, D> {
  using Base = DirectProblem<T, D, D>;
  using Base::Base;
  using Base::c, Base::q, Base::k, Base::v, Base::o, Base::report;

  static std::string name() { return Base::name() + ", " + std::to_string(kRegions) + " regions"; }

  bool launch(std::uint64_t schedule) {
    EXPECT_LE(std::max(c.blocks.blocks(), c.key_blocks.blocks()), kRegions);
    return this->template launch_as<typename Kernels::template Kernel<T, D, kRegions>>(schedule);
  }

  void check() const { expect_right_outputs(*this); }
  void check(Comparison& comparison, int b, int h) const {
    compare_fused<T, D>(comparison, *this, b, h);
  }
};

Case fused_case(const TokenBlocks& blocks, FeatureMap map, Denominator denominator,
                std::uint64_t seed, int batch = 1, int heads = 1, int layout = 0) {
  return {.blocks = blocks,
          .query_map = map,
          .key_map = map,
          .denominator = denominator,
          .batch = batch,
          .heads = heads,
          .layout = layout,
          .seed = seed};
}

template <class Kernels>
class Fused : public testing::Test {
 protected:
  template <class T, int D, int kRegions>
  static void expect_right(const Case& c) {
    cuda_test::expect_right<FusedRun<Kernels, T, D, kRegions>>(c);
  }
  static constexpr int kNarrow = Kernels::kArch == Arch::kSm80 ? 12 : 16;  ///< regions of 72 x 72
};
using FusedKernels = testing::Types<FusedOfSm80, FusedOfSm90>;
TYPED_TEST_SUITE(Fused, FusedKernels);

TYPED_TEST(Fused, FourBlocksOfAnyLengthAreMixedAndReadOut) {
  const auto of = fused_case;
  this->template expect_right<bfloat16, 64, 4>(of(sequence(256, 64), kRelu, kKeySum, 1, 1, 1, 0));
  this->template expect_right<half, 64, 4>(of(sequence(4, 1), kElu, kKeySum, 2, 2, 2, 1));
  this->template expect_right<bfloat16, 64, 4>(of(sequence(100, 49), kElu, kKeySum, 3, 1, 2, 2));
  this->template expect_right<half, 64, 4>(of(sequence(421, 210), kRelu, kKeySum, 0, 1, 1, 0));
  this->template expect_right<bfloat16, 64, 4>(of(sequence(37, 37), kIdentity, kNone, 4, 2, 1, 2));
  this->template expect_right<half, 64, 4>(of(sequence(61, 16), kIdentity, kNone, 5, 1, 1, 0));
  this->template expect_right<bfloat16, 64, 4>(of(sequence(1100, 1024), kRelu, kNone, 6, 1, 1, 0));
}

TYPED_TEST(Fused, BoxesOfAGridMayReachBeyondIt) {
  const auto of = fused_case;
  this->template expect_right<bfloat16, 64, 16>(
      of({1, 27, 26, 1, 7, 7}, kElu, kKeySum, 1, 1, 1, 0));
  this->template expect_right<bfloat16, 64, 16>(of({3, 5, 7, 2, 3, 4}, kRelu, kKeySum, 2, 1, 2, 1));
  this->template expect_right<half, 72, 8>(of({3, 5, 7, 2, 3, 4}, kElu, kKeySum, 3, 2, 2, 2));
}

TYPED_TEST(Fused, SixteenBlocksFillTheRegions) {
  const auto of = fused_case;
  this->template expect_right<bfloat16, 64, 16>(of(sequence(256, 16), kRelu, kKeySum, 1, 1, 1, 0));
  this->template expect_right<half, 64, 16>(of(sequence(523, 33), kIdentity, kNone, 2, 1, 1, 0));
}

TYPED_TEST(Fused, SeventyTwoColumnsAreSharedByTenWarps) {
  constexpr int kMost = TestFixture::kNarrow;
  const auto of = fused_case;
  this->template expect_right<bfloat16, 72, kMost>(
      of(sequence(kMost * 33 - 2, 33), kElu, kKeySum, 1, 1, 1, 0));
  this->template expect_right<half, 72, kMost>(
      of(sequence(9 * 90, 90), kIdentity, kNone, 2, 1, 1, 1));
}

TYPED_TEST(Fused, WideSummariesFillWhatFits) {
  const auto of = fused_case;
  this->template expect_right<bfloat16, 128, 4>(of(sequence(271, 70), kElu, kKeySum, 1, 1, 2, 2));
  this->template expect_right<half, 128, 4>(of(sequence(3 * 17, 17), kIdentity, kNone, 2, 2, 1, 0));
}

TYPED_TEST(Fused, QueriesAndKeysMayDifferInNumber) {
  Case c{.blocks = sequence(150, 50), .key_blocks = sequence(100, 16)};
  this->template expect_right<bfloat16, 64, 16>(c);
  std::swap(c.blocks, c.key_blocks);
  this->template expect_right<bfloat16, 64, 16>(c);
}

TYPED_TEST(Fused, SchedulesChangeNoBit) {
  expect_same_in_any_order<FusedRun<TypeParam, half, 64, 4>>(
      fused_case(sequence(150, 40), kElu, kKeySum, 1, 1, 3));
}

TYPED_TEST(Fused, TheMixingMatrixKeepsMoreDigitsThanTheTensors) {
  FusedRun<TypeParam, bfloat16, 64, 4> x(fused_case(sequence(32, 16), kIdentity, kNone, 1));
  x.k.fill([] { return 1; });
  x.q.fill([] { return 1; });
  x.v.each([&](int b, int t, int h, int d) {  // S_1 = -S_0: only the difference of the m is left
    x.v.at(b, t, h, d) = from_double<bfloat16>(t < 16 ? 1 : -1);
  });
  for (int i = 0; i < 2; ++i) {
    x.mixing.at(i, 0) = 1 + 0x1p-12f;
    x.mixing.at(i, 1) = 1;
  }
  ASSERT_TRUE(x.launch(1));
  const double expected = 0.75 * 64 * 16 * 0x1p-12;
  x.o.each([&](int b, int t, int h, int d) { ASSERT_EQ(x.o.value(b, t, h, d), expected); });
}

TYPED_TEST(Fused, AQueryThatIsNanSpoilsNoOther) {
  const Case c = fused_case(sequence(96, 24), kIdentity, kNone, 1);
  FusedRun<TypeParam, bfloat16, 64, 4> x(c), y(c);
  for (int d = 0; d < 64; ++d) y.q.at(0, 30, 0, d) = {0x7FFF};  // a query that is NaN
  ASSERT_TRUE(x.launch(1));
  ASSERT_TRUE(y.launch(1));
  x.o.each([&](int b, int t, int h, int d) {
    if (t == 30) {
      ASSERT_TRUE(std::isnan(y.o.value(b, t, h, d)));
    } else {
      ASSERT_EQ(x.o.at(b, t, h, d).bits, y.o.at(b, t, h, d).bits);
    }
  });
}

TEST(FusedSm90, WritesTheBitsOfTheOtherKernel) {
  const Case c = fused_case({1, 27, 25, 1, 7, 7}, kElu, kKeySum, 1, 2, 2);
  FusedRun<FusedOfSm90, bfloat16, 64, 16> x(c);
  FusedRun<FusedOfSm80, bfloat16, 64, 16> y(c);
  ASSERT_TRUE(x.launch(1));
  ASSERT_TRUE(y.launch(1));
  EXPECT_TRUE(x.wrote_as(y));
}

// A thread block has all heads: what is behind the rows of a box comes from heads before.
TEST(FusedSm90, AHeadThatIsNanSpoilsNoOther) {
  Case c = fused_case(sequence(3 * 25, 25), kRelu, kKeySum, 1, 1, 4);
  c.multiprocessors = 1;
  FusedRun<FusedOfSm90, half, 64, 4> x(c), y(c);
  for (auto* tensor : {&y.q, &y.k, &y.v}) {
    tensor->each([&](int b, int t, int h, int d) {
      if (h == 1) tensor->at(b, t, h, d) = {0x7FFF};
    });
  }
  ASSERT_TRUE(x.launch(1));
  ASSERT_TRUE(y.launch(1));
  x.o.each([&](int b, int t, int h, int d) {
    if (h == 1) {
      ASSERT_TRUE(std::isnan(y.o.value(b, t, h, d)));
    } else {
      ASSERT_EQ(x.o.at(b, t, h, d).bits, y.o.at(b, t, h, d).bits);
    }
  });
}

TEST(FusedSm90, MoreThanSixteenBlocksAreMixedInTwoSteps) {
  expect_right<FusedRun<FusedOfSm90, bfloat16, 64, 20>>(
      fused_case(sequence(20 * 9, 9), kElu, kKeySum, 1));
}

TEST(FusedSm90, RefusesWhatItsBoxesCannotExpress) {
  const auto can = [](const TokenBlocks& queries, const TokenBlocks& keys) {
    FusedRun<FusedOfSm90, bfloat16, 64, 4> run({.blocks = queries, .key_blocks = keys});
    return run.launch(0);
  };
  EXPECT_FALSE(can(sequence(134, 67), sequence(134, 67)));  // a prime above 64
  // Queries would lie where rows behind the keys must stay zero.
  EXPECT_FALSE(can(sequence(64, 33), sequence(64, 31)));
  EXPECT_TRUE(can(sequence(64, 31), sequence(64, 33)));
  EXPECT_TRUE(can(sequence(64, 33), sequence(64, 16)));
}

}  // namespace
}  // namespace cuda_test
