#pragma once

/// \file
/// Tables of DistanceMixing for tests, and their definition.

#include <cstddef>

#include "mhla/policy/distance_mixing.hpp"
#include "support/random.hpp"

namespace mhla::test {

/// Numbers in [0.25, 2].
template <class A>
DistanceMixing<A> random_table(Random& rng, GridShape offsets, Index heads, bool rows) {
  DistanceMixing<A> f(offsets, heads, rows);
  for (A& x : f.storage()) x = static_cast<A>(rng.uniform(0.25, 2));
  return f;
}

/// Calls f(rng, table, grid of blocks, pattern) for tables smaller and larger than grids of 1 to 3
/// axes.
template <class A, class F>
void for_tables(F&& f) {
  Random rng(1);
  for (const GridShape blocks : {GridShape(1), GridShape(6), GridShape(3, 4), GridShape(2, 3, 3)}) {
    const Index count = blocks[0] * blocks[1] * blocks[2];
    for (const GridShape offsets :
         {GridShape(1), GridShape(5), GridShape(3, 7), GridShape(3, 1, 5), GridShape(9, 9, 9)}) {
      for (const Index heads : {1, 3}) {
        for (const bool rows : {false, true}) {
          for (const Pattern& pattern : {Pattern(count, count), Pattern(count, count, count, 0),
                                         Pattern(count, count, 1, 2)}) {
            f(rng, random_table<A>(rng, offsets, heads, rows), blocks, pattern);
          }
        }
      }
    }
  }
}

/// The definition: f at the offset from a key block to a query block, clamped.
template <class A>
A table_at(const DistanceMixing<A>& f, GridShape blocks, Index h, Index i, Index b) {
  std::size_t at = static_cast<std::size_t>(h);
  const Index inner[] = {blocks[1] * blocks[2], blocks[2], 1};
  for (int axis = 0; axis < 3; ++axis) {
    const Index size = inner[axis], reach = (f.offsets()[axis] - 1) / 2;
    Index offset = i / size % blocks[axis] - b / size % blocks[axis];
    if (offset > reach) offset = reach;
    if (offset < -reach) offset = -reach;
    at =
        at * static_cast<std::size_t>(f.offsets()[axis]) + static_cast<std::size_t>(offset + reach);
  }
  return f.storage()[at];
}

/// The sum of a row of the table in long double, and of another table.
template <class A>
long double row_sum(const DistanceMixing<A>& f, GridShape blocks, const Pattern& pattern, Index h,
                    Index i) {
  long double sum = 0;
  pattern.for_each_in_row(i, [&](Index b, Index) { sum += table_at(f, blocks, h, i, b); });
  return sum;
}

}  // namespace mhla::test
