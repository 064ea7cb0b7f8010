#pragma once

/// \file
/// The stages of a unit (kernel/unit.hpp): types, sizes of groups and rows, and overloads of
/// summarize, mix and write_mixture for these types.

#include "mhla/core/arch.hpp"
#include "mhla/kernel/unit.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/read_out.hpp"
#include "mhla/stage/summary.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <class Unit, class A>
struct UnitStages;

template <class A>
struct UnitStages<vector_unit, A> {
  using Summaries = detail::Summaries<A>;
  using Keys = KeyScratch<A>;
  using Mixtures = detail::Mixtures<A>;

  /// Query blocks mixed together.
  static Index group(Index query_blocks, Index d, Index e, Index workers) {
    return group_blocks<A>(query_blocks, d, e, workers);
  }
  /// Columns of a row of outputs in scratch.
  static Index padded(Index e) { return e; }
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
