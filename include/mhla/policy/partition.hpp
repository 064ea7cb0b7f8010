#pragma once

/// \file
/// Stage 2 of 5: partitions of tokens into blocks.
///
/// A block is a short list of runs of consecutive tokens, so no stage permutes or copies a tensor.
/// Images and videos are in grid_partition.hpp.
///
///     Contiguous(N, W)       blocks of W tokens, the last one may be short
///     BlockSizes({5, 9, 2})  blocks of given sizes
///
/// Tokens that already lie in block order (the authors' vision layers) are Contiguous too.
/// Source: arXiv:2601.07832, section 4.1.

#include <algorithm>
#include <concepts>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Tokens [begin, begin + length).
struct Run {
  Index begin;
  Index length;
};

/// Splits tokens() tokens into blocks(); block b is the runs run(b, 0), ..., run(b, runs(b) - 1).
/// Laws: the runs of all blocks cover every token exactly once; block_size(b) is the sum of the
/// lengths of b's runs. A token's slot is its place in its block, in the order of the runs.
template <class P>
concept Partition = std::copyable<P> && requires(const P& blocks, Index b) {
  { blocks.tokens() } -> std::same_as<Index>;
  { blocks.blocks() } -> std::same_as<Index>;
  { blocks.block_size(b) } -> std::same_as<Index>;
  { blocks.runs(b) } -> std::same_as<Index>;
  { blocks.run(b, b) } -> std::same_as<Run>;
};

/// Blocks of `block_length` consecutive tokens; the last block may be short.
class Contiguous {
 public:
  /// \throws option_error unless tokens >= 0 and block_length >= 1.
  Contiguous(Index tokens, Index block_length);

  Index tokens() const { return tokens_; }
  Index blocks() const { return tokens_ / block_length_ + (tokens_ % block_length_ != 0); }
  Index block_size(Index b) const { return run(b, 0).length; }
  Index runs(Index) const { return 1; }
  Run run(Index b, Index) const {
    const Index begin = b * block_length_;
    return {begin, std::min(block_length_, tokens_ - begin)};
  }
  Index block_length() const { return block_length_; }

 private:
  Index tokens_;
  Index block_length_;
};

/// Consecutive blocks of given sizes.
class BlockSizes {
 public:
  /// \throws option_error if a size is negative; shape_error if the sum does not fit Index.
  explicit BlockSizes(std::span<const Index> sizes);
  BlockSizes(std::initializer_list<Index> sizes)
      : BlockSizes(std::span<const Index>(sizes.begin(), sizes.size())) {}

  Index tokens() const { return begins_.back(); }
  Index blocks() const { return static_cast<Index>(begins_.size()) - 1; }
  Index block_size(Index b) const { return run(b, 0).length; }
  Index runs(Index) const { return 1; }
  Run run(Index b, Index) const {
    const auto i = static_cast<std::size_t>(b);
    return {begins_[i], begins_[i + 1] - begins_[i]};
  }

 private:
  std::vector<Index> begins_;  // [M + 1]
};

static_assert(Partition<Contiguous> && Partition<BlockSizes>);

/// The largest block size of a partition.
template <Partition P>
Index largest_block(const P& blocks);

/// A number of blocks for N tokens in a row.
struct SuggestedBlocks {
  Index blocks;        ///< M
  Index block_length;  ///< W
};

/// Returns M = floor(sqrt(N)), or `most` if that is less, and W = ceil(N / M). The rank of the
/// attention matrix grows with M. Mixing costs M^2 D E: a third of all work at M^2 = N, and most of
/// it for larger M (section 4.3). For a GPU, cuda::most_blocks has `most`.
/// \throws option_error unless tokens >= 1 and most >= 1.
SuggestedBlocks suggest_blocks(Index tokens, Index most = std::numeric_limits<Index>::max());

// ------------------------------------------------------------------------------------------------

inline Contiguous::Contiguous(Index tokens, Index block_length)
    : tokens_(tokens), block_length_(block_length) {
  if (tokens < 0) {
    detail::fail_option("Contiguous", "tokens", "is " + std::to_string(tokens), "at least 0");
  }
  if (block_length < 1) {
    detail::fail_option("Contiguous", "block_length", "is " + std::to_string(block_length),
                        "at least 1");
  }
}

inline BlockSizes::BlockSizes(std::span<const Index> sizes) : begins_(sizes.size() + 1) {
  for (std::size_t b = 0; b < sizes.size(); ++b) {
    if (sizes[b] < 0) {
      detail::fail_option("BlockSizes", "sizes",
                          "has " + std::to_string(sizes[b]) + " at block " + std::to_string(b),
                          "sizes >= 0");
    }
    if (sizes[b] > std::numeric_limits<Index>::max() - begins_[b]) {
      detail::fail_shape("BlockSizes", "sizes", "sum to more than fits", "a sum that fits Index");
    }
    begins_[b + 1] = begins_[b] + sizes[b];
  }
}

template <Partition P>
Index largest_block(const P& blocks) {
  Index largest = 0;
  for (Index b = 0; b < blocks.blocks(); ++b) largest = std::max(largest, blocks.block_size(b));
  return largest;
}

inline SuggestedBlocks suggest_blocks(Index tokens, Index most) {
  for (const auto& [name, value] : {std::pair("tokens", tokens), std::pair("most", most)}) {
    if (value < 1) {
      detail::fail_option("suggest_blocks", name, "is " + std::to_string(value), "at least 1");
    }
  }
  Index m = 1;
  while (m < most && (m + 1) <= tokens / (m + 1)) ++m;
  const Index w = detail::ceil_div(tokens, m);
  return {detail::ceil_div(tokens, w), w};
}

namespace detail {

/// The blocks [first, first + count) of `all` that one rank computes; all of them on one machine.
struct BlockShare {
  Index first;
  Index count;
  Index all;
};
template <Partition P>
BlockShare whole(const P& blocks) {
  return {0, blocks.blocks(), blocks.blocks()};
}

/// Throws unless the partition covers `tokens` tokens and its block sizes sum to that.
template <Partition P>
void expect_partition(const char* function, const char* argument, const P& blocks, Index tokens) {
  Index covered = 0;
  for (Index b = 0; b < blocks.blocks(); ++b) covered += blocks.block_size(b);
  if (blocks.tokens() != tokens || covered != tokens) {
    const std::string all =
        covered == blocks.tokens() ? "" : " of its " + std::to_string(blocks.tokens());
    fail_shape(function, argument, "covers " + std::to_string(covered) + all + " tokens",
               std::to_string(tokens) + " tokens: one per row, or along axis 1 of [B, N, H, D]");
  }
}

/// Throws unless the blocks are consecutive tokens in order, as causality requires.
template <Partition P>
void expect_ordered(const char* function, const char* argument, const P& blocks) {
  Index begin = 0;
  for (Index b = 0; b < blocks.blocks(); ++b) {
    if (blocks.runs(b) != 1 || blocks.run(b, 0).begin != begin) {
      fail_option(function, argument, "has a block " + std::to_string(b) + " out of token order",
                  "blocks of consecutive tokens, one after another");
    }
    begin += blocks.block_size(b);
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
