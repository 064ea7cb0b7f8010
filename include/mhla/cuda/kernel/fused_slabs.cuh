#pragma once

/// \file
/// Fused bidirectional form of a slab of columns of E, for up to 64 blocks. All summaries of a pair
/// do not fit into shared memory, but 16 of their columns do:
///
///     S_b = sum_(j in b) phi(k_j) v_j^T        z_b = sum_(j in b) phi(k_j)
///     S~_i = sum_b m_ib S_b                    z~_i = sum_b m_ib z_b
///     o_t = phi(q_t)^T S~_i / den_t            t in block i, den_t = phi(q_t) . z~_i
///
/// The grid's x is the slab of a pair. v_j and o_t are a slab's columns. The slabs of a pair run at
/// the same time and read its queries and keys, all but the first from L2. Each computes all z.
///
///     1  Four teams of four warps each take every fourth block of keys. Boxes of up to 64 tokens
///        (tile/token_boxes.cuh) arrive in two stages of a team. A warp computes 16 rows of S_b.
///        The block's region of shared memory gets S_b times summary_scale, rounded to T. z_b is a
///        product with ones, in float.
///     2  Mixing multiplies m, as A operand, with the regions' numbers of the same row, as B
///        operand. The products replace these numbers. Each warp has its rows and needs no other
///        warp's. m is the sum of two numbers of T, and each warp splits 16 x 16 of it. z~ is mixed
///        in float. Meanwhile the first queries arrive.
///     3  Each team takes every fourth block of queries, and each warp 16 rows of a box.
///
/// Only phase 2 has barriers between teams. Numbers are added in the order of fused_sm80.cuh and
/// fused_sm90.cuh, so outputs have the bits of those kernels where they hold all blocks.
///
/// Shared memory: FusedSlabsConfig. Device memory: queries and keys once per slab, values and
/// outputs once. Denominators are kNone and kKeySum.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/fused_slabs_config.cuh"
#include "mhla/cuda/kernel/fused_sm90.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/region_mixing.cuh"
#include "mhla/cuda/kernel/summary_rows.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

template <class T, int D, int E>
class FusedSlabs {
  using Config = FusedSlabsConfig<D, E>;

 public:
  using Params = FusedSm90Parameters;
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kThreads = 32 * Config::kWarps;
  static constexpr int kSharedBytes = Config::kBytes;
  static constexpr int kBlocksPerMultiprocessor = 1;

  /// Fills all parameters but the maps, which describe `boxes`. Returns false if there are more
  /// than 64 blocks, or if they have no boxes of a multiple of 16 tokens for tensor copies.
  static constexpr bool prepare(const DirectParameters& stage, std::int32_t pairs,
                                std::int32_t multiprocessors, Params& p, TensorBox (&boxes)[3]) {
    const TokenBlocks &queries = stage.query_blocks, &keys = stage.key_blocks;
    if (queries.blocks() > Config::kRegions || keys.blocks() > Config::kRegions) return false;
    p.stage = stage;
    p.pairs = pairs;
    p.multiprocessors = multiprocessors;
    const auto find = [&](const TokenBlocks& blocks, const ConstTokenTensor& tensor, TokenBoxes& to,
                          TensorBox& box) {
      return TokenBoxes::find(blocks, tensor, D, stage.heads, pairs / stage.heads, Config::kRows,
                              to, box) &&
             to.rows() % 16 == 0;
    };
    const bool found = find(queries, stage.q, p.q_boxes, boxes[0]) &&
                       find(keys, stage.k, p.k_boxes, boxes[1]) &&
                       find(keys, stage.v, p.v_boxes, boxes[2]);
    boxes[2].box[0] = Config::kColumns;
    return found;
  }

  static constexpr unsigned grid(const Params&, int pairs) {
    return static_cast<unsigned>(pairs) * Config::kSlabs;
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const DirectParameters& stage = p.stage;
    const WorkTile at = WorkTile::of_thread(stage);
    const bool normalized = stage.normalization.denominator == Denominator::kKeySum;
    if (at.thread == 0) {
      for (std::uint32_t i = 0; i < 2 * Config::kTeams; ++i) {
        ptx::mbarrier_init(at.shared + Config::kBarriers + 8 * i, 1);
      }
      ptx::fence_mbarrier_init();
    }
    if (at.thread < 8) ptx::st_shared_v4(at.shared + Config::kZeros + at.thread * 16, {});
    ptx::bar_sync();
    const auto rows = static_cast<std::uint32_t>(stage.query_blocks.blocks());
    const auto columns = static_cast<std::uint32_t>(stage.key_blocks.blocks());
    const MixingArray m = stage.mixing.of(at.pair);
    const auto part = part_of(m, rows, columns, at);
    RingCursor slot;
    summarize(p, at, slot);

    Cursor ahead(stage.query_blocks, p.q_boxes, at.team);
    RingCursor next = slot;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      load_queries(p, at, ahead, next);
      next = next.after(1, 2);
    }
    ptx::st_shared_v4(at.part(at.warp) + at.lane * 16, part.high[0][0]);
    ptx::st_shared_v4(at.part(at.warp) + 512 + at.lane * 16, part.low[0][0]);
    ptx::bar_sync();  // all summaries and coefficients are stored
    KeySums key_sums{};
    if (normalized) key_sums = mix_key_sums(m, rows, columns, at);
    mix(at, rows, columns);
    ptx::bar_sync();  // all mixtures are stored, and all z are read
    if (normalized) {
      store_key_sums(key_sums, at);
      ptx::bar_sync();
    }
    read_out(p, at, ahead, slot);
  }

 private:
  using WorkTile = FusedSlabsTile<D, E>;
  using KeyTile = typename Config::KeyTile;
  using ValueTile = typename WorkTile::ValueTile;
  using Regions = typename Config::Regions;
  static constexpr int kTiles = Config::kColumns / 8;
  static_assert(D == 64 && Config::kRegions == 4 * Config::kWarps, "each warp has four rows of z~");

  using Cursor = FusedSlabsCursor<Config>;

  // ---- phase 1: summaries ----
  static MHLA_DEVICE void load_keys(const Params& p, const WorkTile& at, Cursor& ahead,
                                    RingCursor slot) {
    ahead.next(at.is_leader(), [&](BlockOrigin first) {
      const std::uint32_t full = at.full(slot);
      const auto rows = static_cast<std::uint32_t>(p.k_boxes.rows());
      ptx::mbarrier_arrive_expect_tx(full, rows * 2 * (D + Config::kColumns));
      ptx::cp_async_bulk_tensor(at.keys(slot).begin, p.maps[1], p.k_boxes.origin(first, at.pair, 0),
                                full);
      ptx::cp_async_bulk_tensor(at.values(slot).begin, p.maps[2],
                                p.v_boxes.origin(first, at.pair, at.column), full);
    });
  }

  static MHLA_DEVICE void summarize(const Params& p, const WorkTile& at, RingCursor& slot) {
    const TokenBlocks& blocks = p.stage.key_blocks;
    const std::int32_t rows = p.k_boxes.rows();
    const bool all_whole = blocks.tokens() == blocks.blocks() * blocks.slots();
    Cursor ahead(blocks, p.k_boxes, at.team);
    load_keys(p, at, ahead, slot);
    load_keys(p, at, ahead, slot.after(1, 2));
    MHLA_CUDA_LOOP
    for (auto block = static_cast<std::int32_t>(at.team); block < blocks.blocks();
         block += Config::kTeams) {
      const bool whole = all_whole || blocks.token(blocks.origin(block), blocks.slots() - 1) >= 0;
      float sums[1][kTiles][4] = {};
      float key_sums[1][4] = {};
      MHLA_CUDA_LOOP
      for (std::int32_t box = 0; box < p.k_boxes.count(); ++box) {
        ptx::mbarrier_wait(at.full(slot), slot.parity);
        p.stage.key_map.with_formula([&](auto phi) {
          const auto add = [&](std::int32_t row, ptx::Words2 filled) {
            const auto rows_before = static_cast<std::uint32_t>(row);
            const KeyTile k{at.keys(slot).begin + rows_before * KeyTile::kRowBytes};
            const ValueTile v{at.values(slot).begin + rows_before * ValueTile::kRowBytes};
            multiply_key_values<T>(sums, key_sums, k, v, filled, 0, 2 * at.tile, 0, phi, at.lane);
          };
          if (whole) {
            MHLA_CUDA_UNROLL
            for (std::int32_t row = 0; row < Config::kRows; row += 16) {
              if (row < rows) add(row, {{ptx::pack<T>(1, 1), ptx::pack<T>(1, 1)}});
            }
          } else {
            const BoxTokens tokens{blocks, blocks.origin(block), rows * box, rows};
            MHLA_CUDA_LOOP
            for (std::int32_t row = 0; row < rows; row += 16) {
              add(row, column_of_tokens<T>(tokens, false, row, at.lane));
            }
          }
        });
        at.sync();  // keys and values have been read
        load_keys(p, at, ahead, slot);
        slot = slot.after(1, 2);
      }
      const auto region = static_cast<std::uint32_t>(block);
      const float scale = p.stage.summary_scale;
      store_sums<T, kTiles>(sums[0], 0, {scale, scale}, at.regions().region(region), 16 * at.tile,
                            0, at.lane);
      if (at.lane % 4 == 0) {
        const std::uint32_t z = at.key_sum(region) + (16 * at.tile + at.lane / 4) * 4;
        ptx::st_shared_f32(z, key_sums[0][0]);
        ptx::st_shared_f32(z + 32, key_sums[0][2]);
      }
    }
  }

  // ---- phase 2: mixtures ----
  /// The thread's coefficients of the warp's part of m.
  static MHLA_DEVICE MixingOperand<1> part_of(const MixingArray& m, std::uint32_t rows,
                                              std::uint32_t columns, const WorkTile& at) {
    const std::uint32_t row = at.warp / Config::kSteps * 16, column = at.warp % Config::kSteps * 16;
    return load_mixing<T, 1>(m.data + row * m.stride + column, m.stride,
                             rows < row ? 0 : rows - row, columns < column ? 0 : columns - column,
                             at.lane);
  }

  /// Four numbers of z~ of two rows. 16 threads have the numbers of a row.
  struct KeySums {
    float z[2][4];
  };
  static MHLA_DEVICE std::uint32_t key_sum_row(const WorkTile& at, std::uint32_t i) {
    return at.warp + (at.lane / 16 * 2 + i) * Config::kWarps;
  }

  static MHLA_DEVICE KeySums mix_key_sums(const MixingArray& m, std::uint32_t rows,
                                          std::uint32_t columns, const WorkTile& at) {
    KeySums sums{};
    const float* weights[2];
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t row = key_sum_row(at, i);
      weights[i] = m.data + (row < rows ? row : rows - 1) * m.stride;
    }
    std::uint32_t z = at.key_sum(0) + at.lane % 16 * 16;
    for (std::uint32_t b = 0; b < columns; ++b, z += D * 4) {
      const ptx::Words4 four = ptx::ld_shared_v4(z);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float weight = ptx::ld_global_nc_f32(weights[i]++);
        MHLA_CUDA_UNROLL
        for (int n = 0; n < 4; ++n) sums.z[i][n] += weight * as_float(four.x[n]);
      }
    }
    return sums;
  }
  static MHLA_DEVICE void store_key_sums(const KeySums& sums, const WorkTile& at) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float(&z)[4] = sums.z[i];
      ptx::st_shared_v4(at.key_sum(key_sum_row(at, i)) + at.lane % 16 * 16,
                        {{as_word(z[0]), as_word(z[1]), as_word(z[2]), as_word(z[3])}});
    }
  }

  /// Mixes rows warp, warp + kWarps, ... of all regions, two at a time.
  static MHLA_DEVICE void mix(const WorkTile& at, std::uint32_t rows, std::uint32_t columns) {
    constexpr int kTogether = 2, kSteps = Config::kSteps;
    static_assert(D % (kTogether * Config::kWarps) == 0, "warps mix equally many rows");
    const Regions regions = at.regions();
    const std::uint32_t zeros = at.shared + Config::kZeros;
    const TileCoord from = columns_coord(at.lane);
    MHLA_CUDA_LOOP
    for (std::uint32_t row = at.warp; row < D; row += kTogether * Config::kWarps) {
      ptx::Words4 b[kTogether][kSteps];
      MHLA_CUDA_UNROLL
      for (int u = 0; u < kTogether; ++u) {
        MHLA_CUDA_UNROLL
        for (int s = 0; s < kSteps; ++s) {
          const std::uint32_t region = 16 * s + from.row;
          const std::uint32_t source = regions.piece(region, row + u * Config::kWarps, from.piece);
          // Zeros in the banks of the absent region.
          b[u][s] = ptx::ldmatrix_x4_trans(region < columns ? source : zeros + source % 128);
        }
      }
      ptx::bar_warp_sync();  // all threads have read the numbers that are replaced
      MHLA_CUDA_LOOP
      for (std::uint32_t r = 0; 16 * r < rows; ++r) {
        float c[kTogether][2][4] = {};
        MHLA_CUDA_UNROLL
        for (std::uint32_t s = 0; s < kSteps; ++s) {
          const std::uint32_t coefficients = at.part(r * kSteps + s) + at.lane * 16;
          const ptx::Words4 h = ptx::ld_shared_v4(coefficients);
          const ptx::Words4 l = ptx::ld_shared_v4(coefficients + 512);
          MHLA_CUDA_UNROLL
          for (int u = 0; u < kTogether; ++u) {
            MHLA_CUDA_UNROLL
            for (int j = 0; j < 2; ++j) {
              const std::uint32_t* const x = b[u][s].x + 2 * j;
              ptx::mma_m16n8k16<T>(c[u][j], l.x[0], l.x[1], l.x[2], l.x[3], x[0], x[1]);
              ptx::mma_m16n8k16<T>(c[u][j], h.x[0], h.x[1], h.x[2], h.x[3], x[0], x[1]);
            }
          }
        }
        const std::uint32_t i = 16 * r + at.lane / 4, column = at.lane % 4 * 4;
        MHLA_CUDA_UNROLL
        for (int u = 0; u < kTogether; ++u) {
          MHLA_CUDA_UNROLL
          for (int j = 0; j < 2; ++j) {
            const std::uint32_t to = row + u * Config::kWarps;
            const float(&x)[4] = c[u][j];
            ptx::st_shared(regions.piece(i, to, j) + column, ptx::pack<T>(x[0], x[1]));
            ptx::st_shared(regions.piece(i + 8, to, j) + column, ptx::pack<T>(x[2], x[3]));
          }
        }
      }
    }
  }

  // ---- phase 3: outputs ----
  static MHLA_DEVICE void load_queries(const Params& p, const WorkTile& at, Cursor& ahead,
                                       RingCursor slot) {
    ahead.next(at.is_leader(), [&](BlockOrigin first) {
      const std::uint32_t full = at.full(slot);
      const auto rows = static_cast<std::uint32_t>(p.q_boxes.rows());
      ptx::mbarrier_arrive_expect_tx(full, rows * 2 * D);
      ptx::cp_async_bulk_tensor(at.keys(slot).begin, p.maps[0], p.q_boxes.origin(first, at.pair, 0),
                                full);
    });
  }

  static MHLA_DEVICE void read_out(const Params& p, const WorkTile& at, Cursor& ahead,
                                   RingCursor slot) {
    const TokenBlocks& blocks = p.stage.query_blocks;
    const std::int32_t rows = p.q_boxes.rows(), row = 16 * static_cast<std::int32_t>(at.tile);
    MHLA_CUDA_LOOP
    for (auto block = static_cast<std::int32_t>(at.team); block < blocks.blocks();
         block += Config::kTeams) {
      const BlockOrigin origin = blocks.origin(block);
      MHLA_CUDA_LOOP
      for (std::int32_t box = 0; box < p.q_boxes.count(); ++box) {
        Fragment<D> q{};
        ptx::mbarrier_wait(at.full(slot), slot.parity);
        if (row < rows) q = load_rows(at.keys(slot), 16 * at.tile, at.lane);
        at.sync();  // the queries have been read
        load_queries(p, at, ahead, slot);
        slot = slot.after(1, 2);
        if (row < rows) {
          read_rows(p, at, q, static_cast<std::uint32_t>(block),
                    {blocks, origin, rows * box + row});
        }
      }
    }
  }

  /// Computes the outputs of 16 queries of a block.
  static MHLA_DEVICE void read_rows(const Params& p, const WorkTile& at, Fragment<D>& q,
                                    std::uint32_t block, const BlockTokens& tokens) {
    const DirectParameters& stage = p.stage;
    apply<T>(stage.query_map, q);
    RowPair d{0, 0};
    if (stage.normalization.denominator == Denominator::kKeySum) {
      d = row_products<T>(q, at.key_sum(block), at.lane);
    }
    float sums[kTiles][4] = {};
    multiply<T>(sums, q, at.regions().region(block), 0, 0, at.lane);
    const RowPair factors =
        stage.normalization.factors(sums, d, inverse_power(stage.summary_scale));
    const typename Config::OutputTile tile{at.part(at.warp)};
    write_sums<T>(sums, factors, tile, stage.o.head(at.pair) + 2 * at.column, stage.o.token_stride,
                  tokens, at.lane);
  }
};

}  // namespace mhla::cuda
