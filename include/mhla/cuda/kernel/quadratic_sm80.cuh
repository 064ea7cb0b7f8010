#pragma once

/// \file
/// Quadratic form: outputs of short sequences from the definition, without summaries:
///
///     P_tj  = m_(block of t)(block of j) phi(q_t).phi(k_j)     in float, rounded to T
///     n_t   = sum_j P_tj v_j,   den_t = sum_j P_tj             only j <= t if Causal
///     o_t   = factor(den_t) * n_t                              [E], rounded to T
///
/// with phi rounded to T and sums in float. P of half must stay below 65520. If CrossQuery, den_t
/// is r_t of query_sums.cuh. Keys and queries may be different sequences. If Causal, they have the
/// same blocks, which are runs of tokens.
///
/// A thread block has 128 queries of one pair, in sequence order. Thread blocks are numbered along
/// x by pair, then queries. If CrossQuery, it has all queries of the pair, up to Config::kQueries.
/// The queries, then 64 keys and values at a time, arrive through two slots of shared memory. Warps
/// hold 16 or 32 rows of phi(q). They compute P of 16 keys and multiply it before the next 16. If
/// Causal, warps have 16 rows, and there are more warps. The threads that copied keys compute
/// phi(k) in shared memory. The mixing matrix is copied to shared memory if it is small
/// (mixing_copy.cuh).
///
/// If Causal, 16 x 16 parts of P right of the diagonal are neither computed nor multiplied. On the
/// diagonal, multiply_lower keeps infinities and NaN of v_j out of earlier tokens.
///
/// Shared memory: kBytes of QuadraticConfig. Device memory: Q and O once, K and V once per 128
/// queries (half of that if Causal), from L2 if N is small.
/// Source: arXiv:2601.07832, section 4.1, eq. (5).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixing_copy.cuh"
#include "mhla/cuda/kernel/occupancy.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/quadratic_sm80_config.cuh"
#include "mhla/cuda/kernel/query_sums.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "mhla/cuda/tile/triangular_product.cuh"

namespace mhla::cuda {

template <class T, int D, int E, bool Causal, bool CrossQuery = false>
class QuadraticSm80 {
  using Config = QuadraticConfig<D, E, Causal, CrossQuery>;

 public:
  using Params = DirectParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kBytes;
  static constexpr int kBlocksPerMultiprocessor = resident_blocks(
      kThreads, Config::kRowTiles*(Widths<D, E>::kHeldRegisters + 74), kSharedBytes);

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * parts(p);
  }
  MHLA_DEVICE void operator()(const Params& p) const {
    const WorkTile at = work_tile(p);
    MHLA_CUDA_LOOP
    for (std::int32_t n = 0; n < Config::kSlots; ++n) copy_item(p, at, n);
    at.mixing.store(p.mixing.of(at.pair), at.warp, Config::kWarps, at.lane);
    const bool any = at.query + at.row() < p.query_blocks.tokens();  // otherwise it only copies
    Sums sums;
    MHLA_CUDA_LOOP
    for (std::int32_t n = 0; n <= at.parts; ++n) {  // queries, then parts of 64 keys
      ptx::cp_async_wait_group<Config::kSlots - 1>();
      if (n > 0) apply_to_copied<T, kThreads>(p.key_map, at.keys(n), ptx::tid_x());
      ptx::bar_sync();  // item n has arrived
      if (n == 0) {
        take_queries(p, at, sums);
      } else if (any) {
        add_keys(p, at, n, sums);
      }
      ptx::bar_sync();  // item n is no longer needed
      copy_item(p, at, n + Config::kSlots);
    }
    if constexpr (CrossQuery) mix_sums(p, at, sums);
    write_output(p, at, sums);
  }

 private:
  using Queries = typename Config::Queries;
  using Keys = typename Config::Keys;
  using Values = typename Config::Values;
  static constexpr int kRowTiles = Config::kRowTiles;
  static constexpr int kGroups = Config::kKeys / 16;
  /// Groups of keys that are unrolled together, as registers allow.
  static constexpr std::int32_t kTogether =
      register_limit(kThreads, kBlocksPerMultiprocessor) > 128 ? kGroups : 1;

  /// Work of a thread.
  struct WorkTile {
    std::uint32_t lane;
    std::int32_t warp;
    std::uint32_t shared;
    BatchHead pair;
    std::int32_t query;  // first query of the thread block
    std::int32_t parts;  // parts of 64 keys
    MixingCopy mixing;
    bool mixing_is_here;

    MHLA_DEVICE std::uint32_t slot(std::int32_t n) const {
      return shared + static_cast<std::uint32_t>(n % Config::kSlots) * Config::kSlotBytes;
    }
    MHLA_DEVICE Keys keys(std::int32_t n) const { return {slot(n)}; }
    MHLA_DEVICE Values values(std::int32_t n) const { return {slot(n) + Keys::kBytes}; }
    /// Shared address of the blocks of the keys, -1 for absent keys.
    MHLA_DEVICE std::uint32_t key_blocks(std::int32_t n) const {
      return shared + Config::kKeyBlocks +
             static_cast<std::uint32_t>(n % Config::kSlots) * (4 * Config::kKeys);
    }
    /// First row of the warp's queries in the thread block.
    MHLA_DEVICE std::int32_t row() const { return 16 * kRowTiles * warp; }
  };

  /// Values of a warp for its queries.
  struct Sums {
    Fragment<D> rows[kRowTiles]{};  // phi(q)
    float n[kRowTiles][E / 8][4] = {};
    RowPair denominators[kRowTiles]{};       // the thread's part of den_t, or of s_t if CrossQuery
    std::int32_t blocks[kRowTiles][2] = {};  // blocks of the thread's rows
  };

  /// Thread blocks per pair.
  static MHLA_HOST_DEVICE constexpr unsigned parts(const Params& p) {
    return static_cast<unsigned>((p.query_blocks.tokens() - 1) / Config::kQueries + 1);
  }

  static MHLA_DEVICE WorkTile work_tile(const Params& p) {
    const std::uint32_t thread = ptx::tid_x();
    const std::uint32_t index = ptx::ctaid_x();
    const auto query = static_cast<std::int32_t>(index % parts(p)) * Config::kQueries;
    std::int32_t parts_of_keys = (p.key_blocks.tokens() - 1) / Config::kKeys + 1;
    if (Causal) {
      const std::int32_t causal_parts = query / Config::kKeys + Config::kQueries / Config::kKeys;
      parts_of_keys = causal_parts < parts_of_keys ? causal_parts : parts_of_keys;
    }
    const MixingCopy mixing{ptx::shared_begin() + Config::kMixing, p.query_blocks.blocks(),
                            p.key_blocks.blocks()};
    return {thread % 32,
            static_cast<std::int32_t>(thread / 32),
            ptx::shared_begin(),
            batch_head(static_cast<std::int32_t>(index / parts(p)), p.heads),
            query,
            parts_of_keys,
            mixing,
            mixing.fits()};
  }

  /// Starts the copies of queries (n = 0) or of the n-th 64 keys and values, or of nothing after
  /// the last. Stores the keys' blocks.
  static MHLA_DEVICE void copy_item(const Params& p, const WorkTile& at, std::int32_t n) {
    const std::uint32_t thread = ptx::tid_x();  // read again for each item, to save registers
    if (n == 0) {
      copy_rows<kThreads>(Queries{at.slot(0)}, p.q.head(at.pair), p.q.token_stride,
                          ConsecutiveTokens{at.query, p.query_blocks.tokens()}, thread);
    } else if (n <= at.parts) {
      const ConsecutiveTokens tokens{(n - 1) * Config::kKeys, p.key_blocks.tokens()};
      copy_rows<kThreads>(at.keys(n), p.k.head(at.pair), p.k.token_stride, tokens, thread);
      copy_rows<kThreads>(at.values(n), p.v.head(at.pair), p.v.token_stride, tokens, thread);
      if (thread < Config::kKeys) {
        const std::int32_t token = tokens(static_cast<std::int32_t>(thread));
        const std::int32_t block = token < 0 ? -1 : p.key_blocks.block_of(token);
        ptx::st_shared(at.key_blocks(n) + 4 * thread, static_cast<std::uint32_t>(block));
      }
    }
    ptx::cp_async_commit_group();
  }

  static MHLA_DEVICE void take_queries(const Params& p, const WorkTile& at, Sums& sums) {
    MHLA_CUDA_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      sums.rows[r] = load_rows(Queries{at.slot(0)}, at.row() + 16 * r, at.lane);
      apply<T>(p.query_map, sums.rows[r]);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 2; ++i) {
        const std::int32_t query =
            at.query + at.row() + 16 * r + 8 * i + static_cast<std::int32_t>(at.lane / 4);
        const bool is_one = query < p.query_blocks.tokens();
        sums.blocks[r][i] = is_one ? p.query_blocks.block_of(query) : 0;
      }
    }
  }

  /// Adds the keys of item n.
  static MHLA_DEVICE void add_keys(const Params& p, const WorkTile& at, std::int32_t n,
                                   Sums& sums) {
    if constexpr (Causal) {
      const std::int32_t diagonal = (at.query + at.row()) / 16 - (n - 1) * kGroups;
      MHLA_CUDA_LOOP
      for (std::int32_t group = 0; group < kGroups && group <= diagonal; ++group) {
        add_group(p, at, n, group, group == diagonal, sums);
      }
    } else {
      MHLA_CUDA_LOOP
      for (std::int32_t first = 0; first < kGroups; first += kTogether) {
        MHLA_CUDA_UNROLL
        for (std::int32_t i = 0; i < kTogether; ++i) add_group(p, at, n, first + i, false, sums);
      }
    }
  }

  /// Adds 16 keys. With `diagonal` these are the warp's own 16 tokens.
  static MHLA_DEVICE void add_group(const Params& p, const WorkTile& at, std::int32_t n,
                                    std::int32_t group, bool diagonal, Sums& sums) {
    const auto column = static_cast<std::int32_t>(at.lane % 4 * 2);
    std::int32_t key_blocks[4];  // of keys column, + 1, + 8, + 9
    MHLA_CUDA_UNROLL
    for (int j = 0; j < 2; ++j) {
      const ptx::Words2 pair =
          ptx::ld_shared_v2(at.key_blocks(n) + 4 * (16 * group + 8 * j + column));
      key_blocks[2 * j] = static_cast<std::int32_t>(pair.x[0]);
      key_blocks[2 * j + 1] = static_cast<std::int32_t>(pair.x[1]);
    }
    float scores[kRowTiles][2][4] = {};
    multiply_transposed<T>(scores, sums.rows, at.keys(n), 16 * group, at.lane);
    const std::int32_t last = diagonal ? static_cast<std::int32_t>(at.lane / 4) : 16;
    ptx::Words4 weights[kRowTiles];
    MHLA_CUDA_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      if constexpr (CrossQuery) {
        add_own_keys(sums.denominators[r], sums.blocks[r], key_blocks, scores[r]);
      }
      at.mixing.multiply(p.mixing.stride, at.mixing_is_here, sums.blocks[r], key_blocks, scores[r]);
      MHLA_CUDA_UNROLL
      for (int j = 0; j < 2; ++j) {
        MHLA_CUDA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const bool counts = key_blocks[2 * j + i % 2] >= 0 &&
                              (!Causal || 8 * j + column + i % 2 <= last + i / 2 * 8);
          scores[r][j][i] = counts ? scores[r][j][i] : 0;
        }
      }
      const Fragment<16> row_weights = rounded<T>(scores[r]);
      if constexpr (!CrossQuery) add_elements<T>(sums.denominators[r], row_weights);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 4; ++i) weights[r].x[i] = row_weights.x[i];
    }
    if (Causal && diagonal) {
      const std::uint32_t(&x)[4] = weights[0].x;
      multiply_lower<T>(sums.n[0], Fragment<16>{x[0], x[1], x[2], x[3]}, at.values(n), 16 * group,
                        at.lane);
    } else {
      multiply_step<T>(sums.n, weights, at.values(n), 16 * group, 0, at.lane);
    }
  }

  /// Adds the scores of two rows with those of four keys that are in the row's own block.
  static MHLA_DEVICE void add_own_keys(RowPair& sums, const std::int32_t (&query_blocks)[2],
                                       const std::int32_t (&key_blocks)[4],
                                       const float (&scores)[2][4]) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* const score = scores[i / 2] + i % 2;
      if (key_blocks[i] == query_blocks[0]) sums.x += score[0];
      if (key_blocks[i] == query_blocks[1]) sums.x_8 += score[2];
    }
  }

  /// Replaces parts of s_t by parts of r_t.
  static MHLA_DEVICE void mix_sums(const Params& p, const WorkTile& at, Sums& sums) {
    const QuerySums all{at.shared + Config::kQuerySums, p.query_blocks.blocks()};
    QueryPlaces places[kRowTiles];
    MHLA_CUDA_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      places[r] = QueryPlaces::of(p.query_blocks, at.query + at.row() + 16 * r, at.lane);
      all.store(places[r], sums.denominators[r], at.lane);
    }
    ptx::bar_sync();  // s_t of all queries is here
    MHLA_CUDA_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      sums.denominators[r] = all.mixed(p.mixing.of(at.pair), places[r], at.lane);
    }
  }

  static MHLA_DEVICE void write_output(const Params& p, const WorkTile& at, Sums& sums) {
    const typename Config::Output tile{at.shared + at.warp * Config::Output::kBytes};
    MHLA_CUDA_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      const RowPair factors = p.normalization.factors(sums.n[r], over_row(sums.denominators[r]));
      const ConsecutiveTokens tokens{at.query + at.row() + 16 * r, p.query_blocks.tokens()};
      write_sums<T>(sums.n[r], factors, tile, p.o.head(at.pair), p.o.token_stride, tokens, at.lane);
    }
  }
};

}  // namespace mhla::cuda
