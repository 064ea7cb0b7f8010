#pragma once

/// \file
/// Blocks from an operator's arguments.

#include <cstdint>
#include <mhla/policy/grid_partition.hpp>
#include <mhla/policy/partition.hpp>
#include <string>
#include <variant>
#include <vector>

#include "arguments.hpp"

namespace mhla_torch {

/// Blocks of a call. Tokens before the grid (a class token, registers) are one block, if there are
/// any. Then come the blocks of an image or a video in raster order, or of a sequence.
class Blocks {
 public:
  using Rest = std::variant<mhla::Contiguous, mhla::Grid>;

  Blocks(Index prefix, Rest rest) : prefix_(prefix), rest_(rest) {}

  Index tokens() const {
    return prefix_ + std::visit([](const auto& rest) { return rest.tokens(); }, rest_);
  }
  Index blocks() const {
    return first() + std::visit([](const auto& rest) { return rest.blocks(); }, rest_);
  }
  Index block_size(Index b) const {
    if (b < first()) return prefix_;
    return std::visit([&](const auto& rest) { return rest.block_size(b - first()); }, rest_);
  }
  Index runs(Index b) const {
    if (b < first()) return 1;
    return std::visit([&](const auto& rest) { return rest.runs(b - first()); }, rest_);
  }
  mhla::Run run(Index b, Index r) const {
    if (b < first()) return {0, prefix_};
    const auto [begin, length] =
        std::visit([&](const auto& rest) { return rest.run(b - first(), r); }, rest_);
    return {prefix_ + begin, length};
  }

 private:
  Index first() const { return prefix_ > 0 ? 1 : 0; }  // first block of the grid

  Index prefix_;
  Rest rest_;
};
static_assert(mhla::Partition<Blocks>);

/// Converts one to three sizes.
/// \throws shape_error for any other number of sizes.
inline mhla::GridShape grid_shape(const char* function, const char* argument,
                                  const std::vector<std::int64_t>& sizes) {
  if (sizes.size() == 1) return {sizes[0]};
  if (sizes.size() == 2) return {sizes[0], sizes[1]};
  if (sizes.size() == 3) return {sizes[0], sizes[1], sizes[2]};
  throw mhla::shape_error(std::string(function) + ": " + argument + " has " +
                          std::to_string(sizes.size()) + " sizes, expected 1 to 3");
}

/// Blocks of a sequence of any length. With a grid, the length is fixed.
struct BlocksOfLength {
  std::vector<std::int64_t> grid;   ///< tokens along each axis; empty for a sequence
  std::vector<std::int64_t> block;  ///< tokens per block along each axis
  Index prefix;                     ///< tokens before the grid

  Blocks operator()(Index tokens) const {
    if (grid.empty()) return {prefix, mhla::Contiguous(tokens - prefix, block[0])};
    const mhla::GridShape tokens_along = grid_shape("mhla::Grid", "grid", grid);
    return {prefix, mhla::Grid(tokens_along, grid_shape("mhla::Grid", "block", block))};
  }

  /// \param side  "key_" of arguments of keys alone
  /// \throws shape_error unless block has as many sizes as grid, or one without a grid;
  ///         option_error for a size below 1 or a negative prefix.
  void check(const char* function, const std::string& side = "") const {
    const std::size_t sizes = grid.empty() ? 1 : grid.size();
    if (block.size() != sizes) {
      fail<mhla::shape_error>(
          function, (side + "block").c_str(), "has " + std::to_string(block.size()) + " sizes",
          std::to_string(sizes) + (grid.empty() ? "" : " (those of " + side + "grid)"));
    }
    if (prefix < 0) {
      fail<mhla::option_error>(function, (side + "prefix").c_str(), "is " + std::to_string(prefix),
                               "at least 0");
    }
    (*this)(prefix);
  }
};

/// Blocks of the queries, and of the keys if they differ.
struct BlocksOfCall {
  explicit BlocksOfCall(Arguments& from) : queries(take(from)), keys(take(from)) {
    differ = !keys.grid.empty() || !keys.block.empty() || keys.prefix != 0;
    if (!differ) keys = queries;
  }

  void check(const char* function) const {
    queries.check(function);
    if (differ) keys.check(function, "key_");
  }

  BlocksOfLength queries, keys;
  bool differ;

 private:
  static BlocksOfLength take(Arguments& from) {
    BlocksOfLength blocks;
    blocks.grid = from.take<std::vector<std::int64_t>>();
    blocks.block = from.take<std::vector<std::int64_t>>();
    blocks.prefix = from.take<std::int64_t>();
    return blocks;
  }
};

}  // namespace mhla_torch
