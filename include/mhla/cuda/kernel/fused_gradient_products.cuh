#pragma once

/// \file
/// Products of the tokens of one block for fused_gradient_sm80.cuh, which has the formulas, and
/// block_gradient_sm80.cuh: summaries, dq with dS~ and dz~, and dk with dv.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/fused_gradient_sm80_config.cuh"
#include "mhla/cuda/kernel/fused_gradient_stages.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// `block` is the place of a block's summary, mixture and vectors in shared memory.
template <class T, int D, int kLimit, int kBlocks = 0>
class FusedGradientProducts {
 public:
  using Config = FusedGradientConfig<D, kLimit, kBlocks>;
  using Stages = FusedGradientStages<T, D, kLimit, kBlocks>;
  using Ring = typename Stages::Ring;
  using Params = FusedGradientParameters;

  /// Adds products of a stage's tokens: X^T Y of the warp's tile. Calls act(operand, row) for each
  /// 16 rows, with the operand of X^T.
  template <class Act>
  static MHLA_DEVICE void add_tokens(const Stages& at, int stage, std::int32_t slots,
                                     float (&sums)[Config::kColumnTiles][4], const Act& act) {
    if (!at.has_tile()) return;
    MHLA_CUDA_UNROLL
    for (int row = 0; row < Config::kRows; row += 16) {
      if (row >= slots) break;
      const ptx::Words4 a = load_transposed_rows(at.first(stage), row, 2 * at.row_tile(), at.lane);
      multiply_step<T>(sums, a.x[0], a.x[1], a.x[2], a.x[3], at.second(stage), row,
                       at.group() * Config::kColumnTiles, at.lane);
      act(a, row);
    }
  }
  static MHLA_DEVICE void multiply_column(float (&sums)[4], const ptx::Words4& a, ptx::Words2 b) {
    ptx::mma_m16n8k16<T>(sums, a.x[0], a.x[1], a.x[2], a.x[3], b.x[0], b.x[1]);
  }

  /// Stores the warp's tile in a region, scaled and rounded.
  static MHLA_DEVICE void store_tile(const Stages& at, std::uint32_t block,
                                     const float (&sums)[Config::kColumnTiles][4], float scale) {
    const auto region = at.regions().region(block);
    const std::uint32_t row = at.row_tile() * 16 + at.lane / 4, column = at.lane % 4 * 4;
    MHLA_CUDA_UNROLL
    for (int j = 0; j < Config::kColumnTiles; ++j) {
      const std::uint32_t piece = at.group() * Config::kColumnTiles + j;
      const float(&c)[4] = sums[j];
      ptx::st_shared(region.piece(row, piece) + column, ptx::pack<T>(c[0] * scale, c[1] * scale));
      if (Width<D>::kWholeTiles || row + 8 < D) {
        ptx::st_shared(region.piece(row + 8, piece) + column,
                       ptx::pack<T>(c[2] * scale, c[3] * scale));
      }
    }
  }
  /// Stores the sum of columns 0 and 1 of the warp's rows as floats.
  static MHLA_DEVICE void store_column(const Stages& at, std::uint32_t to, const float (&sums)[4]) {
    if (at.lane % 4 != 0) return;
    const std::uint32_t row = at.row_tile() * 16 + at.lane / 4;
    ptx::st_shared_f32(to + 4 * row, sums[0] + sums[1]);
    if (Width<D>::kWholeTiles || row + 8 < D) {
      ptx::st_shared_f32(to + 4 * (row + 8), sums[2] + sums[3]);
    }
  }

  /// Computes dq, dS~ and dz~ of a block of queries. dS~ replaces S~, and dz~ replaces z~.
  static MHLA_DEVICE void read_queries(const Params& p, const Stages& at, Ring& ring,
                                       BatchHead pair, std::int32_t block) {
    const std::int32_t slots = p.query_blocks.slots();
    const bool normalized = p.normalization.denominator == Denominator::kKeySum;
    const auto region = at.regions().region(static_cast<std::uint32_t>(block));
    float sums[Config::kColumnTiles][4] = {};
    float query_sums[4] = {};
    MHLA_CUDA_LOOP
    for (std::int32_t slot = 0; slot < slots; slot += Config::kRows) {
      Inputs in;
      const int stage =
          at.next(p, ring, [&](int arrived) { in = at.again().map_queries(p, arrived, block); });
      const bool works = at.first_row() < slots - slot && at.has_part();
      const bool last = slot + Config::kRows >= slots;
      add_tokens(at.again(), stage, slots - slot, sums, [](const ptx::Words4&, int) {});
      float dq[kTiles][4] = {};
      if (works) {
        const std::uint32_t lane = at.again().lane;
        multiply_transposed<T>(dq, load_rows(at.second(stage), at.first_row(), lane), region,
                               8 * kTiles * at.part(), lane);
        if (normalized) store_products(at.again(), stage, dq);
      }
      ptx::bar_sync();  // S~ and dN are read, and products are stored
      if (last && at.has_tile()) {
        store_tile(at.again(), static_cast<std::uint32_t>(block), sums, p.query_scale);
      }
      if (works) finish_queries(p, at.again(), stage, block, dq);
      ptx::bar_sync();  // dq and weights are stored
      if (normalized && at.has_tile() && at.group() == 0) {
        add_weights(at.again(), stage, slots - slot, query_sums);
        if (last) store_column(at, at.mixed_sum(block), query_sums);
      }
      at.again().write_inputs(at.second(stage), p.dq, pair, in, p.query_map);
    }
  }

  /// Computes dk and dv of a block of keys from dS and dz.
  static MHLA_DEVICE void read_keys(const Params& p, const Stages& at, Ring& ring, BatchHead pair,
                                    std::int32_t block) {
    const std::int32_t slots = p.key_blocks.slots();
    const auto row = static_cast<std::uint32_t>(at.first_row());
    const auto piece = static_cast<std::uint32_t>(at.part() * kTiles);
    const float unit = inverse_power(p.query_scale);
    const auto region = at.regions().region(static_cast<std::uint32_t>(block));
    MHLA_CUDA_LOOP
    for (std::int32_t slot = 0; slot < slots; slot += Config::kRows) {
      Inputs in;
      const int stage =
          at.next(p, ring, [&](int arrived) { in = at.again().map_keys(p, arrived); });
      if (at.first_row() >= slots - slot) continue;
      float dk[kTiles][4] = {}, dv[kTiles][4] = {};
      if (at.has_part()) {
        const std::uint32_t lane = at.again().lane;
        multiply_transposed<T>(dk, load_rows(at.second(stage), row, lane), region, 8 * piece, lane);
        multiply<T>(dv, load_rows(at.first(stage), row, lane), region, 0, piece, lane);
        if (p.normalization.denominator == Denominator::kKeySum) {
          add_vector(at, dk, at.sum(block), {p.query_scale, p.query_scale});
        }
      }
      at.sync_team();  // keys and values of the rows are read
      if (at.has_part()) {
        store_sums<T, kTiles>(dk, 0, {unit, unit}, at.first(stage), row, piece, at.lane);
        store_sums<T, kTiles>(dv, 0, {unit, unit}, at.second(stage), row, piece, at.lane);
      }
      at.sync_team();  // their gradients are stored
      at.again().write_inputs(at.first(stage), p.dk, pair, in, p.key_map);
      at.again().write(at.second(stage), p.dv, pair, in, [](ptx::Words4&, int, std::uint32_t) {});
    }
  }

 private:
  using Inputs = typename Stages::Inputs;
  static constexpr int kTiles = Config::kOutTiles;

  /// Stores phi(q_t) . (S~_i dN_t) of 16 queries, over the warp's columns.
  static MHLA_DEVICE void store_products(const Stages& at, int stage,
                                         const float (&dq)[kTiles][4]) {
    const auto piece = static_cast<std::uint32_t>(at.part() * kTiles);
    const TileCoord from = rows_coord(at.lane);
    const auto row = static_cast<std::uint32_t>(at.first_row());
    RowPair products{0, 0};
    const auto add = [&](const float(&c)[4], std::uint32_t q, std::uint32_t q_8) {
      products.x += c[0] * ptx::low<T>(q) + c[1] * ptx::high<T>(q);
      products.x_8 += c[2] * ptx::low<T>(q_8) + c[3] * ptx::high<T>(q_8);
    };
    MHLA_CUDA_UNROLL
    for (std::uint32_t j = 0; j + 1 < kTiles; j += 2) {
      const ptx::Words4 q =
          ptx::ldmatrix_x4(at.first(stage).piece(row + from.row, piece + j + from.piece));
      add(dq[j], q.x[0], q.x[1]);
      add(dq[j + 1], q.x[2], q.x[3]);
    }
    if constexpr (kTiles % 2 != 0) {
      const ptx::Words2 q =
          ptx::ldmatrix_x2(at.first(stage).piece(row + from.row, piece + kTiles - 1));
      add(dq[kTiles - 1], q.x[0], q.x[1]);
    }
    products = over_row(products);
    if (at.lane % 4 != 0) return;
    const std::uint32_t to = at.product(at.first_row() + static_cast<std::int32_t>(at.lane / 4)) +
                             4 * static_cast<std::uint32_t>(at.part());
    ptx::st_shared_f32(to, products.x);
    ptx::st_shared_f32(to + 16 * 8, products.x_8);
  }

  /// Adds c z~ to dphi(q) of 16 queries, and stores it in place of dN. Stores c.
  static MHLA_DEVICE void finish_queries(const Params& p, const Stages& at, int stage,
                                         std::int32_t block, float (&dq)[kTiles][4]) {
    const float unit = inverse_power(p.key_scale);
    if (p.normalization.denominator == Denominator::kKeySum) {
      const std::int32_t row = at.first_row() + static_cast<std::int32_t>(at.lane / 4);
      RowPair c{0, 0};
      MHLA_CUDA_UNROLL
      for (std::uint32_t n = 0; n < Config::kOutWarps; ++n) {
        c.x += ptx::ld_shared_f32(at.product(row) + 4 * n);
        c.x_8 += ptx::ld_shared_f32(at.product(row + 8) + 4 * n);
      }
      c.x *= ptx::ld_shared_f32(at.factor(row));
      c.x_8 *= ptx::ld_shared_f32(at.factor(row + 8));
      add_vector(at, dq, at.mixed_sum(block), c);
      c.x *= unit, c.x_8 *= unit;
      if (at.part() == 0) {
        store_weights(at, row, c.x);
        store_weights(at, row + 8, c.x_8);
      }
    }
    if (p.dq.data == nullptr) return;
    store_sums<T, kTiles>(dq, 0, {unit, unit}, at.second(stage),
                          static_cast<std::uint32_t>(at.first_row()),
                          static_cast<std::uint32_t>(at.part() * kTiles), at.lane);
  }

  /// Adds a vector of D floats at a shared address, times a factor per row, to the warp's columns.
  static MHLA_DEVICE void add_vector(const Stages& at, float (&sums)[kTiles][4],
                                     std::uint32_t vector, RowPair by) {
    MHLA_CUDA_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      const auto column = static_cast<std::uint32_t>(8 * (at.part() * kTiles + j));
      const ptx::Words2 two = ptx::ld_shared_v2(vector + 4 * (column + at.lane % 4 * 2));
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 2; ++i) {
        sums[j][i] += by.x * as_float(two.x[i]);
        sums[j][i + 2] += by.x_8 * as_float(two.x[i]);
      }
    }
  }

  /// Stores c of eight rows as high and low parts, two rows per word. All threads of the warp call
  /// together, each with its row, lane / 4 of them.
  static MHLA_DEVICE void store_weights(const Stages& at, std::int32_t row, float c) {
    const float next = ptx::shfl_bfly(c, 4);  // of row + 1 where row is even
    if (at.lane % 8 != 0) return;
    const Parts parts = parts_of<T>(c, next);
    ptx::st_shared(at.weight(row), parts.high);
    ptx::st_shared(at.weight(row) + Stages::kLowWeights, parts.low);
  }

  /// Adds c phi(q) of a stage's queries, with the high parts of c in column 0, the low ones in 1.
  static MHLA_DEVICE void add_weights(const Stages& at, int stage, std::int32_t slots,
                                      float (&sums)[4]) {
    MHLA_CUDA_UNROLL
    for (int row = 0; row < Config::kRows; row += 16) {
      if (row >= slots) break;
      ptx::Words2 c{};
      if (at.lane < 8) {
        const std::uint32_t from =
            at.weight(row) + at.lane % 4 * 4 + (at.lane < 4 ? 0 : Stages::kLowWeights);
        c = {{ptx::ld_shared(from), ptx::ld_shared(from + 16)}};
      }
      multiply_column(sums, load_transposed_rows(at.first(stage), row, 2 * at.row_tile(), at.lane),
                      c);
    }
  }
};

}  // namespace mhla::cuda
