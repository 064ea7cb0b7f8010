#pragma once

/// \file
/// Stages of tokens in shared memory for fused_gradient_sm80.cuh and block_gradient_sm80.cuh, and a
/// thread's place in them.
///
/// A stage has two tiles of kRows rows: keys and values, or queries and dO. Eight threads share
/// each row. They copy its pieces, change them, and write the gradients that replace them. Stages
/// arrive ahead of their use, from one part of the work to the next and from pair to pair. Teams of
/// kTeam warps multiply 16 rows each, and copy the same rows.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/fused_gradient_sm80_config.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/split_rows.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// \tparam kBlocks  1: a thread block has one block of one pair
template <class T, int D, int kLimit, int kBlocks = 0>
struct FusedGradientStages {
  using Config = FusedGradientConfig<D, kLimit, kBlocks>;
  using Params = FusedGradientParameters;
  using Tile = SharedTile<Config::kRows, D>;
  using Regions = SummaryRegions<Config::kRegions, D, D>;
  using Row = SplitRow<D>;

  /// Parts of a pair's work, each over all blocks: summaries, dq and dS~, then dk and dv.
  enum Part { kSummarise, kQueries, kKeys, kParts };

  /// The next stage to copy, and the next one to use.
  struct Ring {
    std::int32_t pair;  ///< of the next copy
    int part;
    SlotCursor<Config::kRows> ahead;
    BlockOrigin origin;  ///< of the block `ahead`
    const unsigned char* heads[2];
    int stage = 0;
  };

  /// Rows before phi, in the thread's pieces, and their tokens.
  struct Inputs {
    typename Row::Words words[Config::kPasses];
    std::int32_t tokens[Config::kPasses];
  };

  std::uint32_t thread;
  std::uint32_t lane;
  std::uint32_t warp;
  std::uint32_t shared;  ///< begin of shared memory

  static MHLA_DEVICE FusedGradientStages of_thread() {
    return {ptx::tid_x(), ptx::tid_x() % 32, ptx::tid_x() / 32, ptx::shared_begin()};
  }

  /// The same place. Kernels of one block read the thread's index again: addresses that depend on
  /// it leave the registers.
  MHLA_DEVICE FusedGradientStages again() const {
    if constexpr (kBlocks == 1) return of_thread();
    return *this;
  }

  // ---- places in shared memory ----
  MHLA_DEVICE Tile first(int stage) const {
    return {shared + static_cast<std::uint32_t>(stage * Config::kStageBytes)};
  }
  MHLA_DEVICE Tile second(int stage) const { return {first(stage).begin + Config::kTileBytes}; }
  MHLA_DEVICE Regions regions() const { return {shared + Config::kSummaries}; }
  MHLA_DEVICE std::uint32_t zeros() const { return shared + Config::kZeros; }
  MHLA_DEVICE std::uint32_t sum(std::int32_t block) const { return at(Config::kSums, block * D); }
  MHLA_DEVICE std::uint32_t mixed_sum(std::int32_t block) const {
    return at(Config::kMixedSums, block * D);
  }
  MHLA_DEVICE std::uint32_t product(std::int32_t of) const { return at(Config::kProducts, 4 * of); }
  MHLA_DEVICE std::uint32_t factor(std::int32_t of) const { return at(Config::kFactors, of); }
  /// Weights of rows of, of + 1; `of` is even.
  MHLA_DEVICE std::uint32_t weight(std::int32_t of) const { return at(Config::kWeights, of / 2); }
  static constexpr std::uint32_t kLowWeights = 2 * Config::kRows;  ///< bytes to the low parts

  // ---- shares of the work ----
  /// The first of 16 rows that the warp's team shares, and the warp's place in the team.
  MHLA_DEVICE std::int32_t first_row() const {
    return static_cast<std::int32_t>(warp / Config::kTeam * 16);
  }
  MHLA_DEVICE std::int32_t part() const { return static_cast<std::int32_t>(warp % Config::kTeam); }
  MHLA_DEVICE bool has_part() const {
    return Config::kOutWarps == Config::kTeam || part() < Config::kOutWarps;
  }
  /// Synchronises the team.
  MHLA_DEVICE void sync_team() const {
    ptx::bar_sync(1 + warp / Config::kTeam, 32 * Config::kTeam);
  }
  /// Rows of the team whose pieces the thread copies, and its place among the threads of a row.
  MHLA_DEVICE std::uint32_t row(int pass) const {
    const std::uint32_t of_team = (pass * Config::kTeam + warp % Config::kTeam) * 4 + lane / 8;
    return warp / Config::kTeam * 16 + of_team;
  }
  MHLA_DEVICE std::uint32_t sharer() const { return lane % 8; }
  /// The warp's tile of S: 16 rows, and one of kGroups groups of columns.
  MHLA_DEVICE std::uint32_t row_tile() const { return warp / Config::kGroups; }
  MHLA_DEVICE std::uint32_t group() const { return warp % Config::kGroups; }
  MHLA_DEVICE bool has_tile() const {
    constexpr int kTiles = Config::kRowTiles * Config::kGroups;
    return kTiles == Config::kWarps || warp < kTiles;
  }

  // ---- copies ----
  /// Starts the copies of the first stages, from a block of a pair on.
  MHLA_DEVICE Ring begin(const Params& p, int part, std::int32_t pair, std::int32_t block) const {
    Ring ring{};
    ring.pair = pair;
    begin_part(p, ring, part);
    if constexpr (kBlocks == 1) {
      ring.ahead.block = block;
      ring.origin = (part == kQueries ? p.query_blocks : p.key_blocks).origin(block);
    }
    MHLA_CUDA_LOOP
    for (int stage = 0; stage + 1 < Config::kStages; ++stage) copy(p, ring, stage);
    return ring;
  }

  /// Returns the next stage after it has arrived. change(stage) changes the thread's pieces before
  /// other threads see them. The stage before is free: all threads have left it.
  template <class Change>
  MHLA_DEVICE int next(const Params& p, Ring& ring, const Change& change) const {
    const int stage = ring.stage;
    ptx::cp_async_wait_group<Config::kStages - 2>();
    ptx::bar_warp_sync();  // tokens of the warp's rows are stored
    change(stage);
    ptx::bar_sync();
    again().copy(p, ring, stage == 0 ? Config::kStages - 1 : stage - 1);
    ring.stage = stage + 1 == Config::kStages ? 0 : stage + 1;
    return stage;
  }

  // ---- changes of the thread's pieces ----
  /// Replaces keys by phi(k). Rows without a token stay zero.
  MHLA_DEVICE Inputs map_keys(const Params& p, int stage) const {
    Inputs in;
    MHLA_CUDA_UNROLL
    for (int pass = 0; pass < Config::kPasses; ++pass) {
      in.words[pass] = words_of(first(stage), pass);
      in.tokens[pass] = token(stage, pass);
      if (in.tokens[pass] >= 0) store(first(stage), pass, mapped(p.key_map, in.words[pass]));
    }
    return in;
  }

  /// Replaces queries by phi(q), and dO by dN. Stores -dN / dO of each row for its c, or 0.
  MHLA_DEVICE Inputs map_queries(const Params& p, int stage, std::int32_t block) const {
    const bool divides = p.normalization.denominator == Denominator::kKeySum;
    Inputs in;
    MHLA_CUDA_UNROLL
    for (int pass = 0; pass < Config::kPasses; ++pass) {
      in.words[pass] = words_of(first(stage), pass);
      in.tokens[pass] = token(stage, pass);
      const typename Row::Words features = mapped(p.query_map, in.words[pass]);
      store(first(stage), pass, features);
      typename Row::Words words = words_of(second(stage), pass);
      const bool any = any_bits(words);
      const float d =
          divides ? dot_shared(Row::template of<T>(features), mixed_sum(block), sharer()) : 0;
      const float by = p.normalization.factor(d);
      const bool counts = any && !Normalization::infinite(by);
      const Row dout = Row::template of<T>(words);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < Row::kPieces; ++i) {
        float dn[8];
        MHLA_CUDA_UNROLL
        for (int j = 0; j < 8; ++j) dn[j] = counts ? dout.x[i][j] * by : 0;
        words.pieces[i] = rounded<T>(dn);
      }
      store(second(stage), pass, words);
      if (sharer() == 0) {
        ptx::st_shared_f32(factor(static_cast<std::int32_t>(row(pass))), counts ? -by : 0);
      }
    }
    return in;
  }

  // ---- outputs ----
  /// Writes the thread's pieces of a tile to the inputs' tokens, multiplied by phi' of the inputs.
  MHLA_DEVICE void write_inputs(Tile tile, const TokenTensor& to, BatchHead pair, const Inputs& in,
                                const FeatureMap& map) const {
    write(tile, to, pair, in, [&](ptx::Words4& words, int pass, std::uint32_t i) {
      multiply_derivatives<T>(map, words.x, in.words[pass].pieces[i].x);
    });
  }
  /// Calls change(words, pass, i) for the thread's pieces of a tile, and writes them.
  template <class Change>
  MHLA_DEVICE void write(Tile tile, const TokenTensor& to, BatchHead pair, const Inputs& in,
                         const Change& change) const {
    if (to.data == nullptr) return;
    unsigned char* const head = to.head(pair);
    MHLA_CUDA_UNROLL
    for (int pass = 0; pass < Config::kPasses; ++pass) {
      if (in.tokens[pass] < 0) continue;
      unsigned char* const begin = head + in.tokens[pass] * to.token_stride;
      each_piece([&](std::uint32_t i, std::uint32_t piece) {
        ptx::Words4 words = ptx::ld_shared_v4(tile.piece(row(pass), piece));
        change(words, pass, i);
        ptx::st_global_v4(begin + 16 * piece, words);
      });
    }
  }

 private:
  MHLA_DEVICE std::uint32_t at(int begin, std::int32_t number) const {
    return shared + static_cast<std::uint32_t>(begin + 4 * number);
  }
  MHLA_DEVICE std::uint32_t token_of(int stage, int pass) const {
    return at(Config::kTokens, stage * Config::kRows + static_cast<std::int32_t>(row(pass)));
  }
  MHLA_DEVICE std::int32_t token(int stage, int pass) const {
    return static_cast<std::int32_t>(ptx::ld_shared(token_of(stage, pass)));
  }

  /// Calls act(i, piece) for the thread's pieces of its row.
  template <class Act>
  MHLA_DEVICE void each_piece(const Act& act) const {
    Row::each_piece(sharer(), act);
  }
  MHLA_DEVICE typename Row::Words words_of(Tile tile, int pass) const {
    return Row::Words::load(tile, row(pass), sharer());
  }
  MHLA_DEVICE void store(Tile tile, int pass, const typename Row::Words& words) const {
    each_piece([&](std::uint32_t i, std::uint32_t piece) {
      ptx::st_shared_v4(tile.piece(row(pass), piece), words.pieces[i]);
    });
  }
  /// Returns true, in all threads of a row, if a number of the row is not 0.
  static MHLA_DEVICE bool any_bits(const typename Row::Words& words) {
    std::uint32_t bits = 0;
    MHLA_CUDA_UNROLL
    for (const ptx::Words4& piece : words.pieces) {
      bits |= piece.x[0] | piece.x[1] | piece.x[2] | piece.x[3];
    }
    return over_sharers((bits & 0x7FFF7FFF) != 0 ? 1.0f : 0.0f) != 0;
  }
  static MHLA_DEVICE typename Row::Words mapped(const FeatureMap& map, typename Row::Words words) {
    map.with_formula([&](auto phi) {
      MHLA_CUDA_UNROLL
      for (ptx::Words4& piece : words.pieces) apply<T>(phi, piece.x);
    });
    return words;
  }

  /// Sets the ring to the first block of a part of its pair, if there is that pair.
  MHLA_DEVICE void begin_part(const Params& p, Ring& ring, int part) const {
    ring.part = part;
    ring.ahead = {};
    ring.origin = {};
    if (ring.pair >= p.pairs) return;
    const BatchHead pair = batch_head(ring.pair, p.heads);
    ring.heads[0] = first_tensor(p, part).head(pair);
    ring.heads[1] = second_tensor(p, part).head(pair);
  }
  static MHLA_DEVICE const ConstTokenTensor& first_tensor(const Params& p, int part) {
    return part == kQueries ? p.q : p.k;
  }
  static MHLA_DEVICE const ConstTokenTensor& second_tensor(const Params& p, int part) {
    return part == kQueries ? p.dout : p.v;
  }

  /// Starts the copy of the ring's next stage, if there is one.
  MHLA_DEVICE void copy(const Params& p, Ring& ring, int stage) const {
    if (ring.pair < p.pairs) {
      if (ring.part == kQueries) {
        copy_rows(p, p.query_blocks, ring, stage);
        advance(p, p.query_blocks, ring);
      } else {
        copy_rows(p, p.key_blocks, ring, stage);
        advance(p, p.key_blocks, ring);
      }
    }
    ptx::cp_async_commit_group();
  }
  MHLA_DEVICE void copy_rows(const Params& p, const TokenBlocks& blocks, const Ring& ring,
                             int stage) const {
    const std::int64_t first_stride = first_tensor(p, ring.part).token_stride;
    const std::int64_t second_stride = second_tensor(p, ring.part).token_stride;
    MHLA_CUDA_UNROLL
    for (int pass = 0; pass < Config::kPasses; ++pass) {
      const std::int32_t of_row =
          blocks.token(ring.origin, ring.ahead.slot + static_cast<std::int32_t>(row(pass)));
      each_piece([&](std::uint32_t, std::uint32_t piece) {
        copy_piece(first(stage), row(pass), piece, ring.heads[0], first_stride, of_row);
        copy_piece(second(stage), row(pass), piece, ring.heads[1], second_stride, of_row);
      });
      if (sharer() == 0) ptx::st_shared(token_of(stage, pass), static_cast<std::uint32_t>(of_row));
    }
  }
  MHLA_DEVICE void advance(const Params& p, const TokenBlocks& blocks, Ring& ring) const {
    ring.ahead.advance(blocks.slots());
    if (ring.ahead.slot != 0) return;
    if constexpr (kBlocks == 1) {
      ring.pair = p.pairs;
      return;
    }
    if (ring.ahead.block < blocks.blocks()) {
      ring.origin = blocks.origin(ring.ahead.block);
      return;
    }
    const bool last = ring.part + 1 == (p.wants_keys() ? kParts : kKeys);
    if (last) ring.pair += static_cast<std::int32_t>(ptx::nctaid_x());
    begin_part(p, ring, last ? kSummarise : ring.part + 1);
  }
};

}  // namespace mhla::cuda
