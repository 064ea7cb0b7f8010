#pragma once

/// \file
/// An executor with any number of workers that runs nothing.

#include "mhla/core/scalar.hpp"

namespace mhla::test {

struct Crowd {
  Index count;

  Index workers() const { return count; }
  void for_each(Index, auto&&) const {}
};

}  // namespace mhla::test
