#pragma once

/// \file
/// Blocks of a grid of tokens after a prefix, for the forms of the CPU.

#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/partition.hpp"

namespace cuda_test {

/// A prefix of tokens as the first block, if there are any, and the blocks of a grid.
class PrefixedGrid {
 public:
  PrefixedGrid(mhla::Index prefix, const mhla::GridShape& tokens, const mhla::GridShape& block)
      : prefix_(prefix), first_(prefix > 0 ? 1 : 0), grid_(tokens, block) {}

  mhla::Index tokens() const { return prefix_ + grid_.tokens(); }
  mhla::Index blocks() const { return first_ + grid_.blocks(); }
  mhla::Index block_size(mhla::Index b) const {
    return b < first_ ? prefix_ : grid_.block_size(b - first_);
  }
  mhla::Index runs(mhla::Index b) const { return b < first_ ? 1 : grid_.runs(b - first_); }
  mhla::Run run(mhla::Index b, mhla::Index r) const {
    if (b < first_) return {0, prefix_};
    const mhla::Run run = grid_.run(b - first_, r);
    return {prefix_ + run.begin, run.length};
  }

 private:
  mhla::Index prefix_, first_;
  mhla::Grid grid_;
};
static_assert(mhla::Partition<PrefixedGrid>);

}  // namespace cuda_test
