#pragma once

/// \file
/// The bidirectional form on AMX: its stages and its conditions.
///
/// bfloat16 tensors run on AMX under all these conditions, otherwise on the vector unit:
/// - the library is compiled for AMX, and the system grants its tiles at run time;
/// - D >= 16 and E >= 16: both are padded to multiples of 32;
/// - no summaries are kept;
/// - all coefficients of the mixing matrix, and all kept keys and values, are finite.
/// The unit of a head is chosen before anything is computed. It depends on the data of the head
/// alone, not on threads or the batch. If a feature or a summary overflows, every output that reads
/// it is infinite or NaN on both units, but not always the same. On AMX this includes outputs of
/// blocks whose coefficient is 0 or outside the band (mixing.hpp).
///
/// Error of the numerator, with A = sum_j |w_j| |v_j| and m = 54 + the steps of the three products,
///
///     (s_1 + s_2 + s_3 + gamma_m (1 + 2^-5)) A + dA,   s_1 = 2^-17 (1 + 2^-7), s_2 = s_3 = 4 s_1
///
/// The three s_i are of summary, mixing and read-out as derived in tiles.hpp; their sum is 2^-13.8.
/// Rounding the output to bfloat16 adds 2^-8. dA is flushed subnormals: 2^-126 for every number and
/// sum of the three products, times the factors that follow. Denominators are those of the vector
/// unit.
///
/// Memory: as on the vector unit, with D, E and key blocks padded to 32 and groups to 16.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/unit.hpp"
#include "mhla/policy/mixing_matrix.hpp"
#include "mhla/stage/amx/mixing.hpp"
#include "mhla/stage/amx/product.hpp"
#include "mhla/stage/amx/read_out.hpp"
#include "mhla/stage/amx/summary.hpp"
#include "mhla/stage/amx/tiles.hpp"
#include "mhla/stage/unit_stages.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <>
struct UnitStages<amx, float> {
  using Summaries = AmxSummaries;
  using Keys = AmxKeyScratch;
  using Mixtures = AmxMixtures;

  /// Query blocks per group, in whole tiles of rows.
  static Index group(Index query_blocks, Index d, Index e, Index workers) {
    const AmxSizes n{d, e};
    return round_up(
        group_blocks<float>(query_blocks, n.padded_features(), n.padded_values(), workers),
        kTileRows);
  }
  static Index padded(Index e) { return AmxSizes{0, e}.padded_values(); }
};

/// Smallest D and E that run on AMX.
inline constexpr Index kLeastAmxWidth = kTileColumns;

template <Scalar T>
inline constexpr bool kMayUseAmx = kMatrixUnit&& std::same_as<T, Eigen::bfloat16>;

/// True if every kept row of x is finite.
inline bool all_finite(MatrixView<const Eigen::bfloat16> x, Mask mask) {
  for (Index t = 0; t < x.rows; ++t) {
    if (!mask[t]) continue;
    unsigned others = 0;
    for (Index j = 0; j < x.cols; ++j) others |= (x(t, j).value & 0x7F80u) == 0x7F80u ? 1u : 0u;
    if (others != 0) return false;
  }
  return true;
}

/// True if heads of D features and E values may run on AMX.
inline bool fits_amx(Index d, Index e) { return d >= kLeastAmxWidth && e >= kLeastAmxWidth; }

/// True if a head that keeps no summaries runs on AMX.
/// \param k, v  its keys and values; only `kept` tokens matter
/// \param d     features of a key
inline bool runs_on_amx(MatrixView<const Eigen::bfloat16> k, MatrixView<const Eigen::bfloat16> v,
                        Mask kept, Index d, MixingView<const float> mixing) {
  return !mixing.pattern().sparse() && fits_amx(d, v.cols) && tiles_granted() &&
         all_finite(mixing.storage().data(), mixing.pattern().size()) && all_finite(k, kept) &&
         all_finite(v, kept);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
