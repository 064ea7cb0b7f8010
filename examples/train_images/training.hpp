#pragma once

/// \file
/// Training on shuffled batches (support/training_loop.hpp), and the accuracy.

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "../support/random.hpp"
#include "workers.hpp"

namespace train_images {

/// The images of each step: every epoch shuffles them anew; what is left of them at its end, less
/// than a batch, is left out.
class Batches {
 public:
  Batches(Index images, Index batch, Index seed)
      : images_(images), batch_(batch), seed_(static_cast<std::uint64_t>(seed)) {}

  Index in_epoch() const { return images_ / batch_; }
  /// The numbers of the images, valid until the next call.
  std::span<const Index> of_step(Index step) {
    if (const Index epoch = step / in_epoch(); epoch != epoch_) {
      epoch_ = epoch;
      examples::Random random(~seed_ * 1000003 + static_cast<std::uint64_t>(epoch));
      order_ = random.permutation(images_);
    }
    return std::span<const Index>(order_).subspan(
        static_cast<std::size_t>(step % in_epoch() * batch_), static_cast<std::size_t>(batch_));
  }

 private:
  Index images_, batch_;
  std::uint64_t seed_;
  Index epoch_ = -1;
  std::vector<Index> order_;
};

/// Fraction of images that the model classifies right.
template <class T>
double accuracy_of(const Model<T>& model, const Images& images, Workers<T>& workers) {
  std::vector<Index> all(images.labels.size());
  std::iota(all.begin(), all.end(), Index{0});
  return static_cast<double>(workers.evaluate(model, images, all).correct) /
         static_cast<double>(images.count());
}

}  // namespace train_images
