#pragma once

/// \file
/// Schedules that spread the work of a block over its tokens, so that steps take about the same
/// time. They depend on counts alone: a state stores none of them.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/kernel/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Number of parts that take turns.
inline constexpr Index kTurns = 8;

/// Schedule for adding keys to the rows of a matrix [D,E], in kTurns parts. After the c-th key,
/// part (c - 1) % kTurns adds all keys that it lacks. So the matrix is read and written once per
/// kTurns keys, and its parts lack 0, 1, .. kTurns - 1 keys.
struct RowSchedule {
  Index rows;  ///< D

  struct Part {
    Index begin, end;  ///< rows
  };
  Part part(Index p) const { return {p * rows / kTurns, (p + 1) * rows / kTurns}; }
  /// Part that adds its keys after the c-th key, c >= 1.
  static Index taking(Index c) { return (c - 1) % kTurns; }
  /// Number of the first c keys that part p holds, always the earliest ones.
  static Index held(Index p, Index c) {
    return std::max<Index>(0, c - (c - 1 - p + kTurns) % kTurns);
  }
};

/// Items of `all` that tokens [from, to) of a block process, in whole units, as evenly as possible.
/// The processed fraction of items never exceeds the fraction of tokens.
inline ColumnSpan due(Index from, Index to, Index length, Index all, Index unit) {
  const auto done = [&](Index tokens) {
    return tokens == length ? all : all * tokens / length / unit * unit;
  };
  return {done(from), done(to)};
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
