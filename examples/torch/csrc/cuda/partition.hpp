#pragma once

/// \file
/// Blocks of the operators on CUDA, from their arguments between v and the options.

#include <cstdint>
#include <mhla/cuda/attention/inputs.cuh>
#include <optional>
#include <string>
#include <vector>

#include "../arguments.hpp"
#include "../blocks.hpp"
#include "choices.hpp"

namespace mhla_torch {

using mhla::cuda::TokenBlocks;

/// Blocks of a call, and the part of its mixing matrix that it reads.
struct Partition {
  TokenBlocks queries, keys;
  bool causal;
  bool leading_rows, leading_columns;      ///< read the leading part of a larger matrix
  Index query_prefix = 0, key_prefix = 0;  ///< tokens before the blocks, one more block
  Index terms = 0;  ///< decaying terms [2, R] that take the place of a matrix, or 0

  Index query_tokens() const { return query_prefix + queries.tokens(); }
  Index key_tokens() const { return key_prefix + keys.tokens(); }
  /// Rows and columns of a mixing matrix.
  Index rows() const {
    return terms > 0 ? 2 : (query_prefix > 0 ? 1 : 0) + Index{queries.blocks()};
  }
  Index columns() const {
    return terms > 0 ? terms : (key_prefix > 0 ? 1 : 0) + Index{keys.blocks()};
  }
};

struct Bidirectional {
  static constexpr const char* kName = "bidirectional";

  explicit Bidirectional(Arguments& from)
      : mixing(from.take<Tensor>()), blocks(from), pattern(from.take<std::optional<Tensor>>()) {}

  Partition partition(Index queries, Index keys) const {
    blocks.check(kName);
    Index query_prefix = blocks.queries.prefix, key_prefix = blocks.keys.prefix;
    const TokenBlocks of_queries = after_prefix("prefix", blocks.queries, queries, query_prefix);
    const TokenBlocks of_keys =
        after_prefix(blocks.differ ? "key_prefix" : "prefix", blocks.keys, keys, key_prefix);
    return {of_queries, of_keys, false, any_queries(), any_keys(), query_prefix, key_prefix};
  }

  /// True if sequences have any number of queries, without a grid.
  bool any_queries() const { return blocks.queries.grid.empty(); }
  bool any_keys() const { return blocks.keys.grid.empty(); }

  std::optional<Tensor> mixing;
  BlocksOfCall blocks;
  std::optional<Tensor> pattern;  ///< words of mhla::cuda::pattern_bits()

 private:
  /// Blocks after a prefix. A sequence that is its prefix alone is one block.
  static TokenBlocks after_prefix(const char* argument, const BlocksOfLength& side, Index tokens,
                                  Index& prefix) {
    if (!side.grid.empty()) {
      return mhla::cuda::grid(grid_shape("mhla::Grid", "grid", side.grid),
                              grid_shape("mhla::Grid", "block", side.block));
    }
    if (tokens > 0 && tokens == prefix) {
      prefix = 0;
      return mhla::cuda::contiguous(tokens, tokens);
    }
    if (tokens < prefix) {
      fail<mhla::option_error>(kName, argument, "is " + std::to_string(prefix),
                               "at most the " + std::to_string(tokens) + " tokens");
    }
    return mhla::cuda::contiguous(tokens - prefix, side.block[0]);
  }
};

struct Causal {
  static constexpr const char* kName = "causal";

  explicit Causal(Arguments& from)
      : mixing(from.take<Tensor>()),
        block(from.take<std::int64_t>()),
        decaying(from.take<bool>()),
        pattern(from.take<std::optional<Tensor>>()) {}

  Partition partition(Index queries, Index) const {
    const TokenBlocks blocks = mhla::cuda::contiguous(queries, block);
    const Index terms = decaying ? decay_terms(kName, *mixing) : 0;
    return {blocks, blocks, true, !decaying, !decaying, 0, 0, terms};
  }

  bool any_queries() const { return true; }
  bool any_keys() const { return true; }

  std::optional<Tensor> mixing;
  std::int64_t block;
  bool decaying;  ///< mixing has terms, weights and decays
  std::optional<Tensor> pattern;
};

/// Linear attention: MHLA whose blocks are all mixed with weights of 1.
struct Linear {
  static constexpr const char* kName = "linear";

  explicit Linear(Arguments& from) : causal(from.take<bool>()) {}

  Partition partition(Index queries, Index keys) const {
    if (!causal) return {sixteen_blocks(queries), sixteen_blocks(keys), false, false, false};
    // Per token, the block costs W (D + E) flops and mixing N D E / W^2: both are similar here.
    Index length = 64;
    while (length * length * length < 64 * queries) length *= 2;
    const TokenBlocks blocks = mhla::cuda::contiguous(queries, length);
    return {blocks, blocks, true, false, false};
  }

  bool any_queries() const { return true; }
  bool any_keys() const { return true; }

  std::optional<Tensor> mixing, pattern;  // none
  bool causal;

 private:
  /// Splits tokens into at most 16 blocks: enough to keep a device busy, few enough for the fused
  /// form.
  static TokenBlocks sixteen_blocks(Index tokens) {
    return mhla::cuda::contiguous(tokens, (tokens + 255) / 256 * 16);
  }
};

}  // namespace mhla_torch
