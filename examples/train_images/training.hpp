#pragma once

/// \file
/// Training on shuffled batches (support/training_loop.hpp), and the accuracy.

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "../support/progress_line.hpp"
#include "../support/random.hpp"
#include "../support/training_loop.hpp"
#include "checkpoint.hpp"
#include "workers.hpp"

namespace train_images {

/// The images of each step. Every epoch shuffles them again, and drops an incomplete last batch.
class Batches {
 public:
  Batches(Index images, Index batch, Index seed)
      : images_(images), batch_(batch), seed_(static_cast<std::uint64_t>(seed)) {}

  Index in_epoch() const { return images_ / batch_; }
  /// Numbers of the images of a step, valid until the next call.
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

/// Fraction of images that the model classifies correctly.
template <class T>
double accuracy_of(const Model<T>& model, const Images& images, Workers<T>& workers) {
  std::vector<Index> all(images.labels.size());
  std::iota(all.begin(), all.end(), Index{0});
  return static_cast<double>(workers.evaluate(model, images, all).correct) /
         static_cast<double>(images.count());
}

/// A training that has ended or was interrupted.
struct Trained {
  std::vector<double> losses;    ///< of each step
  double images_per_second = 0;  ///< of this run
};

/// Trains on the first `count` images; `run` and the schedule are those of examples::train.
inline Trained train(const examples::TrainingRun& run, const examples::Schedule& schedule,
                     Model<float>& model, Workers<float>& workers, const Images& images,
                     Index count) {
  std::vector<float> row(model.parameters().size());
  auto state = state_of(model, row);
  Batches batches(count, schedule.batch, model.settings().seed);
  const auto per_step = static_cast<double>(schedule.batch);
  const double speed = examples::train(
      run, schedule, state,
      [&](Index step, std::span<float> gradient) {
        return workers.learn(model, images, batches.of_step(step), gradient).loss / per_step;
      },
      [&] {
        examples::constrain_mixing(model.table(), std::span<float>(row));
        model.set_parameters(row);
      },
      [&](double loss, double steps) {
        return examples::text("loss %.4f  %5.0f images/s", loss, steps * per_step);
      });
  return {state.losses, speed * per_step};
}

}  // namespace train_images
