#pragma once

/// \file
/// The angles of rotary position embedding (rotary.hpp), for sequences and for grids.
///
/// The first R features of a head are R/2 pairs, each rotated by a separate angle. The layout says
/// which features are pairs:
///
///     kHalves        (j, j + R/2)      GPT-NeoX
///     kInterleaved   (2j, 2j + 1)      the paper, Wan2.1
///
/// Source: Su et al., arXiv:2104.09864, section 3.2.

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Pairs of features that are rotated together: (j, j + R/2), or (2j, 2j + 1).
enum class RotaryPairs { kHalves, kInterleaved };

/// Options of the angles: position p rotates pair j of R/2 by p * base^(-2j/R).
struct RotaryOptions {
  double base = 10000;
  Index first = 0;  ///< position of row 0
  RotaryPairs pairs = RotaryPairs::kHalves;
};

/// A view of rows of a table of angles.
template <Accumulator A>
struct RotaryRows {
  const A* numbers;  ///< [positions, R]
  Index positions;
  Index features;  ///< R
  RotaryPairs pairs;

  const A* row(Index position) const { return numbers + position * features; }
};

/// Cosines and sines of the angles of R/2 pairs of features at some positions, computed in double
/// and rounded once to A.
template <Accumulator A>
class RotaryTable {
 public:
  /// A table without positions.
  RotaryTable() = default;
  /// Returns the table of a sequence: pair j of row r has the angle (first + r) * base^(-2j/R).
  /// \throws option_error unless positions >= 0, features R >= 0 and even, base > 0; shape_error if
  ///         their product does not fit Index.
  static RotaryTable sequence(Index positions, Index features, const RotaryOptions& options = {});

  /// Returns the table of a grid's tokens in raster order, with interleaved pairs. With s = R / 6
  /// rounded down, R/2 - 2s pairs of the frames come first, then s of the rows and s of the
  /// columns. The pairs of an axis have the angles of a sequence with as many pairs. Source:
  /// Wan2.1, wan/modules/model.py.
  /// \throws option_error unless sizes >= 1, features R >= 0 and even, base > 0; shape_error if
  ///         their product does not fit Index.
  static RotaryTable grid(const GridShape& tokens, Index features, double base = 10000);

  Index positions() const { return positions_; }
  Index features() const { return features_; }  ///< R
  RotaryPairs pairs() const { return pairs_; }
  A cos(Index position, Index pair) const {
    return row(position)[pairs_ == RotaryPairs::kHalves ? pair : 2 * pair];
  }
  A sin(Index position, Index pair) const {
    return row(position)[pairs_ == RotaryPairs::kHalves ? features_ / 2 + pair : 2 * pair + 1];
  }
  /// Returns the R numbers of a position. kHalves has all cosines, then all sines. kInterleaved has
  /// the cosine and the sine of one pair after another.
  const A* row(Index position) const { return numbers_.data() + position * features_; }

  operator RotaryRows<A>() const {  // NOLINT(google-explicit-constructor)
    return {numbers_.data(), positions_, features_, pairs_};
  }
  /// Returns rows [first, first + count).
  /// \throws shape_error unless the table has these rows.
  RotaryRows<A> rows(Index first, Index count) const {
    if (first < 0 || count < 0 || count > positions_ - first) {
      detail::fail_shape("RotaryTable::rows", "rows",
                         "are " + std::to_string(count) + " from " + std::to_string(first) + " on",
                         "some of " + std::to_string(positions_));
    }
    return {row(first), count, features_, pairs_};
  }

 private:
  RotaryTable(const char* function, Index positions, Index features, RotaryPairs pairs);

  Index positions_ = 0, features_ = 0;
  RotaryPairs pairs_ = RotaryPairs::kHalves;
  std::vector<A> numbers_;  // [positions, R]
};

// ------------------------------------------------------------------------------------------------

template <Accumulator A>
RotaryTable<A>::RotaryTable(const char* function, Index positions, Index features,
                            RotaryPairs pairs)
    : positions_(positions), features_(features), pairs_(pairs) {
  if (features < 0 || features % 2 != 0) {
    detail::fail_option(function, "features", "is " + std::to_string(features),
                        "an even number, at least 0");
  }
  numbers_.resize(
      static_cast<std::size_t>(detail::checked_product(function, "table", {positions, features})));
}

template <Accumulator A>
RotaryTable<A> RotaryTable<A>::sequence(Index positions, Index features,
                                        const RotaryOptions& options) {
  constexpr const char* kName = "RotaryTable::sequence";
  if (positions < 0) {
    detail::fail_option(kName, "positions", "is " + std::to_string(positions), "at least 0");
  }
  detail::expect_above_zero(kName, "base", options.base);
  RotaryTable table(kName, positions, features, options.pairs);
  const bool halves = options.pairs == RotaryPairs::kHalves;
  const Index half = features / 2;
  for (Index j = 0; j < half; ++j) {
    const double frequency =
        std::pow(options.base, -2 * static_cast<double>(j) / static_cast<double>(features));
    A* cos = table.numbers_.data() + (halves ? j : 2 * j);
    for (Index r = 0; r < positions; ++r, cos += features) {
      const double angle =
          (static_cast<double>(options.first) + static_cast<double>(r)) * frequency;
      cos[0] = static_cast<A>(std::cos(angle));
      cos[halves ? half : 1] = static_cast<A>(std::sin(angle));
    }
  }
  return table;
}

template <Accumulator A>
RotaryTable<A> RotaryTable<A>::grid(const GridShape& tokens, Index features, double base) {
  constexpr const char* kName = "RotaryTable::grid";
  detail::expect_grid(kName, "tokens", tokens);
  detail::expect_above_zero(kName, "base", base);
  RotaryTable table(kName, tokens[0] * tokens[1] * tokens[2], features, RotaryPairs::kInterleaved);
  // A row joins one row of each axis.
  const RotaryOptions options{.base = base, .pairs = RotaryPairs::kInterleaved};
  const Index narrow = 2 * (features / 6);
  const std::array<RotaryTable, 3> axes{sequence(tokens[0], features - 2 * narrow, options),
                                        sequence(tokens[1], narrow, options),
                                        sequence(tokens[2], narrow, options)};
  A* to = table.numbers_.data();
  for (Index r = 0; r < table.positions_; ++r) {
    const Index row = r / tokens[2];
    to = std::copy_n(axes[0].row(row / tokens[1]), axes[0].features_, to);
    to = std::copy_n(axes[1].row(row % tokens[1]), narrow, to);
    to = std::copy_n(axes[2].row(r % tokens[2]), narrow, to);
  }
  return table;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
