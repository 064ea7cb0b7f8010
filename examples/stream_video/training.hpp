#pragma once

/// \file
/// The training of a denoiser, and the check of its gradient.

#include <cstdio>
#include <mhla/layer/adamw.hpp>
#include <mhla/mhla.hpp>
#include <span>
#include <vector>

#include "../support/gradient_check.hpp"
#include "clips.hpp"
#include "model.hpp"

namespace stream_video {

/// Adds the gradient of the mean square error of a batch. Returns the error.
template <class T>
double learn(const Denoiser<T>& model, const Batch<T>& batch, std::span<T> gradient,
             const mhla::ExecutorRef& executor) {
  std::vector<std::byte> kept(model.kept_bytes(batch.noisy.rows()));
  mhla::Matrix<T> y(batch.noisy.rows(), batch.noisy.cols()), dy;
  model(batch.noisy, batch.levels, y, {.executor = executor, .kept = kept});
  dy = y - batch.clean;
  const double loss = static_cast<double>(dy.squaredNorm()) / static_cast<double>(dy.size());
  dy *= static_cast<T>(2 / static_cast<double>(dy.size()));
  model.backward(batch.noisy, batch.levels, dy, {}, {}, gradient,
                 {.executor = executor, .kept = kept});
  return loss;
}

/// Trains a model by AdamW, and prints the mean loss of each tenth of the steps.
inline void train(Denoiser<float>& model, Index steps, Index clips, double rate, std::uint64_t seed,
                  const mhla::ExecutorRef& executor) {
  const auto parameters = model.parameters();
  mhla::AdamWState<float> state(std::ssize(parameters));
  std::vector<float> gradient(parameters.size());
  double sum = 0;
  for (Index step = 0; step < steps; ++step) {
    std::ranges::fill(gradient, 0.0F);
    const Batch<float> batch(model.options(), clips, seed + static_cast<std::uint64_t>(step));
    sum += learn<float>(model, batch, gradient, executor);
    mhla::clip_gradients(gradient, 1);
    mhla::adamw<float>(parameters, gradient, state,
                       rate * mhla::warmup_cosine(step, steps / 20 + 1, steps), {.weight_decay = 0},
                       executor);
    const Index tenth = steps / 10;
    if (tenth == 0 || (step + 1) % tenth != 0) continue;
    std::printf("step %5td   loss %.4f\n", step + 1, sum / static_cast<double>(tenth));
    std::fflush(stdout);
    sum = 0;
  }
}

/// Compares the gradient of a small model in double with differences of its loss.
/// \returns true if all errors are small
inline bool gradient_is_right() {
  Denoiser<double> model(
      {.channels = 4, .width = 8, .depth = 2, .heads = 2, .side = 2, .frames = 4, .reach = 2});
  examples::Random random(2);
  for (double& p : model.parameters()) p = 0.3 * random.normal();
  const Batch<double> batch(model.options(), 2, 1);
  std::vector<double> gradient(model.parameters().size()), ignored(gradient);
  learn<double>(model, batch, gradient, {});
  std::vector<examples::TrainedTensor> tensors;
  for (const mhla::Parameter& p : model.table().all()) {
    tensors.push_back({p.name, p.shape, p.begin, p.size, false});
  }
  const std::vector<double> row(model.parameters().begin(), model.parameters().end());
  const auto worst =
      examples::gradient_error(tensors, row, gradient, 1e-6, [&](std::span<const double> at) {
        std::ranges::copy(at, model.parameters().begin());
        return learn<double>(model, batch, ignored, {});
      });
  std::printf("largest error of a gradient %.1e, in %s\n", worst.relative, worst.tensor.c_str());
  return worst.relative <= examples::kLargestGradientError;
}

}  // namespace stream_video
