#pragma once

/// \file
/// Rows of a pair in shared memory for quadratic_gradient_sm80.cuh: phi(Q), phi(K), V and dN, with
/// c, ds, the mixing matrix and the sums of its gradient.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/output_gradients_sm80.cuh"
#include "mhla/cuda/kernel/quadratic_gradient_sm80_config.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/split_rows.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// A thread's view of these rows.
template <class T, int D, bool kCrossQuery>
struct QuadraticGradientRows {
  using Config = QuadraticGradientConfig<D, kCrossQuery>;
  using Params = QuadraticGradientParameters;
  using Rows = typename Config::Rows;
  using Output = typename Config::Output;
  using Row = SplitRow<D>;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kPasses = Config::kRows * 8 / kThreads;  // eight threads per row

  std::uint32_t thread;
  std::uint32_t lane;
  std::uint32_t warp;
  std::uint32_t shared;  ///< begin of shared memory

  static MHLA_DEVICE QuadraticGradientRows of_thread() {
    return {ptx::tid_x(), ptx::tid_x() % 32, ptx::tid_x() / 32, ptx::shared_begin()};
  }

  MHLA_DEVICE Rows queries() const { return {shared + Config::kQueries}; }
  MHLA_DEVICE Rows keys() const { return {shared + Config::kKeys}; }
  MHLA_DEVICE Rows values() const { return {shared + Config::kValues}; }
  MHLA_DEVICE Rows gradients() const { return {shared + Config::kGradients}; }
  MHLA_DEVICE Output output() const { return {shared + Config::kOutputs + warp * Output::kBytes}; }
  MHLA_DEVICE ListedTokens query_tokens(std::int32_t first = 0) const {
    return {shared + Config::kQueryTokens, first};
  }
  MHLA_DEVICE ListedTokens key_tokens(std::int32_t first = 0) const {
    return {shared + Config::kKeyTokens, first};
  }
  /// Shared address of m_ib.
  MHLA_DEVICE std::uint32_t mixing(std::int32_t i, std::int32_t b) const {
    return shared + Config::kMixing + 4 * static_cast<std::uint32_t>(i * Config::kPitch + b);
  }
  /// Shared address of the sum of 8 rows of queries and block b.
  MHLA_DEVICE std::uint32_t sum(std::int32_t rows, std::int32_t b) const {
    return shared + Config::kSums + 4 * static_cast<std::uint32_t>(rows * Config::kMostBlocks + b);
  }
  /// Shared addresses of c, ds and s of a row.
  MHLA_DEVICE std::uint32_t weight(std::int32_t r) const { return at(Config::kWeights, r); }
  MHLA_DEVICE std::uint32_t own_weight(std::int32_t r) const { return at(Config::kOwnWeights, r); }
  MHLA_DEVICE std::uint32_t query_sum(std::int32_t r) const { return at(Config::kQuerySums, r); }

  /// Copies the matrix of the thread block's pairs, one warp per row, and clears the sums of its
  /// gradient.
  MHLA_DEVICE void store_mixing(const Params& p) const {
    const auto pair = static_cast<std::int32_t>(ptx::ctaid_x());
    const MixingArray matrix = p.matrices == 1 ? p.mixing : p.mixing.of(batch_head(pair, p.heads));
    MHLA_CUDA_LOOP
    for (auto i = static_cast<std::int32_t>(warp); i < Config::kMostBlocks; i += Config::kWarps) {
      const auto b = static_cast<std::int32_t>(lane);
      ptx::st_shared_f32(sum(i, b), 0);
      if (i < p.queries.blocks.blocks() && b < p.keys.blocks.blocks()) {
        ptx::st_shared_f32(mixing(i, b), ptx::ld_global_nc_f32(matrix.row(i) + b));
      }
    }
  }

  /// Starts the copies of rows, with zeros for rows without a token.
  MHLA_DEVICE void load(const Params& p, BatchHead pair) const {
    const auto copy = [&](Rows to, const ConstTokenTensor& x, const ListedTokens& tokens) {
      copy_rows<kThreads>(to, x.head(pair), x.token_stride, tokens, thread);
    };
    copy(queries(), p.q, query_tokens());
    copy(keys(), p.k, key_tokens());
    copy(values(), p.v, key_tokens());
    copy(gradients(), p.dout, query_tokens());
    ptx::cp_async_commit_group();
  }

  /// Prefetches the rows of a pair into L2, one thread per row of each tensor.
  MHLA_DEVICE void prefetch(const Params& p, BatchHead pair) const {
    const auto row = static_cast<std::int32_t>(thread);
    const std::int32_t query = query_tokens()(row), key = key_tokens()(row);
    const auto bring = [&](const ConstTokenTensor& x, std::int32_t token) {
      if (token < 0 || x.data == nullptr) return;
      const unsigned char* const begin = x.head(pair) + token * x.token_stride;
      ptx::prefetch_l2(begin);
      ptx::prefetch_l2(begin + 2 * D - 16);
    };
    bring(p.q, query);
    bring(p.dout, query);
    bring(p.out, query);
    bring(p.k, key);
    bring(p.v, key);
  }

  /// Applies phi in place to the pieces that the thread copied. Rows without a token stay zero.
  MHLA_DEVICE void map_rows(const FeatureMap& map, Rows rows, const ListedTokens& tokens) const {
    map.with_formula([&](auto phi) {
      for_pieces<kThreads, Rows>(tokens, thread, [&](auto row, auto piece, auto token) {
        if (token < 0) return;
        ptx::Words4 words = ptx::ld_shared_v4(rows.piece(row, piece));
        apply<T>(phi, words.x);
        ptx::st_shared_v4(rows.piece(row, piece), words);
      });
    });
  }

  /// Computes z of each block of keys, two numbers per thread, then z~ of each block, or s.
  MHLA_DEVICE void sum_keys(const Params& p) const {
    constexpr std::uint32_t kPairs = D / 2;
    const std::uint32_t z = shared + Config::kKeySums, mixed = shared + Config::kMixedSums;
    const auto of_all = [&](std::int32_t blocks, const auto& act) {
      MHLA_CUDA_LOOP
      for (std::uint32_t i = thread; i < static_cast<std::uint32_t>(blocks) * kPairs;
           i += kThreads) {
        act(static_cast<std::int32_t>(i / kPairs), i % kPairs);
      }
    };
    of_all(p.keys.blocks.blocks(), [&](std::int32_t b, std::uint32_t pair) {
      const std::int32_t first = b * p.keys.rows_of_block();
      float x = 0, y = 0;
      MHLA_CUDA_LOOP
      for (std::int32_t row = first; row < first + p.keys.blocks.slots(); ++row) {
        const std::uint32_t word =
            ptx::ld_shared(keys().piece(static_cast<std::uint32_t>(row), pair / 4) + pair % 4 * 4);
        x += ptx::low<T>(word);
        y += ptx::high<T>(word);
      }
      const std::uint32_t to = z + 8 * (static_cast<std::uint32_t>(b) * kPairs + pair);
      ptx::st_shared_f32(to, x);
      ptx::st_shared_f32(to + 4, y);
    });
    ptx::bar_sync();
    if constexpr (kCrossQuery) {
      MHLA_CUDA_UNROLL
      for (int pass = 0; pass < kPasses; ++pass) {
        const std::int32_t row = row_of(pass);
        const float s = query_product(row, z + 4 * D * block_of(p, row));
        if (thread % 8 == 0) ptx::st_shared_f32(query_sum(row), s);
      }
      ptx::bar_sync();
      return;
    }
    of_all(p.queries.blocks.blocks(), [&](std::int32_t i, std::uint32_t pair) {
      float x = 0, y = 0;
      MHLA_CUDA_LOOP
      for (std::int32_t b = 0; b < p.keys.blocks.blocks(); ++b) {
        const float m = ptx::ld_shared_f32(mixing(i, b));
        const ptx::Words2 two =
            ptx::ld_shared_v2(z + 8 * (static_cast<std::uint32_t>(b) * kPairs + pair));
        x += m * as_float(two.x[0]);
        y += m * as_float(two.x[1]);
      }
      const std::uint32_t to = mixed + 8 * (static_cast<std::uint32_t>(i) * kPairs + pair);
      ptx::st_shared_f32(to, x);
      ptx::st_shared_f32(to + 4, y);
    });
    ptx::bar_sync();
  }

  /// Rows of o, eight threads per row.
  struct Outputs {
    typename Row::Words rows[kPasses];
  };

  /// Loads rows of o if there is a denominator. It runs while the copies are in flight, so that
  /// both latencies overlap.
  MHLA_DEVICE Outputs load_outputs(const Params& p, BatchHead pair) const {
    Outputs outputs;
    const unsigned char* const o = p.out.head(pair);
    MHLA_CUDA_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      const std::int32_t token = query_tokens()(row_of(pass));
      const bool reads = token >= 0 && p.normalization.denominator != Denominator::kNone;
      outputs.rows[pass] =
          Row::Words::load(reads ? o + token * p.out.token_stride : nullptr, thread % 8);
    }
    return outputs;
  }

  /// Replaces dO by dN and computes c, for the rows of the thread's group of eight.
  MHLA_DEVICE void weigh(const Params& p, const Outputs& outputs) const {
    const bool divides = p.normalization.denominator != Denominator::kNone;
    const std::uint32_t sharer = thread % 8;
    MHLA_CUDA_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      const std::int32_t row = row_of(pass);
      const auto tile_row = static_cast<std::uint32_t>(row);
      Row dn = Row::template of<T>(Row::Words::load(gradients(), tile_row, sharer));
      const bool any = any_nonzero(dn);
      float d = 0;
      if constexpr (kCrossQuery) {
        d = mixed_sum(p, row);
      } else if (divides) {
        d = query_product(row, shared + Config::kMixedSums + 4 * D * block_of(p, row));
      }
      const bool counts = divide_gradients(p.normalization, d, any, dn);
      const float along = divides ? dot(dn, Row::template of<T>(outputs.rows[pass])) : 0;
      if (sharer == 0) ptx::st_shared_f32(weight(row), counts ? -along : 0);
      Row::each_piece(sharer, [&](std::uint32_t i, std::uint32_t piece) {
        ptx::st_shared_v4(gradients().piece(tile_row, piece), rounded<T>(dn.x[i]));
      });
    }
  }

  /// Computes ds of all queries, and adds the part of dm that denominators have, from c and s.
  MHLA_DEVICE void mix_weights(const Params& p) const {
    static_assert(kThreads == Config::kRows);
    const std::int32_t blocks = p.queries.blocks.blocks(), step = p.queries.rows_of_block();
    const auto row = static_cast<std::int32_t>(thread);
    float ds = 0;
    for (std::int32_t i = 0; i < blocks; ++i) {
      ds += ptx::ld_shared_f32(mixing(i, p.queries.block_of(row))) *
            ptx::ld_shared_f32(weight(i * step + row % step));
    }
    ptx::st_shared_f32(own_weight(row), ds);
    if (p.parts == nullptr) return;
    MHLA_CUDA_LOOP
    for (std::int32_t n = row; n < blocks * blocks; n += kThreads) {
      const std::int32_t i = n / blocks, b = n % blocks;
      const std::uint32_t to = sum(i * step / 8, b);
      float dm = 0;
      for (std::int32_t slot = 0; slot < step; ++slot) {
        dm += ptx::ld_shared_f32(query_sum(b * step + slot)) *
              ptx::ld_shared_f32(weight(i * step + slot));
      }
      ptx::st_shared_f32(to, ptx::ld_shared_f32(to) + dm);
    }
  }

 private:
  MHLA_DEVICE std::uint32_t at(int begin, std::int32_t row) const {
    return shared + static_cast<std::uint32_t>(begin + 4 * row);
  }
  static MHLA_DEVICE std::uint32_t block_of(const Params& p, std::int32_t row) {
    return static_cast<std::uint32_t>(p.queries.block_of(row));
  }

  /// Returns phi(q) . z of a row, in all threads of the row. z is a shared address.
  MHLA_DEVICE float query_product(std::int32_t row, std::uint32_t z) const {
    const std::uint32_t sharer = thread % 8;
    const auto words = Row::Words::load(queries(), static_cast<std::uint32_t>(row), sharer);
    return dot_shared(Row::template of<T>(words), z, sharer);
  }

  /// Returns r of a row, in all threads of the row.
  MHLA_DEVICE float mixed_sum(const Params& p, std::int32_t row) const {
    const std::int32_t step = p.queries.rows_of_block();
    float r = 0;
    for (auto b = static_cast<std::int32_t>(thread % 8); b < p.queries.blocks.blocks(); b += 8) {
      r += ptx::ld_shared_f32(mixing(p.queries.block_of(row), b)) *
           ptx::ld_shared_f32(query_sum(b * step + row % step));
    }
    return over_sharers(r);
  }

  MHLA_DEVICE std::int32_t row_of(int pass) const {
    return static_cast<std::int32_t>(thread / 8) + pass * (kThreads / 8);
  }
};

}  // namespace mhla::cuda
