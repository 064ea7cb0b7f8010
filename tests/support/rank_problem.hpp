#pragma once

/// \file
/// A problem whose blocks are split over ranks, and one rank's part of it.

#include <algorithm>
#include <utility>
#include <vector>

#include "support/gradient_problem.hpp"
#include "support/random.hpp"

namespace mhla::test {

/// A random split of blocks: rank r has [first[r], first[r + 1]), some ranks have none.
inline std::vector<Index> random_split(Random& rng, Index blocks, Index ranks) {
  std::vector<Index> first{0, blocks};
  while (static_cast<Index>(first.size()) <= ranks) first.push_back(rng.integer(0, blocks));
  std::sort(first.begin(), first.end());
  return first;
}

/// The blocks [begin, end) of a partition, as a partition of the tokens in these blocks.
class PartOfBlocks {
 public:
  PartOfBlocks(const AnyPartition& all, Index begin, Index end) {
    for (Index b = begin; b < end; ++b) {
      for (Index r = 0; r < all.runs(b); ++r) {
        const Run run = all.run(b, r);
        for (Index t = 0; t < run.length; ++t) tokens_.push_back(run.begin + t);
      }
    }
    std::sort(tokens_.begin(), tokens_.end());
    blocks_.resize(end - begin);
    for (Index b = begin; b < end; ++b) {
      for (Index r = 0; r < all.runs(b); ++r) {
        const Run run = all.run(b, r);
        const auto first = std::lower_bound(tokens_.begin(), tokens_.end(), run.begin);
        blocks_.add(b - begin, {first - tokens_.begin(), run.length});
      }
    }
  }
  const AnyPartition& blocks() const { return blocks_; }

  /// Rows of the part's tokens.
  template <class M>
  M rows_of(const M& all) const {
    M rows(static_cast<Index>(tokens_.size()), all.cols());
    if (all.cols() == 0) return all.rows() == 0 ? all : rows;
    for (Index t = 0; t < rows.rows(); ++t) rows.row(t) = all.row(place(t));
    return rows;
  }
  /// Entries of a mask [1,N] for the part's tokens, or an absent mask.
  Matrix<bool> mask_of(const Matrix<bool>& all) const {
    if (all.size() == 0) return all;
    return rows_of(Matrix<bool>(all.transpose())).transpose();
  }

 private:
  Index place(Index t) const { return tokens_[static_cast<std::size_t>(t)]; }

  std::vector<Index> tokens_;  // ascending
  AnyPartition blocks_;
};

/// A rank's part of a problem.
template <class T>
struct RankProblem {
  PartOfBlocks queries, keys;
  GradientProblem<T> local;

  RankProblem(const GradientProblem<T>& p, Index rank, Index ranks)
      : RankProblem(p, rank, splits(p, ranks)) {}

  /// Copies the part of one machine's gradients that this rank has.
  GradientBuffers<T> part_of(const GradientBuffers<T>& all) const {
    GradientBuffers<T> part(local);
    for (const Part tensor : {kQ, kK, kV, kNormalizerQ, kNormalizerK}) {
      part.tensors[tensor] = side(tensor).rows_of(all.tensors[tensor]);
    }
    part.parameters = all.parameters;
    return part;
  }

  /// Borders of all ranks' blocks, of queries and of keys.
  using Splits = std::pair<std::vector<Index>, std::vector<Index>>;
  static Splits splits(const GradientProblem<T>& p, Index ranks) {
    Random rng(p.seed + 977 * static_cast<std::uint64_t>(ranks));
    const auto queries = random_split(rng, p.blocks.queries.blocks(), ranks);
    const bool alike = p.causal || p.op.normalizer.sums() == WeightSums::kCrossQuery;
    return {queries, alike ? queries : random_split(rng, p.blocks.keys.blocks(), ranks)};
  }

 private:
  RankProblem(const GradientProblem<T>& p, Index rank, const Splits& splits)
      : queries(p.blocks.queries, at(splits.first, rank), at(splits.first, rank + 1)),
        keys(p.blocks.keys, at(splits.second, rank), at(splits.second, rank + 1)),
        local(p) {
    local.blocks = {queries.blocks(), keys.blocks()};
    for (const Part tensor : {kQ, kK, kV, kNormalizerQ, kNormalizerK}) {
      local.tensors[tensor] = side(tensor).rows_of(p.tensors[tensor]);
    }
    local.dout = queries.rows_of(p.dout);
    local.query_mask = queries.mask_of(p.query_mask);
    local.key_mask = keys.mask_of(p.key_mask);
  }
  const PartOfBlocks& side(Part tensor) const {
    return tensor == kQ || tensor == kNormalizerQ ? queries : keys;
  }
  static Index at(const std::vector<Index>& first, Index r) {
    return first[static_cast<std::size_t>(r)];
  }
};

}  // namespace mhla::test
