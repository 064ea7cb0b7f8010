#include "mhla/stage/amx/tiles.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <typeinfo>

#include "mhla/stage/amx/product.hpp"
#include "support/amx_case.hpp"

namespace mhla::test {
namespace {

using namespace detail;  // NOLINT(google-build-using-namespace)

class Tiles : public AmxTest {};

Bf16x2 pair_of(float first, float second) { return high_bits(first) | high_bits(second) << 16; }

/// One step of one element. A has the pairs (x[p], y[p]), B the pairs (u[p], v[p]).
struct Step {
  alignas(64) Bf16x2 a[kTileRows][kTileColumns] = {};
  alignas(64) Bf16x2 b[kTileRows][kTileColumns] = {};
  alignas(64) float c[kTileRows][kTileColumns] = {};

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

TEST_F(Tiles, FirstAndSecondNumbersAreTwoChainsThatAreAddedToTheSum) {
  Step s;
  s.set(3, 2, 3, 5, 7);
  EXPECT_EQ(s(100), 100 + 2 * 5 + 3 * 7);
  s = {};
  s.set(0, 0x1p24f, 1, 1, 1);  // 1 would be lost next to 2^24, and is kept in a separate chain
  s.set(1, -0x1p24f, 0, 1, 1);
  EXPECT_EQ(s(0), 1);
  s.set(0, 0x1p24f, 0, 1, 0);
  s.set(1, 1, 0, 1, 0);
  s.set(2, 1, 0, 1, 0);  // two ties that round down
  EXPECT_EQ(s(0), 0x1p24f);
  s = {};
  s.set(0, 1, -1, 1, 1);  // the chains cancel before they are added to the sum
  EXPECT_EQ(s(0x1p-30f), 0x1p-30f);
  s = {};  // fused: (1 + 2^-7)^2 - (1 + 2^-6) = 2^-14 exactly
  s.set(0, -(1 + 0x1p-6f), 0, 1, 0);
  s.set(1, 1 + 0x1p-7f, 0, 1 + 0x1p-7f, 0);
  EXPECT_EQ(s(0), 0x1p-14f);
}

TEST_F(Tiles, SubnormalNumbersAreZero) {
  Step s;
  s.set(0, 0x1p-127f, 0, 0x1p20f, 0);
  EXPECT_EQ(s(0), 0) << "an operand";
  s.set(0, 0x1p-64f, 0, 0x1p-63f, 0);
  EXPECT_EQ(s(0), 0) << "a product";
  s.set(0, 0x1p-63f, 0, 0x1p-63f, 0);
  EXPECT_EQ(s(0), 0x1p-126f);
  s.set(0, 0, 0, 0, 0);
  EXPECT_EQ(s(0x1p-127f), 0) << "the sum";
}

TEST_F(Tiles, EveryRowAndColumnIsItsOwn) {
  Random rng(1);
  Step s;
  for (auto* const tile : {&s.a, &s.b}) {
    for (auto& row : *tile) {
      for (Bf16x2& x : row) x = pair_of(float(rng.integer(-9, 9)), float(rng.integer(-9, 9)));
    }
  }
  s(0);
  for (Index r = 0; r < kTileRows; ++r) {
    for (Index c = 0; c < kTileColumns; ++c) {
      float expected = 0;
      for (Index p = 0; p < kTileColumns; ++p) {
        expected += number_of(s.a[r][p] & 0xFFFFu) * number_of(s.b[p][c] & 0xFFFFu) +
                    number_of(s.a[r][p] >> 16) * number_of(s.b[p][c] >> 16);
      }
      EXPECT_EQ(s.c[r][c], expected) << r << " " << c;
    }
  }
}

/// A split operand: rows of A, or columns of B, by k.
struct Operand {
  Index steps;
  std::vector<Bf16x2> pairs;
  bool low;

  /// \param x  [sides * 16, depth]
  Operand(const Matrix<float>& x, bool by_columns, bool low_)
      : steps((x.cols() + 31) / 32), low(low_) {
    pairs.resize(static_cast<std::size_t>(x.rows() / 16 * steps * kTilePairSize));
    for (Index r = 0; r < x.rows(); ++r) {
      for (Index k = 0; k < steps; ++k) {
        Bf16x2 packed[kTilePairSize];
        Bf16x2* const tile = pairs.data() + (r / 16 * steps + k) * kTilePairSize;
        pack_row(&x(r, 0) + k * 32, std::min<Index>(32, x.cols() - k * 32),
                 by_columns ? packed : tile, by_columns ? 0 : r % 16);
        for (Index p = 0; p < kTileColumns && by_columns; ++p) {
          tile[p * kTileColumns + r % 16] = packed[p];
          tile[kTileSize + p * kTileColumns + r % 16] = packed[kTileSize + p];
        }
      }
    }
  }
  TileOperand tiles() const { return {pairs.data(), steps * kTilePairSize, kTilePairSize, low}; }
};

/// C (+)= A B, given the rows of A and the columns of B.
void multiply(Start start, const Matrix<float>& a, bool a_low, const Matrix<float>& b, bool b_low,
              Rows<float> c) {
  const Operand left(a, false, a_low), right(b, true, b_low);
  const TileScope tiles;
  multiply_tiles(start, c.data, c.stride, left.tiles(), right.tiles(), a.rows() / 16, b.rows() / 16,
                 left.steps);
}

TEST_F(Tiles, ProductsAreThoseOfTheNumbersWithinTheBound) {
  for_cases(40, [](Random& rng) {
    const Index rows = rng.integer(1, 5), cols = 2 * rng.integer(1, 3), depth = rng.integer(1, 100);
    const bool a_low = rng.chance(0.7), b_low = rng.chance(0.7);
    const auto numbers = [&](Index count, bool low) -> Matrix<float> {
      const Matrix<float> x = rng.matrix<float>(count * 16, depth);
      return low ? x : x.cast<Eigen::bfloat16>().cast<float>().eval();
    };
    const Matrix<float> a = numbers(rows, a_low), b = numbers(cols, b_low);
    const Target<float> c(rng, rows * 16, cols * 16);
    multiply(c.start, a, a_low, b, b_low, c.rows);
    c.expect(Exact(a) * Exact(b).transpose(),
             {unit_roundings(depth), kSplit * (a_low + b_low + (a_low && b_low ? 2 : 0))});
  });
}

TEST_F(Tiles, BitsDependNeitherOnNeighboursNorOnPadding) {
  Random rng(4);
  const Matrix<float> a = rng.matrix<float>(48, 50), b = rng.matrix<float>(32, 50);
  Matrix<float> wide = Matrix<float>::Zero(48, 200), b_wide = Matrix<float>::Zero(32, 200);
  wide.middleCols(64, 50) = a;  // two steps of zeros before, three after
  b_wide.middleCols(64, 50) = b;
  const Guarded<float> c(48, 32), d(48, 32), last(16, 32);
  multiply(Start::kZero, a, true, b, true, c);
  multiply(Start::kZero, wide, true, b_wide, true, d);
  multiply(Start::kZero, a.bottomRows(16), true, b, true, last);
  EXPECT_TRUE(same_bits(c.numbers(), d.numbers()));
  EXPECT_TRUE(same_bits<float>(c.numbers().bottomRows(16), last.numbers()));
}

TEST_F(Tiles, EveryThreadHasItsOwn) {
  Step s;
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

TEST_F(Tiles, AreUsedInsideAScopeOnly) {
  if constexpr (!kEmulated) GTEST_SKIP() << "the processor checks that";
  EXPECT_DEATH(zero_tile<0>(), "");
  { const TileScope tiles; }
  EXPECT_DEATH(zero_tile<0>(), "");
}

TEST_F(Tiles, TheNameOfTheTargetTellsWhatMultiplies) {
  const std::string name = typeid(TileOperand).name();
  EXPECT_EQ(name.find("_emulated_unit") != std::string::npos, kEmulated);
  EXPECT_EQ(name.find("_amx") != std::string::npos, kAmx);
}

}  // namespace
}  // namespace mhla::test
