#pragma once

/// \file
/// Training, and drawing with a trained model. Free threads take the next shard of a few images;
/// results do not depend on threads (sharded_gradient.hpp).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <mhla/core/executor.hpp>
#include <span>
#include <vector>

#include "../support/random.hpp"
#include "../support/sharded_gradient.hpp"
#include "../support/training_loop.hpp"
#include "diffusion.hpp"
#include "passes.hpp"

namespace draw_images {

constexpr double kClassless = 0.1;  // fraction of images that are trained without their class

/// Memory and threads for models like the given one.
template <class T>
class Workers {
 public:
  Workers(const Model<T>& model, mhla::ThreadPool& pool) : pool_(pool) {
    for (Index w = 0; w < pool_.workers(); ++w) activations_.emplace_back(model, kShard);
  }

  /// The mean squared error of v over the images of a step, and its gradient.
  /// \param gradient  overwritten, or empty
  double learn(const Model<T>& model, const examples::Images& images,
               const examples::Schedule& schedule, Index step, std::span<T> gradient) {
    const Index shards = (schedule.batch + kShard - 1) / kShard;
    losses_.assign(static_cast<std::size_t>(shards), 0);
    const auto of_shard = [&](Index s, Index w, std::span<T> shard) {
      Activations<T>& a = activations_[static_cast<std::size_t>(w)];
      const Index begin = s * kShard, count = std::min(kShard, schedule.batch - begin);
      for (Index i = 0; i < count; ++i) {
        show(images, schedule, model.settings().seed, step, begin + i, i, a);
      }
      losses_[static_cast<std::size_t>(s)] = loss_of(model, count, schedule.batch, a);
      if (!shard.empty()) backward(model, count, a, shard);
    };
    if (gradient.empty()) {
      pool_.for_each(shards, [&](Index s, Index w) { of_shard(s, w, {}); });
    } else {
      sum_(pool_, shards, gradient, of_shard);
    }
    double sum = 0;
    for (const double loss : losses_) sum += loss;
    return sum;
  }

  /// Draws images [images, kImage]; image i is of class i % 10.
  mhla::Matrix<T> draw(const Model<T>& model, const Drawing& drawing, Index set) {
    mhla::Matrix<T> all(drawing.images, kImage);
    pool_.for_each((drawing.images + kShard - 1) / kShard, [&](Index s, Index w) {
      const Index begin = s * kShard, count = std::min(kShard, drawing.images - begin);
      for (Index i = begin; i < begin + count; ++i) {
        examples::Random random = stream({model.settings().seed, -1 - set, i});
        for (Index j = 0; j < kImage; ++j) all(i, j) = static_cast<T>(random.normal());
      }
      Activations<T>& a = activations_[static_cast<std::size_t>(w)];
      const std::span<T> x(all.row(begin).data(), static_cast<std::size_t>(count * kImage));
      ddim(x, span(a.doutput, count), drawing.steps,
           [&](std::span<const T> noisy, double t, std::span<T> x0) {
             predict(model, noisy, t, drawing.guidance, begin, count, a, x0);
           });
    });
    return all;
  }

 private:
  static constexpr Index kShard = 8;

  static std::span<T> span(Buffer<T>& images, Index count) {
    return {images.rows(count).data, static_cast<std::size_t>(count * kImage)};
  }
  /// A separate generator for every combination of the numbers.
  static examples::Random stream(std::initializer_list<Index> numbers) {
    std::uint64_t seed = 0;
    for (const Index n : numbers) {
      seed = examples::Random(seed ^ static_cast<std::uint64_t>(n)).bits();
    }
    return examples::Random(seed);
  }

  /// Writes image `number` of a step, with noise, to row i of the activations, and v to doutput.
  /// Times of a batch are spread evenly.
  static void show(const examples::Images& images, const examples::Schedule& schedule, Index seed,
                   Index step, Index number, Index i, Activations<T>& a) {
    examples::Random random = stream({seed, step, number});
    const Index shown = random.below(images.count());
    const bool classless = random.uniform() < kClassless;
    const double t =
        (static_cast<double>(number) + random.uniform()) / static_cast<double>(schedule.batch);
    T* const x = a.pixels.rows(i + 1).row(i);
    T* const v = a.doutput.rows(i + 1).row(i);
    read_pixels(images, shown, x);
    const Mixture mixture(t);
    for (Index j = 0; j < kImage; ++j) {
      const double image = static_cast<double>(x[j]), noise = random.normal();
      x[j] = static_cast<T>(mixture.image * image + mixture.noise * noise);
      v[j] = static_cast<T>(mixture.image * noise - mixture.noise * image);
    }
    a.times[static_cast<std::size_t>(i)] = t;
    a.classes[static_cast<std::size_t>(i)] =
        classless ? kNoClass : images.labels[static_cast<std::size_t>(shown)];
  }

  /// The shard's part of the mean over the batch. Replaces v in doutput by the gradient of the
  /// output.
  static double loss_of(const Model<T>& model, Index count, Index batch, Activations<T>& a) {
    forward(model, count, a);
    const auto output = span(a.output, count), v = span(a.doutput, count);
    const double numbers = static_cast<double>(batch * kImage);
    double sum = 0;
    for (std::size_t j = 0; j < v.size(); ++j) {
      const T error = output[j] - v[j];
      sum += static_cast<double>(error) * static_cast<double>(error);
      v[j] = error * static_cast<T>(2 / numbers);
    }
    return sum / numbers;
  }

  /// Writes the prediction of x_0, clamped to [-1, 1]. It follows from v without class, plus
  /// `guidance` times the difference to v of the class.
  static void predict(const Model<T>& model, std::span<const T> noisy, double t, double guidance,
                      Index begin, Index count, Activations<T>& a, std::span<T> x0) {
    std::copy(noisy.begin(), noisy.end(), a.pixels.rows(count).data);
    a.times.assign(a.times.size(), t);
    const auto v = span(a.output, count);
    a.classes.assign(a.classes.size(), kNoClass);
    forward(model, count, a);
    std::copy(v.begin(), v.end(), x0.begin());
    for (Index i = 0; i < count; ++i) {
      a.classes[static_cast<std::size_t>(i)] = (begin + i) % kClasses;
    }
    forward(model, count, a);
    const Mixture at(t);
    const auto image = static_cast<T>(at.image), noise = static_cast<T>(at.noise);
    for (std::size_t j = 0; j < v.size(); ++j) {
      const T guided = x0[j] + static_cast<T>(guidance) * (v[j] - x0[j]);
      x0[j] = std::clamp(image * noisy[j] - noise * guided, T(-1), T(1));
    }
  }

  mhla::ThreadPool& pool_;
  std::deque<Activations<T>> activations_;  // of each worker
  examples::ShardedGradient<T> sum_;
  std::vector<double> losses_;  // of each shard
};

/// Updates the moving average of the parameters, over about the last third of the steps so far,
/// from step 1,500 on over the last 500. Older parameters have smaller weights.
template <class T>
void average(examples::TrainingState<T>& state) {
  const auto taken = static_cast<double>(state.step());
  const auto keep = static_cast<T>(std::min(0.998, (1 + taken) / (4 + taken)));
  for (const examples::TrainedTensor& tensor : state.optimizer.tensors()) {
    const auto to = tensor.of(state.average), now = tensor.of(state.parameters);
    for (std::size_t i = 0; i < now.size(); ++i) to[i] = keep * to[i] + (1 - keep) * now[i];
  }
}

/// Trains to the end or to an interrupt, and saves (support/training_loop.hpp).
/// \returns images per second
inline double train(const examples::TrainingRun& run, const examples::Schedule& schedule,
                    Model<float>& model, examples::TrainingState<float>& state,
                    const examples::Images& images, Workers<float>& workers) {
  const auto batch = static_cast<double>(schedule.batch);
  return batch * examples::train(
                     run, schedule, state,
                     [&](Index step, std::span<float> gradient) {
                       average(state);
                       return workers.learn(model, images, schedule, step, gradient);
                     },
                     [&] {
                       examples::constrain_mixing(model.table(), state.parameters);
                       model.set_parameters(state.parameters);
                     },
                     [&](double loss, double speed) {
                       return examples::text("loss %.4f  %5.0f images/s", loss, batch * speed);
                     });
}

}  // namespace draw_images
