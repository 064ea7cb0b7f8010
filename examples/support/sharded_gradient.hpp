#pragma once

/// \file
/// The gradient of a batch over threads. Shards of the batch do not depend on the number of
/// threads. Each shard has its own gradient, and gradients are added in order, so results do not
/// depend on threads.

#include <algorithm>
#include <cstddef>
#include <mhla/core/executor.hpp>
#include <span>
#include <vector>

namespace examples {

template <class T>
class ShardedGradient {
  using Index = mhla::Index;

 public:
  /// Overwrites `gradient` by the sum over the shards [0, shards) of their gradients.
  /// f(shard, worker, gradient) adds the gradient of a shard to zeros.
  template <class F>
  void operator()(mhla::ThreadPool& pool, Index shards, std::span<T> gradient, F&& f) {
    const auto count = static_cast<std::size_t>(shards);
    if (of_shards_.size() < count) of_shards_.resize(count);
    pool.for_each(shards, [&](Index s, Index worker) {
      std::vector<T>& shard = of_shards_[static_cast<std::size_t>(s)];
      shard.assign(gradient.size(), T(0));
      f(s, worker, std::span<T>(shard));
    });
    constexpr Index kPiece = 2048;
    const auto size = static_cast<Index>(gradient.size());
    pool.for_each((size + kPiece - 1) / kPiece, [&](Index piece, Index) {
      const auto begin = static_cast<std::size_t>(piece * kPiece);
      const auto end = static_cast<std::size_t>(std::min(size, (piece + 1) * kPiece));
      for (std::size_t i = begin; i < end; ++i) gradient[i] = T(0);
      for (std::size_t s = 0; s < count; ++s) {
        for (std::size_t i = begin; i < end; ++i) gradient[i] += of_shards_[s][i];
      }
    });
  }

 private:
  std::vector<std::vector<T>> of_shards_;
};

}  // namespace examples
