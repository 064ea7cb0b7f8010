#pragma once

/// \file
/// A partition written out run by run, as a user's partition type may be.

#include <vector>

#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/partition.hpp"
#include "support/random.hpp"

namespace mhla::test {

class AnyPartition {
 public:
  AnyPartition() = default;
  /// The runs of another partition, copied.
  template <class P>
  static AnyPartition of(const P& blocks) {
    AnyPartition copy;
    copy.resize(blocks.blocks());
    for (Index b = 0; b < blocks.blocks(); ++b) {
      for (Index r = 0; r < blocks.runs(b); ++r) copy.add(b, blocks.run(b, r));
    }
    return copy;
  }

  Index tokens() const { return tokens_; }
  Index blocks() const { return static_cast<Index>(runs_.size()); }
  Index runs(Index b) const { return static_cast<Index>(block(b).size()); }
  Run run(Index b, Index r) const { return block(b)[static_cast<std::size_t>(r)]; }
  Index block_size(Index b) const {
    Index size = 0;
    for (const Run& run : block(b)) size += run.length;
    return size;
  }

  void resize(Index blocks) { runs_.resize(static_cast<std::size_t>(blocks)); }
  void add(Index b, Run run) {
    runs_[static_cast<std::size_t>(b)].push_back(run);
    tokens_ += run.length;
  }

 private:
  const std::vector<Run>& block(Index b) const { return runs_[static_cast<std::size_t>(b)]; }

  std::vector<std::vector<Run>> runs_;
  Index tokens_ = 0;
};
static_assert(Partition<AnyPartition>);

/// A partition of n tokens into consecutive blocks, either of equal size but for the last, or not.
inline AnyPartition random_ordered_partition(Random& rng, Index n) {
  if (rng.chance(0.6))
    return AnyPartition::of(Contiguous(n, rng.integer(1, std::max<Index>(n, 1) + 2)));
  std::vector<Index> sizes;
  for (Index left = n; left > 0; left -= sizes.back()) sizes.push_back(rng.integer(0, left));
  return AnyPartition::of(BlockSizes(sizes));
}

/// Any partition: ordered, a grid, or runs assigned to blocks at random.
/// \param n  wanted number of tokens; a grid may change it a little
inline AnyPartition random_partition(Random& rng, Index n) {
  const double kind = rng.uniform();
  if (n == 0 || kind < 0.5) return random_ordered_partition(rng, n);
  if (kind < 0.8) {
    const Index frames = rng.integer(1, 3), rows = rng.integer(1, 4);
    const GridShape tokens(frames, rows, std::max<Index>(1, n / (frames * rows)));
    return AnyPartition::of(
        Grid(tokens, GridShape(rng.integer(1, 3), rng.integer(1, 3), rng.integer(1, 5))));
  }
  AnyPartition dealt;
  dealt.resize(rng.integer(1, 6));
  for (Index begin = 0; begin < n;) {
    const Index length = rng.integer(1, std::min<Index>(n - begin, 7));
    dealt.add(rng.integer(0, dealt.blocks() - 1), {begin, length});
    begin += length;
  }
  return dealt;
}

/// A partition of n tokens into equal blocks, as CrossQuery requires.
inline AnyPartition random_equal_partition(Random& rng, Index blocks, Index length) {
  if (rng.chance(0.5)) return AnyPartition::of(Contiguous(blocks * length, length));
  return AnyPartition::of(
      Grid(GridShape(length, blocks), GridShape(length, 1)));  // columns of a grid
}

}  // namespace mhla::test
