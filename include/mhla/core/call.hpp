#pragma once

/// \file
/// Options that every form takes.

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Options of a call, set by name: {.workspace = memory, .executor = pool}.
struct Call {
  /// At least the form's *_workspace_bytes(...); empty to allocate.
  LentMemory workspace{};
  /// Runs the independent parts of the work. Results do not depend on it.
  ExecutorRef executor{};
  /// Forward: memory for the summaries that the backward form reuses, at least *_kept_bytes(...);
  /// empty to keep nothing. Backward: the memory that forward wrote for the same inputs, or a copy
  /// of its bytes, or empty. Backward may move the bytes. Memory that no forward of this form and
  /// these sizes has written is refused.
  LentMemory kept{};
};

}  // namespace MHLA_TARGET
}  // namespace mhla
