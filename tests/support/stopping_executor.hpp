#pragma once

/// \file
/// An executor that fails, as one whose threads end would.

#include <stdexcept>

#include "mhla/core/executor.hpp"

namespace mhla::test {

/// Runs so many calls, and throws instead of the next one.
struct StoppingExecutor {
  Index left;

  Index workers() const { return 1; }
  void for_each(Index count, detail::Task task) {
    for (Index i = 0; i < count; ++i) {
      if (left-- == 0) throw std::runtime_error("stopped");
      task.call(task.function, i, 0);
    }
  }
};
static_assert(Executor<StoppingExecutor>);

}  // namespace mhla::test
