#pragma once

/// \file
/// What every call of a form may be given besides its arguments.

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Options of a call, by name: {.workspace = memory, .executor = pool}.
struct Call {
  /// At least the form's *_workspace_bytes(...); empty to allocate.
  Workspace workspace{};
  /// Who runs the independent parts of the work. Results do not depend on it.
  ExecutorRef executor{};
  /// Forward: where summaries are left for the backward form, at least *_kept_bytes(...); empty to
  /// keep nothing. Backward: what the forward kept of the same inputs, or empty.
  Workspace kept{};
};

}  // namespace MHLA_TARGET
}  // namespace mhla
