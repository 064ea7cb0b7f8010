#pragma once

/// \file
/// Fused bidirectional form: a pair in one thread block, with its summaries in shared memory:
///
///     S_b = sum_(j in b) phi(k_j) v_j^T        z_b = sum_(j in b) phi(k_j)
///     S~_i = sum_b m_ib S_b                    z~_i = sum_b m_ib z_b
///     o_t = phi(q_t)^T S~_i / den_t            t in block i, den_t = phi(q_t) . z~_i
///
/// The grid's x is the pair. Every input is read from device memory once and every output written
/// once: 2 (2 D + 2 E) bytes per token.
///
///     1  Keys and values arrive through a ring, kTokens tokens per stage. Warps share S_b as tiles
///        of 16 kRowTiles x 8 kColumnTiles in registers, two across. The block's region of shared
///        memory gets S_b times summary_scale, rounded to T. z_b is a product with ones, in float.
///     2  Mixing multiplies m, as A operand, with the regions' numbers of the same row and columns,
///        as B operand. The products replace these numbers. Each warp has its rows and columns and
///        needs no other warp's. m is the sum of two numbers of T. z~ is mixed in float. Meanwhile
///        the first queries arrive.
///     3  Queries arrive through the same ring, kQueryTokens per stage. A pair of warps has 16 of
///        them, each warp half of the columns. Outputs replace them and leave by 16-byte pieces.
///
/// Shared memory: the ring, kRegions regions of S (tile/layout.cuh), z, 128 zero bytes in place of
/// absent blocks. A word for every two tokens of a stage tells which slots are filled. Rows of all
/// tensors are aligned to 16 bytes. Denominators are kNone and kKeySum. kCrossQuery would need
/// queries of all blocks before the first output.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/fused_sm80_config.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/region_mixing.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// \tparam kRegions  at least as many as blocks of queries and blocks of keys
/// \tparam kLimit    bytes of shared memory per thread block
template <class T, int D, int E, int kRegions, int kLimit = shared_limit(Arch::kSm80)>
class FusedSm80 {
  using Config = FusedSm80Config<D, E, kRegions, kLimit>;
  static_assert(Config::kFits, "so many summaries leave no room for tokens in shared memory");

 public:
  using Params = DirectParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kBytes;
  static constexpr int kBlocksPerMultiprocessor = Config::kTwoBlocks ? 2 : 1;

  static unsigned grid(const Params&, int pairs) { return static_cast<unsigned>(pairs); }
  MHLA_DEVICE void operator()(const Params& p) const {
    const WorkTile at = work_tile(p);
    const bool normalized = p.normalization.denominator == Denominator::kKeySum;
    if (at.thread < 8) ptx::st_shared_v4(at.shared + Config::kZeros + at.thread * 16, {});

    KeyCursor keys;
    MHLA_CUDA_LOOP
    for (int s = 0; s + 1 < Config::kStages; ++s) copy_keys(p, at, keys, s);
    const auto rows = static_cast<std::uint32_t>(p.query_blocks.blocks());
    const auto columns = static_cast<std::uint32_t>(p.key_blocks.blocks());
    const MixingArray mixing = p.mixing.of(at.pair);
    const auto m = load_mixing<T, kSteps>(mixing.data, mixing.stride, rows, columns, at.lane);
    summarize(p, at, keys);

    ptx::bar_sync();  // all summaries are stored, and the ring is free
    QueryCursor queries;
    MHLA_CUDA_LOOP
    for (int s = 0; s + 1 < Config::kQueryStages; ++s) copy_queries(p, at, queries, s);
    VectorMixing<Config::kWarps, kRegions, D> key_sums{at.key_sum(0), at.warp, at.lane, {}};
    if (normalized) key_sums.mix(mixing.data, mixing.stride, rows, columns);
    mix_regions<T, Config::kWarps>(at.regions(), m, at.shared + Config::kZeros, rows, columns,
                                   at.warp, at.lane);
    if (normalized) {
      ptx::bar_sync();  // all z are read
      key_sums.store(rows);
    }
    read_out(p, at, queries);
  }

 private:
  using KeyTile = SharedTile<Config::kTokens, D>;
  using ValueTile = SharedTile<Config::kTokens, E>;
  using QueryTile = SharedTile<16, D>;
  using OutputTile = SharedTile<16, E>;
  using Regions = typename Config::Regions;
  using KeyCursor = SlotCursor<Config::kTokens>;
  using QueryCursor = SlotCursor<Config::kQueryTokens>;
  static constexpr int kSteps = (kRegions + 15) / 16;  ///< steps of 16 blocks

  /// Position of a thread.
  struct WorkTile {
    BatchHead pair;
    std::uint32_t shared;
    std::uint32_t thread;
    std::uint32_t lane;
    std::uint32_t warp;
    std::uint32_t group;  ///< group of rows
    std::uint32_t half;   ///< half of the columns

    MHLA_DEVICE std::uint32_t stage(int i) const { return shared + i * Config::kStageBytes; }
    MHLA_DEVICE std::uint32_t filled(int i) const {
      return shared + Config::kFilled + i * Config::kFilledBytes;
    }
    MHLA_DEVICE std::uint32_t key_sum(std::uint32_t block) const {
      return shared + Config::kKeySums + block * (D * 4);
    }
    MHLA_DEVICE Regions regions() const { return {shared + Config::kSummaries}; }
    /// First piece of the warp's columns of S.
    MHLA_DEVICE std::uint32_t piece() const { return half * (E / 8 - Config::kColumnTiles); }
    /// Returns true if the other half also has column tile j, and stores it.
    MHLA_DEVICE bool shared_tile(int j) const { return E / 8 % 2 != 0 && j == 0 && half == 1; }
  };

  /// Contiguous tiles of 16 queries.
  struct QueryTiles {
    static constexpr int kRows = Config::kQueryTokens;
    static constexpr int kPieces = QueryTile::kPieces;
    std::uint32_t begin;

    MHLA_HOST_DEVICE constexpr std::uint32_t piece(std::uint32_t row, std::uint32_t piece) const {
      return begin + row / 16 * QueryTile::kBytes + QueryTile::offset(row % 16, piece);
    }
  };

  static MHLA_DEVICE WorkTile work_tile(const Params& p) {
    const std::uint32_t thread = ptx::tid_x(), warp = thread / 32;
    return {batch_head(static_cast<std::int32_t>(ptx::ctaid_x()), p.heads),
            ptx::shared_begin(),
            thread,
            thread % 32,
            warp,
            warp / 2,
            warp % 2};
  }

  // ---- phase 1: summaries ----
  static MHLA_DEVICE void copy_keys(const Params& p, const WorkTile& at, KeyCursor& ahead,
                                    int stage) {
    if (ahead.block < p.key_blocks.blocks()) {
      const BlockTokens tokens{p.key_blocks, p.key_blocks.origin(ahead.block), ahead.slot};
      const KeyTile k{at.stage(stage)};
      const ValueTile v{k.begin + KeyTile::kBytes};
      for_pieces<kThreads, KeyTile>(tokens, at.thread, [&](auto row, auto piece, auto token) {
        copy_piece(k, row, piece, p.k.head(at.pair), p.k.token_stride, token);
        copy_piece(v, row, piece, p.v.head(at.pair), p.v.token_stride, token);
      });
      if (at.thread < Config::kTokens / 2) {
        const auto row = static_cast<std::int32_t>(2 * at.thread);
        const float x = tokens(row) >= 0 ? 1.0f : 0.0f, y = tokens(row + 1) >= 0 ? 1.0f : 0.0f;
        ptx::st_shared(at.filled(stage) + at.thread * 4, ptx::pack<T>(x, y));
      }
      ahead.advance(p.key_blocks.slots());
    }
    ptx::cp_async_commit_group();
  }

  static MHLA_DEVICE void summarize(const Params& p, const WorkTile& at, KeyCursor& ahead) {
    const std::int32_t blocks = p.key_blocks.blocks(), slots = p.key_blocks.slots();
    int stage = 0, free = Config::kStages - 1;
    MHLA_CUDA_LOOP
    for (std::int32_t block = 0; block < blocks; ++block) {
      float sums[Config::kRowTiles][Config::kColumnTiles][4] = {};
      float key_sums[Config::kRowTiles][4] = {};
      MHLA_CUDA_LOOP
      for (std::int32_t slot = 0; slot < slots; slot += Config::kTokens) {
        ptx::cp_async_wait_group<Config::kStages - 2>();
        ptx::bar_sync();  // the stage has arrived, and the previous one has been read
        copy_keys(p, at, ahead, free);
        const KeyTile k{at.stage(stage)};
        const ValueTile v{k.begin + KeyTile::kBytes};
        MHLA_CUDA_UNROLL
        for (int row = 0; row < Config::kTokens; row += 16) {
          if (slot + row >= slots) break;
          multiply_key_values<T>(sums, key_sums, k, v,
                                 load_column(at.filled(stage) + row * 2, at.lane), row,
                                 2 * Config::kRowTiles * at.group, at.piece(), p.key_map, at.lane);
        }
        free = stage;
        stage = stage + 1 == Config::kStages ? 0 : stage + 1;
      }
      store_summary(sums, key_sums, at, block, p.summary_scale);
    }
  }

  static MHLA_DEVICE void store_summary(
      const float (&sums)[Config::kRowTiles][Config::kColumnTiles][4],
      const float (&key_sums)[Config::kRowTiles][4], const WorkTile& at, std::uint32_t block,
      float scale) {
    const auto region = at.regions().region(block);
    MHLA_CUDA_UNROLL
    for (int t = 0; t < Config::kRowTiles; ++t) {
      const std::uint32_t row = (at.group * Config::kRowTiles + t) * 16 + at.lane / 4;
      const bool second = Width<D>::kWholeTiles || row + 8 < D;
      MHLA_CUDA_UNROLL
      for (int j = 0; j < Config::kColumnTiles; ++j) {
        if (at.shared_tile(j)) continue;
        float c[4];
        MHLA_CUDA_UNROLL
        for (int i = 0; i < 4; ++i) c[i] = sums[t][j][i] * scale;
        const std::uint32_t column = at.lane % 4 * 4;  // in bytes
        ptx::st_shared(region.piece(row, at.piece() + j) + column, ptx::pack<T>(c[0], c[1]));
        if (second) {
          ptx::st_shared(region.piece(row + 8, at.piece() + j) + column, ptx::pack<T>(c[2], c[3]));
        }
      }
      if (at.half == 0 && at.lane % 4 == 0) {
        ptx::st_shared_f32(at.key_sum(block) + row * 4, key_sums[t][0]);
        if (second) ptx::st_shared_f32(at.key_sum(block) + (row + 8) * 4, key_sums[t][2]);
      }
    }
  }

  // ---- phase 3: outputs ----
  static MHLA_DEVICE void copy_queries(const Params& p, const WorkTile& at, QueryCursor& ahead,
                                       int stage) {
    if (ahead.block < p.query_blocks.blocks()) {
      copy_rows<kThreads>(
          QueryTiles{at.shared + stage * Config::kQueryStageBytes}, p.q.head(at.pair),
          p.q.token_stride,
          BlockTokens{p.query_blocks, p.query_blocks.origin(ahead.block), ahead.slot}, at.thread);
      ahead.advance(p.query_blocks.slots());
    }
    ptx::cp_async_commit_group();
  }

  static MHLA_DEVICE void read_out(const Params& p, const WorkTile& at, QueryCursor& ahead) {
    const std::int32_t blocks = p.query_blocks.blocks(), slots = p.query_blocks.slots();
    int stage = 0, free = Config::kQueryStages - 1;
    QueryCursor now;
    MHLA_CUDA_LOOP
    for (; now.block < blocks; now.advance(slots)) {
      ptx::cp_async_wait_group<Config::kQueryStages - 2>();
      ptx::bar_sync();  // the stage has arrived, and the previous one's outputs are written
      copy_queries(p, at, ahead, free);
      const std::uint32_t rows =
          at.shared + stage * Config::kQueryStageBytes + at.group * QueryTile::kBytes;
      if (now.slot + static_cast<std::int32_t>(16 * at.group) < slots) read_rows(p, at, rows, now);
      free = stage;
      stage = stage + 1 == Config::kQueryStages ? 0 : stage + 1;
    }
  }

  /// Reads out 16 queries at `rows`, by the two warps of a group.
  static MHLA_DEVICE void read_rows(const Params& p, const WorkTile& at, std::uint32_t rows,
                                    QueryCursor now) {
    Fragment<D> q = load_rows(QueryTile{rows}, 0, at.lane);
    apply<T>(p.query_map, q);
    RowPair d{0, 0};
    if (p.normalization.denominator == Denominator::kKeySum) {
      d = row_products<T>(q, at.key_sum(now.block), at.lane);
    }
    ptx::bar_sync(1 + at.group, 64);  // both warps have read the queries, which outputs replace
    const auto mixture = at.regions().region(now.block);
    const OutputTile out{rows};
    constexpr int kTiles = Config::kColumnTiles;
    if constexpr (E / 8 == 2 * kTiles) {
      read_columns<kTiles>(p, q, mixture, d, out, at.half * kTiles, at.lane);
    } else if (at.half == 0) {
      read_columns<kTiles>(p, q, mixture, d, out, 0, at.lane);
    } else {
      read_columns<kTiles - 1>(p, q, mixture, d, out, kTiles, at.lane);
    }
    ptx::bar_sync(1 + at.group, 64);  // all outputs of the rows are stored
    const auto first = now.slot + static_cast<std::int32_t>(16 * at.group);
    write_rows<64>(out, p.o.head(at.pair), p.o.token_stride,
                   BlockTokens{p.query_blocks, p.query_blocks.origin(now.block), first},
                   at.half * 32 + at.lane);
  }

  template <int kTiles>
  static MHLA_DEVICE void read_columns(const Params& p, const Fragment<D>& q,
                                       typename Regions::Region mixture, RowPair d, OutputTile out,
                                       std::uint32_t piece, std::uint32_t lane) {
    float sums[kTiles][4] = {};
    multiply<T>(sums, q, mixture, 0, piece, lane);
    const RowPair factors = p.normalization.factors(sums, d, inverse_power(p.summary_scale));
    store_sums<T, kTiles>(sums, 0, factors, out, 0, piece, lane);
  }
};

}  // namespace mhla::cuda
