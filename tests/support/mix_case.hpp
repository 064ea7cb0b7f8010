#pragma once

#include <algorithm>
#include <cmath>

#include "mhla/stage/mixing.hpp"
#include "support/random.hpp"
#include "support/unit_case.hpp"

namespace mhla::test {

/// A random matrix whose leading blocks are mixed.
template <class A>
struct Mix {
  Index rows, cols, queries, keys;
  detail::Reach reach;
  MixingMatrix<A> m;
  Exact used;  // m, or 0 if not read   // [queries, keys]

  explicit Mix(Random& rng)
      : rows(rng.integer(1, 40)),
        cols(rng.integer(1, 40)),
        queries(rng.chance(0.5) ? rows : rng.integer(0, rows)),
        keys(rng.chance(0.5) ? cols : rng.integer(0, cols)),
        reach(rng.chance(0.5) ? detail::Reach::kAll : detail::Reach::kEarlier),
        m(random_matrix(rng)),
        used(Exact::zero(0, 0)) {
    if (reach == detail::Reach::kEarlier) queries = keys = std::min(queries, keys);
    Matrix<A> read = Matrix<A>::Zero(queries, keys);
    for (Index i = 0; i < rows; ++i) {
      m.view().for_each_in_row(i, [&](Index b, A& c) {
        if (reads(i, b)) {
          read(i, b) = c;
        } else {
          c = A(NAN);
        }
      });
    }
    used = read;
  }
  MixingMatrix<A> random_matrix(Random& rng) const {
    auto banded =
        MixingMatrix<A>::banded(rng.matrix<A>(rows, cols), bandwidth(rng), bandwidth(rng));
    if (rng.chance(0.6)) return banded;
    banded.view().for_each([&rng](A& c) { c = rng.chance(0.5) ? c : 0; });
    return MixingMatrix<A>::sparse(banded);
  }
  static Index bandwidth(Random& rng) { return rng.chance(0.5) ? rng.integer(0, 6) : 40; }
  bool reads(Index i, Index b) const {
    return m.pattern().holds(i, b) && i < queries && b < keys &&
           (reach == detail::Reach::kAll || b < i);
  }
};

}  // namespace mhla::test
