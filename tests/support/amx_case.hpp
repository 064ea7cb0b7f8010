#pragma once

/// \file
/// Shared parts of the tests of the matrix unit. The tests run if the library has a unit: compiled
/// for AMX, or with MHLA_EMULATE_MATRIX_UNIT.

#include <vector>

#include "mhla/stage/amx/unit.hpp"
#include "support/unit_case.hpp"

namespace mhla::test {

/// Skips if there is no unit, or the system refuses it.
class AmxTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!kMatrixUnit) GTEST_SKIP() << "no matrix unit";
    if (!detail::tiles_granted()) GTEST_SKIP() << "the system does not grant the tiles";
  }
};

constexpr bool kEmulated = kMatrixUnitKind == MatrixUnit::kEmulated;

/// Relative error that a split leaves.
inline constexpr long double kSplit = 0x1p-17L * (1 + 0x1p-7L);

/// Roundings of a product that sums `depth` numbers (stage/amx/tiles.hpp).
inline Index unit_roundings(Index depth) { return 18 + 3 * ((depth + 31) / 32); }

/// AMX as a unit for the cases of unit_case.hpp.
struct AmxCase {
  using A = float;
  using T = Eigen::bfloat16;
  using Stages = detail::UnitStages<detail::amx, float>;
  static constexpr bool kSkips = false;
  /// Feature maps may use tiles themselves.
  static void map() { const detail::TileScope scope; }
  static Index group(Index rows) { return detail::round_up(rows, detail::kTileRows); }
  /// Values are exact; each strip starts a step. The sums are kept as two parts.
  static Bound summary_bound(Index tokens) {
    return {unit_roundings(tokens + 32 * (tokens / 64 + 1)) + 1, 2 * kSplit};
  }
  static Bound mixing_bound(Index blocks) { return {unit_roundings(blocks) + 1, 5 * kSplit}; }
  static Bound read_out_bound(Index d) { return {unit_roundings(d) + 3, 4 * kSplit, 0x1p-8L}; }

  static void store(const Matrix<float>& x, const detail::AmxSummaries& s) {
    const detail::AmxSizes& n = s.sizes;
    for (Index pair = 0; pair < s.block_pairs(); ++pair) {
      const Index blocks[] = {s.first_block(pair), s.second_block(pair)};
      Matrix<float> padded[2];
      const float* sums[] = {nullptr, nullptr};
      for (int i = 0; i < 2; ++i) {
        if (blocks[i] >= s.blocks) continue;
        padded[i] = Matrix<float>::Zero(n.padded_features(), n.padded_values());
        padded[i].topLeftCorner(n.features, n.values) =
            Matrix<float>::Map(x.data() + blocks[i] * x.cols(), n.features, n.values);
        sums[i] = padded[i].data();
      }
      detail::store_summaries(sums[0], sums[1], pair, s);
    }
  }
  /// Copies the summaries, and expects zeros in all padding.
  static Matrix<float> stored(const detail::AmxSummaries& s) {
    Matrix<float> x(s.blocks, s.sizes.features * s.sizes.values);
    for (Index b = 0; b < s.steps() * detail::kStepDepth; ++b) {
      for_each_number(s.sizes, [&](Index d, Index e, Index tile) {
        const detail::Bf16x2* const high =
            s.tile(b / 32, tile, d % 32) + b % 16 * detail::kTileColumns + e % 16;
        put(s.sizes, number(high, b), b < s.blocks, d, e, x, b);
      });
    }
    return x;
  }
  static void store(const Matrix<float>& x, const detail::AmxMixtures& mixtures, Index g) {
    for_each_number(mixtures.sizes, [&](Index d, Index e, Index tile) {
      if (d % 32 >= 16 || e % 16 != 0) return;
      float rows[2][detail::kTileColumns] = {};
      for (Index i = 0; i < 2; ++i) {
        for (Index j = 0; j < detail::kTileColumns; ++j) {
          const bool inside = d + 16 * i < mixtures.sizes.features && e + j < mixtures.sizes.values;
          if (inside) rows[i][j] = x(d + 16 * i, e + j);
        }
      }
      detail::Bf16x2* const high =
          mixtures.block(g) + tile * detail::kTilePairSize + d % 16 * detail::kTileColumns;
      detail::split_row(rows[0], rows[1], high, high + detail::kTileSize);
    });
    mixtures.finite[g] = x.allFinite();
  }
  static Matrix<float> stored(const detail::AmxMixtures& mixtures, Index g) {
    const detail::AmxSizes& n = mixtures.sizes;
    Matrix<float> x(1, n.features * n.values);
    for_each_number(n, [&](Index d, Index e, Index tile) {
      const detail::Bf16x2* const high =
          mixtures.block(g) + tile * detail::kTilePairSize + d % 16 * detail::kTileColumns + e % 16;
      put(n, number(high, d), true, d, e, x, 0);
    });
    return x;
  }

 private:
  /// Calls f(feature, value, tile) for all numbers, padding included.
  template <class F>
  static void for_each_number(const detail::AmxSizes& n, F&& f) {
    for (Index d = 0; d < n.padded_features(); ++d) {
      for (Index e = 0; e < n.padded_values(); ++e) f(d, e, d / 32 * n.value_tiles() + e / 16);
    }
  }
  /// Number k of a column, where k and k + 16 share a Bf16x2.
  static float number(const detail::Bf16x2* high, Index k) {
    const detail::Float32x2 x = detail::joined(high[0], high[detail::kTileSize]);
    return k % 32 < 16 ? x.first : x.second;
  }
  static void put(const detail::AmxSizes& n, float x, bool is_block, Index d, Index e,
                  Matrix<float>& all, Index row) {
    if (is_block && d < n.features && e < n.values) {
      all(row, d * n.values + e) = x;
    } else {
      EXPECT_EQ(x, 0) << "not padded with zeros";
    }
  }
};

}  // namespace mhla::test
