#pragma once

/// \file
/// How a stream spreads over the tokens of a block what must be done by its end, so that steps take
/// about the same time each. Functions of the counts alone: a state stores none of it.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/kernel/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Parts that take turns.
inline constexpr Index kTurns = 8;

/// Rows of a matrix [D,E] to which keys are added, in parts that take turns: after the c-th key
/// part (c - 1) % kTurns takes all keys that it lacks. So a matrix is read and written once in
/// kTurns keys, and its parts lack 0, 1, .. kTurns - 1 keys.
struct Turns {
  Index rows;  ///< D

  struct Part {
    Index begin, end;  ///< rows
  };
  Part part(Index p) const { return {p * rows / kTurns, (p + 1) * rows / kTurns}; }
  /// The part whose turn the c-th key is, c >= 1.
  static Index taking(Index c) { return (c - 1) % kTurns; }
  /// Keys of c that a part holds: the first so many.
  static Index held(Index p, Index c) {
    return std::max<Index>(0, c - (c - 1 - p + kTurns) % kTurns);
  }
};

/// Those of `all` things that tokens [from, to) of a block do, in whole units, as evenly as they
/// can: after a part of the tokens no larger a part is done.
inline ColumnSpan due(Index from, Index to, Index length, Index all, Index unit) {
  const auto done = [&](Index tokens) {
    return tokens == length ? all : all * tokens / length / unit * unit;
  };
  return {done(from), done(to)};
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
