#pragma once

/// \file
/// Quadratic form for few short sequences, with keys split over the warps of a thread block:
///
///     P_tj  = m_(block of t)(block of j) phi(q_t).phi(k_j)     in float, rounded to T
///     n_t   = sum_j P_tj v_j,   den_t = sum_j P_tj
///     o_t   = factor(den_t) * n_t                              [D], rounded to T
///
/// with phi rounded to T and sums in float. P of half must stay below 65520. There may be up to 256
/// keys. Denominator::kCrossQuery is not supported: it reads all queries of a pair. Keys
/// and queries may be different sequences. Both are processed in sequence order, whatever their
/// blocks are.
///
/// A thread block has 16 queries of one pair. Thread blocks are numbered along x by pair, then
/// queries. A warp takes every kWarps-th 16 keys (split_keys.cuh). There are two barriers. At the
/// first, some warps have computed phi(Q), while keys and values are in flight. At the second, all
/// warps have stored their sums, n and den, in shared memory. The sums are added in a fixed order.
///
///     D      threads    registers per thread: n, phi(q), K, V, m
///     64     512        32 + 16 + 16 + 16 + 8 of 128
///     128    256        64 + 32 + 32 + 32 + 8 of 255
///
/// Shared memory: phi(Q) as operands, the sums of all warps. Device memory: Q, K, V and O once. L2:
/// K and V once per 16 queries.
/// Source: arXiv:2601.07832, section 4.1, eq. (5).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/split_keys.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/words.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

struct SplitQuadraticParameters {
  DirectParameters stage;
  Divisor strips;  ///< strips of 16 queries per pair
  Divisor heads;
};

template <class T, int D>
class SplitQuadraticSm80 {
  static_assert(Widths<D, D>::kSplitsKeys, "pieces of V fit into registers");
  static constexpr int kWarps = 16 / Width<D>::kPanelCount;
  static constexpr int kQueries = 16;
  static constexpr int kTiles = D / 8;

  // Layout of shared memory, in bytes. Each thread has a piece of 16 bytes of a tile's n, and the
  // next tile begins one piece later. A row's den is contiguous for all warps.
  static constexpr std::uint32_t kTileBytes = 33 * 16;
  static constexpr std::uint32_t kWarpBytes = kTiles * kTileBytes;
  static constexpr std::uint32_t kDenominators = kWarps * kWarpBytes;
  static constexpr std::uint32_t kRowBytes = 4 * (kWarps + 4);
  static constexpr std::uint32_t kFeatures = kDenominators + kQueries * kRowBytes;

 public:
  using Params = SplitQuadraticParameters;
  static constexpr int kMostKeys = 256;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kSharedBytes = kFeatures + kQueries * D * 2;
  static constexpr int kBlocksPerMultiprocessor = 1;

  static constexpr Params parameters(const DirectParameters& stage) {
    return {stage, Divisor((stage.query_blocks.tokens() - 1) / kQueries + 1), Divisor(stage.heads)};
  }
  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs * p.strips.value());
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const WorkTile at = work_tile(p);
    const std::uint32_t features = at.shared + kFeatures;
    Sums sums{};
    Keys keys = Keys::load(p.stage, at.pair, first_key(at, 0), at.lane);
    const QueryPieces queries = load_queries(p.stage, at);
    const MixingRows mixing = MixingRows::of(p.stage, at.pair, at.query, at.lane);
    keys.load_mixing(p.stage, mixing, first_key(at, 0), at.lane);
    store_queries(p.stage, at, queries);
    ptx::bar_sync();  // phi(Q) is stored
    keys.add_to(sums, p.stage.key_map, features, at.lane);
    MHLA_CUDA_UNROLL
    for (int round = 1; round < kMostKeys / (Keys::kKeys * kWarps); ++round) {
      keys = Keys::load(p.stage, at.pair, first_key(at, round), at.lane);
      keys.load_mixing(p.stage, mixing, first_key(at, round), at.lane);
      keys.add_to(sums, p.stage.key_map, features, at.lane);
    }
    store(at, sums);
    ptx::bar_sync();  // the sums of all warps are stored
    write(p.stage, at);
  }

 private:
  using Keys = SplitKeys<T, D>;
  using Sums = typename Keys::Sums;

  /// Work of a thread.
  struct WorkTile {
    std::uint32_t lane;
    std::uint32_t warp;
    std::uint32_t shared;
    BatchHead pair;
    std::int32_t query;  // first query of the thread block
  };

  /// A thread's part of rows lane / 4 and lane / 4 + 8 of Q.
  struct QueryPieces {
    ptx::Words4 x, x_8;
  };

  static MHLA_DEVICE WorkTile work_tile(const Params& p) {
    const std::uint32_t thread = ptx::tid_x();
    const auto index = static_cast<std::int32_t>(ptx::ctaid_x());
    const std::int32_t pair = p.strips.quotient(index), batch = p.heads.quotient(pair);
    return {thread % 32,
            thread / 32,
            ptx::shared_begin(),
            {batch, pair - batch * p.heads.value()},
            (index - pair * p.strips.value()) * kQueries};
  }

  /// First of the warp's 16 keys in a round.
  static MHLA_DEVICE std::int32_t first_key(const WorkTile& at, int round) {
    return static_cast<std::int32_t>(Keys::kKeys * (at.warp + kWarps * round));
  }

  /// Loads channels 32 warp.. 32 warp + 31. Only the first warps have channels, each for two steps
  /// of products.
  static MHLA_DEVICE QueryPieces load_queries(const DirectParameters& stage, const WorkTile& at) {
    QueryPieces pieces{};
    if (at.warp >= D / 32) return pieces;
    const std::int32_t query = at.query + static_cast<std::int32_t>(at.lane / 4);
    const std::int32_t tokens = stage.query_blocks.tokens();
    const std::int64_t stride = stage.q.token_stride;
    const unsigned char* const from =
        stage.q.head(at.pair) + query * stride + at.warp * 64 + at.lane % 4 * 16;
    if (query < tokens) pieces.x = ptx::ld_global_nc_v4(from);
    if (query + 8 < tokens) pieces.x_8 = ptx::ld_global_nc_v4(from + 8 * stride);
    return pieces;
  }

  /// Stores phi of the pieces as operands.
  static MHLA_DEVICE void store_queries(const DirectParameters& stage, const WorkTile& at,
                                        QueryPieces pieces) {
    if (at.warp >= D / 32) return;
    stage.query_map.with_formula([&](auto phi) {
      apply<T>(phi, pieces.x.x);
      apply<T>(phi, pieces.x_8.x);
    });
    const std::uint32_t(&x)[4] = pieces.x.x;
    const std::uint32_t(&y)[4] = pieces.x_8.x;
    const std::uint32_t to = Keys::operand(at.shared + kFeatures, 2 * at.warp, at.lane);
    ptx::st_shared_v4(to, {{x[0], y[0], x[1], y[1]}});
    ptx::st_shared_v4(to + Keys::kOperandBytes, {{x[2], y[2], x[3], y[3]}});
  }

  static MHLA_DEVICE void store(const WorkTile& at, const Sums& sums) {
    const std::uint32_t to = at.shared + at.warp * kWarpBytes + at.lane * 16;
    MHLA_CUDA_UNROLL
    for (int t = 0; t < kTiles; ++t) ptx::st_shared_v4(to + t * kTileBytes, four_floats(sums.n[t]));
    if (at.lane % 4 != 0) return;
    const std::uint32_t den = at.shared + kDenominators + at.lane / 4 * kRowBytes + at.warp * 4;
    ptx::st_shared_f32(den, sums.den[0]);
    ptx::st_shared_f32(den + 8 * kRowBytes, sums.den[2]);
  }

  static MHLA_DEVICE float denominator(const WorkTile& at, std::uint32_t row) {
    float parts[4] = {};
    MHLA_CUDA_UNROLL
    for (int w = 0; w < kWarps; w += 4) {
      const ptx::Words4 four =
          ptx::ld_shared_v4(at.shared + kDenominators + row * kRowBytes + w * 4);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 4; ++i) parts[i] += as_float(four.x[i]);
    }
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
  }

  /// Writes outputs. A warp has 32 columns at a time of rows g and g + 8, a thread two columns of
  /// one row.
  static MHLA_DEVICE void write(const DirectParameters& stage, const WorkTile& at) {
    constexpr std::uint32_t kStrips = D / 32, kStripsPerWarp = 8 * kStrips / kWarps;
    static_assert(kStripsPerWarp == 1 || kStripsPerWarp == kStrips, "a warp has one g");
    const std::uint32_t g = at.warp * kStripsPerWarp / kStrips, t = at.lane % 8,
                        half = at.lane / 8 % 2;
    const std::uint32_t row = g + 8 * half;
    const float factor = stage.normalization.factor(denominator(at, row));
    const std::int32_t query = at.query + static_cast<std::int32_t>(row);
    const bool odd = t % 2 != 0;
    MHLA_CUDA_UNROLL
    for (std::uint32_t i = 0; i < kStripsPerWarp; ++i) {
      const std::uint32_t strip = kStripsPerWarp == 1 ? at.warp % kStrips : i;
      const std::uint32_t c = strip % 2 * 2 + at.lane / 16;
      const std::uint32_t from = at.shared + (strip / 2 * 8 + t) * kTileBytes + (4 * g + c) * 16;
      float x = 0, y = 0;  // columns t and t + 8 of 16 c..
      MHLA_CUDA_UNROLL
      for (int w = 0; w < kWarps; ++w) {
        const ptx::Words2 two = ptx::ld_shared_v2(from + half * 8 + w * kWarpBytes);
        x += as_float(two.x[0]);
        y += as_float(two.x[1]);
      }
      if (Normalization::infinite(factor)) {
        x = Normalization::output(x, factor);
        y = Normalization::output(y, factor);
      } else {
        x *= factor;
        y *= factor;
      }
      // Threads with even t take columns t and t + 1, the next ones t + 7 and t + 8.
      const float other = ptx::shfl_bfly(odd ? x : y, 1);
      const std::uint32_t pair = ptx::pack<T>(odd ? other : x, odd ? y : other);
      const std::uint32_t column = strip / 2 * 64 + c * 16 + (odd ? t + 7 : t);
      if (query < stage.query_blocks.tokens()) {
        ptx::st_global(stage.o.head(at.pair) + query * stage.o.token_stride + 2 * column, pair);
      }
    }
  }
};

}  // namespace mhla::cuda
