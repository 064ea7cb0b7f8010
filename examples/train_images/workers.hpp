#pragma once

/// \file
/// Batches over threads: free threads take the next shard of a few images.
///
/// Results do not depend on threads (sharded_gradient.hpp).

#include <algorithm>
#include <cstdint>
#include <deque>
#include <mhla/core/executor.hpp>
#include <mhla/layer/cross_entropy.hpp>
#include <span>
#include <vector>

#include "../support/sharded_gradient.hpp"
#include "model.hpp"

namespace train_images {

/// Sums over images.
struct Score {
  double loss = 0;
  Index correct = 0;

  Score& operator+=(const Score& other) {
    loss += other.loss;
    correct += other.correct;
    return *this;
  }
};

/// Memory and threads for models like the given one.
template <class T>
class Workers {
 public:
  Workers(const Model<T>& model, Index threads) : pool_(threads) {
    for (Index w = 0; w < pool_.workers(); ++w) activations_.emplace_back(model, kShard);
  }

  /// The score of images `numbers`.
  Score evaluate(const Model<T>& model, const Images& images, std::span<const Index> numbers) {
    scores_.assign(shards(numbers), Score{});
    pool_.for_each(std::ssize(scores_), [&](Index s, Index w) {
      scores_[static_cast<std::size_t>(s)] =
          read_and_forward(model, images, shard_of(numbers, s), of_worker(w));
    });
    return sum();
  }

  /// The score of images `numbers`; writes the gradient of their mean loss.
  /// \param gradient  in the layout of the parameters
  Score learn(const Model<T>& model, const Images& images, std::span<const Index> numbers,
              std::span<T> gradient) {
    scores_.assign(shards(numbers), Score{});
    gradient_(pool_, std::ssize(scores_), gradient,
              [&](Index s, Index w, std::span<T> shard_gradient) {
                const auto shard = shard_of(numbers, s);
                const auto count = static_cast<Index>(shard.size());
                Activations<T>& activations = of_worker(w);
                scores_[static_cast<std::size_t>(s)] =
                    read_and_forward(model, images, shard, activations);
                const auto dlogits = activations.dlogits.rows(count);
                for (Index i = 0; i < count; ++i) {
                  for (Index j = 0; j < dlogits.cols; ++j) {
                    dlogits(i, j) *= static_cast<T>(count) / static_cast<T>(numbers.size());
                  }
                }
                backward(model, count, activations, shard_gradient);
              });
    return sum();
  }

 private:
  static constexpr Index kShard = 4;

  static std::size_t shards(std::span<const Index> numbers) {
    return (numbers.size() + kShard - 1) / kShard;
  }
  static std::span<const Index> shard_of(std::span<const Index> numbers, Index s) {
    const Index count = static_cast<Index>(numbers.size());
    return numbers.subspan(static_cast<std::size_t>(s * kShard),
                           static_cast<std::size_t>(std::min(kShard, count - s * kShard)));
  }
  Activations<T>& of_worker(Index w) { return activations_[static_cast<std::size_t>(w)]; }
  Score sum() const {
    Score sum;
    for (const Score& score : scores_) sum += score;
    return sum;
  }

  /// Reads and classifies a shard; writes the gradient of its mean loss to a.dlogits.
  static Score read_and_forward(const Model<T>& model, const Images& images,
                                std::span<const Index> shard, Activations<T>& a) {
    const auto count = static_cast<Index>(shard.size());
    std::uint8_t labels[kShard];
    const Settings& settings = model.settings();
    const mhla::MatrixView<T> tokens = a.tokens.rows(count * settings.tokens());
    for (Index i = 0; i < count; ++i) {
      const Index number = shard[static_cast<std::size_t>(i)];
      read_tokens(images, number, tokens.middle_rows(i * settings.tokens(), settings.tokens()),
                  settings.grid);
      labels[i] = images.labels[static_cast<std::size_t>(number)];
    }
    forward(model, count, a);
    const auto of_shard = mhla::cross_entropy(a.logits.rows(count),
                                              std::span<const std::uint8_t>(labels, shard.size()),
                                              a.dlogits.zero_rows(count));
    return {of_shard.loss * static_cast<double>(count), of_shard.correct};
  }

  mhla::ThreadPool pool_;
  std::deque<Activations<T>> activations_;  // of each worker
  examples::ShardedGradient<T> gradient_;
  std::vector<Score> scores_;  // of each shard
};

}  // namespace train_images
