#pragma once

#include "support/random.hpp"

namespace mhla::test {

/// Calls f(rng, rows, cols, lower, upper) for many sizes and bands.
template <class F>
void for_bands(F&& f) {
  Random rng(1);
  for (const Index rows : {1, 2, 5, 9}) {
    for (const Index cols : {1, 3, 5, 12}) {
      for (const Index lower : {0, 1, 4, 20}) {
        for (const Index upper : {0, 2, 5, 20}) f(rng, rows, cols, lower, upper);
      }
    }
  }
}

}  // namespace mhla::test
