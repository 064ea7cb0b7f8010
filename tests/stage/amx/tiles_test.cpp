#include "mhla/stage/amx/tiles.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>
#include <typeinfo>
#include <vector>

#include "support/any_map.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using namespace detail;  // NOLINT(google-build-using-namespace)

/// Skips on a processor with the unit whose system refuses it.
class MatrixUnitTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!tiles_granted()) GTEST_SKIP() << "the system does not grant the tiles";
  }
};

Pair pair_of(float first, float second) { return high_bits(first) | high_bits(second) << 16; }

/// One element of one step: A has the pairs (x[p], y[p]), B the pairs (u[p], v[p]).
struct Step {
  alignas(64) Pair a[kUnitRows][kPairs] = {};
  alignas(64) Pair b[kUnitRows][kPairs] = {};
  alignas(64) float c[kUnitRows][kPairs] = {};

  float operator()(float sum) {
    c[5][7] = sum;
    const TileScope tiles;
    load_tile<1>(c, 64);
    load_tile<4>(a, 64);
    load_tile<6>(b, 64);
    add_product<1, 4, 6>();
    store_tile<1>(c, 64);
    return c[5][7];
  }
  void set(Index p, float x, float y, float u, float v) {
    a[5][p] = pair_of(x, y);
    b[p][7] = pair_of(u, v);
  }
};

TEST_F(MatrixUnitTest, NumbersOfAPairMeetThoseOfTheOtherPair) {
  Step s;
  s.set(3, 2, 3, 5, 7);
  EXPECT_EQ(s(100), 100 + 2 * 5 + 3 * 7);
}

TEST_F(MatrixUnitTest, FirstAndSecondNumbersAreTwoChainsThatAreAddedToTheSum) {
  Step s;
  s.set(0, 0x1p24f, 1, 1, 1);  // 1 would be lost beside 2^24, and is kept in its own chain
  s.set(1, -0x1p24f, 0, 1, 1);
  EXPECT_EQ(s(0), 1);
  s.set(0, 0x1p24f, 0, 1, 0);
  s.set(1, 1, 0, 1, 0);
  s.set(2, 1, 0, 1, 0);  // two times a tie that rounds down
  EXPECT_EQ(s(0), 0x1p24f);
  Step t;
  t.set(0, 1, -1, 1, 1);  // the chains cancel before they meet the sum
  EXPECT_EQ(t(0x1p-30f), 0x1p-30f);
  Step fused;  // (1 + 2^-7)^2 - (1 + 2^-6) = 2^-14, whatever is rounded
  fused.set(0, -(1 + 0x1p-6f), 0, 1, 0);
  fused.set(1, 1 + 0x1p-7f, 0, 1 + 0x1p-7f, 0);
  EXPECT_EQ(fused(0), 0x1p-14f);
}

TEST_F(MatrixUnitTest, SubnormalNumbersAreZero) {
  Step s;
  s.set(0, 0x1p-127f, 0, 0x1p20f, 0);
  EXPECT_EQ(s(0), 0);  // an operand
  s.set(0, 0x1p-64f, 0, 0x1p-63f, 0);
  EXPECT_EQ(s(0), 0);  // a product
  s.set(0, 0x1p-63f, 0, 0x1p-63f, 0);
  EXPECT_EQ(s(0), 0x1p-126f);
  s.set(0, 0, 0, 0, 0);
  EXPECT_EQ(s(0x1p-127f), 0);  // the sum
}

TEST_F(MatrixUnitTest, EveryRowAndColumnIsItsOwn) {
  test::Random rng(1);
  Step s;
  for (auto& row : s.a) {
    for (Pair& x : row) x = pair_of(float(rng.integer(-9, 9)), float(rng.integer(-9, 9)));
  }
  for (auto& row : s.b) {
    for (Pair& x : row) x = pair_of(float(rng.integer(-9, 9)), float(rng.integer(-9, 9)));
  }
  s(0);
  for (Index r = 0; r < kUnitRows; ++r) {
    for (Index c = 0; c < kPairs; ++c) {
      float expected = 0;
      for (Index p = 0; p < kPairs; ++p) {
        expected += number_of(s.a[r][p] & 0xFFFFu) * number_of(s.b[p][c] & 0xFFFFu) +
                    number_of(s.a[r][p] >> 16) * number_of(s.b[p][c] >> 16);
      }
      EXPECT_EQ(s.c[r][c], expected) << r << " " << c;
    }
  }
}

/// A split operand: rows of A, or columns of B, by k.
struct Operand {
  Index sides, steps;
  std::vector<Pair> pairs;
  bool low;

  /// \param x  [sides * 16, depth]
  Operand(const Matrix<float>& x, bool by_columns, bool low_)
      : sides(x.rows() / 16), steps((x.cols() + 31) / 32), low(low_) {
    pairs.resize(static_cast<std::size_t>(sides * steps * kSplitPairs));
    for (Index r = 0; r < x.rows(); ++r) {
      for (Index k = 0; k < steps; ++k) {
        Pair packed[kSplitPairs];
        Pair* const tile = pairs.data() + (r / 16 * steps + k) * kSplitPairs;
        pack_row(&x(r, 0) + k * 32, std::min<Index>(32, x.cols() - k * 32),
                 by_columns ? packed : tile, by_columns ? 0 : r % 16);
        for (Index p = 0; p < kPairs && by_columns; ++p) {
          tile[p * kPairs + r % 16] = packed[p];
          tile[kTilePairs + p * kPairs + r % 16] = packed[kTilePairs + p];
        }
      }
    }
  }
  TileOperand tiles() const { return {pairs.data(), steps * kSplitPairs, kSplitPairs, low}; }
};

TEST_F(MatrixUnitTest, ProductsAreThoseOfTheNumbersWithinTheBound) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    test::Random rng(seed);
    const Index rows = rng.integer(1, 5), cols = 2 * rng.integer(1, 3), depth = rng.integer(1, 100);
    const bool a_low = rng.chance(0.7), b_low = rng.chance(0.7), add = rng.chance(0.5);
    const auto numbers = [&](Index count, bool low) -> Matrix<float> {
      const Matrix<float> x = rng.matrix<float>(count * 16, depth);
      return low ? x : x.cast<Eigen::bfloat16>().cast<float>().eval();
    };
    const Matrix<float> a = numbers(rows, a_low), b = numbers(cols, b_low);
    const Index stride = cols * 16 + 16;
    Matrix<float> c = rng.matrix<float>(rows * 16, stride);
    const Matrix<float> before = c;
    const Operand left(a, false, a_low), right(b, true, b_low);
    {
      const TileScope tiles;
      multiply_tiles(add ? Start::kTarget : Start::kZero, c.data(), stride, left.tiles(),
                     right.tiles(), rows, cols, left.steps);
    }
    const double splits =
        (a_low ? 0x1p-17 : 0) + (b_low ? 0x1p-17 : 0) + (a_low && b_low ? 0x1p-16 : 0);
    const Index roundings = 18 + 3 * left.steps;
    for (Index i = 0; i < c.rows(); ++i) {
      for (Index j = 0; j < stride; ++j) {
        if (j >= cols * 16) {
          ASSERT_EQ(c(i, j), before(i, j)) << "written outside";
          continue;
        }
        double sum = add ? before(i, j) : 0, size = std::abs(sum);
        for (Index k = 0; k < depth; ++k) {
          sum += double(a(i, k)) * b(j, k);
          size += std::abs(double(a(i, k)) * b(j, k));
        }
        const double bound =
            (test::gamma<double>(roundings, 0x1p-24) * (1 + 0x1p-6) + splits * (1 + 0x1p-7)) * size;
        ASSERT_LE(std::abs(c(i, j) - sum), bound) << "seed " << seed;
      }
    }
  }
}

TEST_F(MatrixUnitTest, BitsDependNeitherOnNeighboursNorOnPadding) {
  test::Random rng(4);
  const Matrix<float> a = rng.matrix<float>(48, 50), b = rng.matrix<float>(32, 50);
  Matrix<float> wide = Matrix<float>::Zero(48, 200), b_wide = Matrix<float>::Zero(32, 200);
  wide.middleCols(64, 50) = a;  // two steps of zeros before, one behind
  b_wide.middleCols(64, 50) = b;
  Matrix<float> c(48, 32), d(48, 32), last(16, 32);
  const auto product = [](const Matrix<float>& x, const Matrix<float>& y, Matrix<float>& z) {
    const Operand left(x, false, true), right(y, true, true);
    const TileScope tiles;
    multiply_tiles(Start::kZero, z.data(), 32, left.tiles(), right.tiles(), x.rows() / 16, 2,
                   left.steps);
  };
  product(a, b, c);
  product(wide, b_wide, d);
  product(a.bottomRows(16), b, last);
  EXPECT_TRUE(c == d);
  EXPECT_TRUE(c.bottomRows(16) == last);
}

TEST_F(MatrixUnitTest, EveryThreadHasItsOwnTiles) {
  Step s;
  s.set(0, 2, 0, 3, 0);
  const TileScope outer;
  zero_tile<1>();
  std::thread([] {
    Step other;
    other.set(0, 5, 0, 5, 0);
    EXPECT_EQ(other(0), 25);
  }).join();
  store_tile<1>(s.c, 64);
  EXPECT_EQ(s.c[5][7], 0);
}

TEST(MatrixUnit, TilesAreUsedInsideAScopeOnly) {
  if constexpr (kAmx) GTEST_SKIP() << "the processor checks that";
  EXPECT_DEATH(zero_tile<0>(), "");
  { const TileScope tiles; }
  EXPECT_DEATH(zero_tile<0>(), "");
}

TEST(MatrixUnit, TheNameOfTheTargetTellsWhatMultiplies) {
  const std::string name = typeid(TileOperand).name();
  EXPECT_EQ(name.find("_emulated_unit") != std::string::npos,
            kMatrixUnitKind == MatrixUnit::kEmulated);
  EXPECT_EQ(name.find("_amx") != std::string::npos, kMatrixUnitKind == MatrixUnit::kAmx);
  EXPECT_EQ(kMatrixUnit, kMatrixUnitKind != MatrixUnit::kNone);
}

}  // namespace
}  // namespace mhla
