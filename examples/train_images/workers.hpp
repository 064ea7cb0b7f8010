#pragma once

/// \file
/// Batches over threads: images go in shards of a few to whoever is free.
///
/// A batch is cut into the same shards whatever the number of threads, each shard has a gradient of
/// its own, and these are added in order; so results do not depend on threads.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <mhla/core/executor.hpp>
#include <mhla/layer/cross_entropy.hpp>
#include <span>
#include <vector>

#include "fashion_mnist.hpp"
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

/// Memory and threads for models with the given settings.
template <class T>
class Workers {
 public:
  Workers(const Settings& settings, Index threads) : pool_(threads) {
    for (Index w = 0; w < pool_.workers(); ++w) activations_.emplace_back(settings, kShard);
  }

  /// The score of the images with the given numbers.
  Score evaluate(const Model<T>& model, const Images& images, std::span<const Index> numbers) {
    return for_each_shard(numbers, [&](std::span<const Index> shard, Index, auto& activations) {
      return read_and_forward(model, images, shard, activations);
    });
  }

  /// The same, and writes the gradient of their mean loss.
  /// \param gradient  laid out as the parameters
  Score learn(const Model<T>& model, const Images& images, std::span<const Index> numbers,
              std::span<T> gradient) {
    const std::size_t shards = (numbers.size() + kShard - 1) / kShard;
    if (gradients_.size() < shards) gradients_.resize(shards);
    const Score score =
        for_each_shard(numbers, [&](std::span<const Index> shard, Index s, auto& activations) {
          std::vector<T>& own = gradients_[static_cast<std::size_t>(s)];
          own.assign(gradient.size(), T(0));
          const Score of_shard = read_and_forward(model, images, shard, activations);
          const auto count = static_cast<Index>(shard.size());
          detail::eigen(activations.dlogits.rows(count)) *=
              static_cast<T>(count) / static_cast<T>(numbers.size());
          backward(model, count, activations, std::span<T>(own));
          return of_shard;
        });
    for_each_piece(static_cast<Index>(gradient.size()), [&](std::size_t begin, std::size_t end) {
      std::fill(gradient.begin() + static_cast<Index>(begin),
                gradient.begin() + static_cast<Index>(end), T(0));
      for (std::size_t s = 0; s < shards; ++s) {
        for (std::size_t i = begin; i < end; ++i) gradient[i] += gradients_[s][i];
      }
    });
    return score;
  }

 private:
  static constexpr Index kShard = 4;

  template <class F>
  Score for_each_shard(std::span<const Index> numbers, F&& f) {
    const Index count = static_cast<Index>(numbers.size());
    scores_.assign(static_cast<std::size_t>((count + kShard - 1) / kShard), Score{});
    pool_.for_each(static_cast<Index>(scores_.size()), [&](Index s, Index w) {
      const auto shard =
          numbers.subspan(static_cast<std::size_t>(s * kShard),
                          static_cast<std::size_t>(std::min(kShard, count - s * kShard)));
      scores_[static_cast<std::size_t>(s)] = f(shard, s, activations_[static_cast<std::size_t>(w)]);
    });
    Score sum;
    for (const Score& score : scores_) sum += score;
    return sum;
  }
  template <class F>
  void for_each_piece(Index count, F&& f) {
    constexpr Index kPiece = 2048;
    pool_.for_each((count + kPiece - 1) / kPiece, [&](Index p, Index) {
      f(static_cast<std::size_t>(p * kPiece),
        static_cast<std::size_t>(std::min(count, (p + 1) * kPiece)));
    });
  }

  /// Leaves the gradient of the shard's mean loss in a.dlogits.
  static Score read_and_forward(const Model<T>& model, const Images& images,
                                std::span<const Index> shard, Activations<T>& a) {
    const auto count = static_cast<Index>(shard.size());
    std::uint8_t labels[kShard];
    const mhla::MatrixView<T> tokens = a.tokens.rows(count * kTokens);
    for (Index i = 0; i < count; ++i) {
      const Index number = shard[static_cast<std::size_t>(i)];
      read_tokens(images, number, tokens.middle_rows(i * kTokens, kTokens));
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
  std::vector<std::vector<T>> gradients_;   // of each shard
  std::vector<Score> scores_;               // of each shard
};

}  // namespace train_images
