#pragma once

/// \file
/// Training: AdamW over shuffled batches, with warm-up, cosine decay and a bound on the gradient.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <mhla/layer/adamw.hpp>
#include <mhla/policy/mixing_matrix.hpp>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/optimizer.hpp"
#include "workers.hpp"

namespace train_images {

struct Schedule {
  Index epochs = 5;
  Index batch = 64;
  double rate = 2e-3;          ///< largest learning rate
  double warm_up = 0.05;       ///< fraction of all steps in which the rate grows from 0
  double weight_decay = 0.05;  ///< of the weights of products
  double gradient_norm = 1;    ///< longer gradients are scaled to it
};

/// Where training is.
struct Progress {
  Index step;
  Index steps;
  double loss;      ///< mean over the last steps
  double accuracy;  ///< the same, 0..1
  double images_per_second;
  double seconds_left;
};

struct Course {
  std::vector<double> losses;  ///< of each step
  double images_per_second = 0;
  double final_loss = 0;  ///< mean over the last tenth of the steps
};

/// The tensors that training changes.
inline std::vector<examples::TrainedTensor> trained_tensors(const Layout& layout,
                                                            const Settings& settings) {
  std::vector<examples::TrainedTensor> tensors;
  for (const auto& [name, slice, role] : layout.tensors()) {
    if (role == Role::kMixing && settings.freeze_mixing) continue;
    tensors.push_back(
        {name, {slice.rows, slice.cols}, slice.begin, slice.size(), role == Role::kWeight});
  }
  return tensors;
}

/// The constraint of the mixing matrices: coefficients in [0, 1].
template <class T>
void constrain(Model<T>& model) {
  for (const LayerSlices& layer : model.layout().layers) {
    if (layer.mixing.size() > 0) mhla::clamp(layer.mixing.mixing(model.parameters()), T(0), T(1));
  }
}

/// Trains in place. Incomplete batches at the end of an epoch are left out.
/// \param report  called with a Progress after each step
/// \throws std::runtime_error if there are fewer images than in a batch, or the loss is not finite.
template <class T, class Report>
Course train(Model<T>& model, const Images& images, const Schedule& schedule, Workers<T>& workers,
             Report&& report) {
  using Clock = std::chrono::steady_clock;
  const Index batches = images.count() / schedule.batch;
  const Index steps = batches * schedule.epochs;
  if (batches == 0) {
    throw std::runtime_error("--batch is " + std::to_string(schedule.batch) +
                             ", expected at most the number of training images, which is " +
                             std::to_string(images.count()));
  }
  const auto warm_up = static_cast<Index>(schedule.warm_up * static_cast<double>(steps));
  examples::Random random(~static_cast<std::uint64_t>(model.settings().seed));
  examples::Optimizer<T> optimizer(trained_tensors(model.layout(), model.settings()));
  std::vector<T> gradient(model.parameters().size());
  Course course;
  double loss = 0, accuracy = 0, weight = 0;  // decaying sums
  const auto begin = Clock::now();
  std::vector<Index> order;
  for (Index step = 0; step < steps; ++step) {
    if (step % batches == 0) order = random.permutation(images.count());
    const auto numbers = std::span<const Index>(order).subspan(
        static_cast<std::size_t>(step % batches * schedule.batch),
        static_cast<std::size_t>(schedule.batch));
    const Score score = workers.learn(model, images, numbers, std::span<T>(gradient));
    const auto count = static_cast<double>(schedule.batch);
    if (!std::isfinite(score.loss)) {
      throw std::runtime_error("the loss is not finite in step " + std::to_string(step + 1) +
                               ", expected a number; try a smaller --rate");
    }
    mhla::clip_gradients(std::span<T>(gradient), schedule.gradient_norm);
    optimizer.step(model.parameters(), gradient,
                   schedule.rate * mhla::warmup_cosine(step, warm_up, steps),
                   schedule.weight_decay);
    constrain(model);

    course.losses.push_back(score.loss / count);
    loss = 0.98 * loss + score.loss / count;
    accuracy = 0.98 * accuracy + static_cast<double>(score.correct) / count;
    weight = 0.98 * weight + 1;
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    course.images_per_second = static_cast<double>(step + 1) * count / seconds;
    report(
        Progress{step + 1, steps, loss / weight, accuracy / weight, course.images_per_second,
                 seconds / static_cast<double>(step + 1) * static_cast<double>(steps - step - 1)});
  }
  const Index last = std::max<Index>(steps / 10, 1);
  for (Index i = steps - last; i < steps; ++i) {
    course.final_loss += course.losses[static_cast<std::size_t>(i)] / static_cast<double>(last);
  }
  return course;
}

/// Fraction of images that the model classifies right.
template <class T>
double accuracy_of(const Model<T>& model, const Images& images, Workers<T>& workers) {
  std::vector<Index> all(images.labels.size());
  std::iota(all.begin(), all.end(), Index{0});
  return static_cast<double>(workers.evaluate(model, images, all).correct) /
         static_cast<double>(images.count());
}

}  // namespace train_images
