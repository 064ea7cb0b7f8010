#pragma once

/// \file
/// Training: AdamW over random sequences of the text, with warm-up, cosine decay and a bound on the
/// gradient; and the loss on held-out ones. Sequences go to whichever thread is free, and results
/// do not depend on threads (sharded_gradient.hpp).

#include <chrono>
#include <cmath>
#include <deque>
#include <mhla/core/executor.hpp>
#include <mhla/layer/adamw.hpp>
#include <mhla/layer/cross_entropy.hpp>
#include <numbers>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/checkpoint.hpp"
#include "../support/sharded_gradient.hpp"
#include "model.hpp"

namespace write_text {

/// Memory and threads for models with the given settings.
template <class T>
class Workers {
  struct Worker {
    CausalAttention<T> attention;
    Activations<T> activations;
    ActivationGradients<T> gradients;

    explicit Worker(const Settings& s)
        : attention(s), activations(s, s.context), gradients(s, s.context) {}
  };

 public:
  Workers(const Settings& settings, Index threads) : pool_(threads) {
    for (Index w = 0; w < pool_.workers(); ++w) workers_.emplace_back(settings);
  }

  /// The mean loss of the bytes behind each byte of the sequences, in bits.
  double evaluate(const Model<T>& model, const std::vector<Bytes>& sequences) {
    losses_.assign(sequences.size(), 0);
    pool_.for_each(std::ssize(sequences), [&](Index s, Index w) {
      const auto i = static_cast<std::size_t>(s);
      losses_[i] = read_and_forward(model, sequences[i], worker(w), {});
    });
    return mean_loss();
  }

  /// The same, and writes the gradient of the mean loss in nats.
  double learn(const Model<T>& model, const std::vector<Bytes>& sequences, std::span<T> gradient) {
    losses_.assign(sequences.size(), 0);
    sum_(pool_, std::ssize(sequences), gradient, [&](Index s, Index w, std::span<T> own) {
      const auto i = static_cast<std::size_t>(s);
      const Bytes bytes = sequences[i].first(sequences[i].size() - 1);
      Worker& memory = worker(w);
      const auto dlogits = memory.gradients.logits.zero_rows(std::ssize(bytes));
      losses_[i] = read_and_forward(model, sequences[i], memory, dlogits);
      backward(model, bytes, memory.attention, memory.activations, memory.gradients, own);
    });
    for (T& g : gradient) g /= static_cast<T>(sequences.size());
    return mean_loss();
  }

 private:
  Worker& worker(Index w) { return workers_[static_cast<std::size_t>(w)]; }
  double mean_loss() const {
    double sum = 0;
    for (const double loss : losses_) sum += loss;
    return sum / static_cast<double>(losses_.size());
  }
  /// \param dlogits  receives the gradient of the sequence's mean loss, or absent
  static double read_and_forward(const Model<T>& model, Bytes sequence, Worker& memory,
                                 mhla::MatrixView<T> dlogits) {
    const Bytes bytes = sequence.first(sequence.size() - 1);
    forward(model, bytes, memory.attention, memory.activations);
    const auto loss = mhla::cross_entropy(memory.activations.logits.rows(std::ssize(bytes)),
                                          sequence.subspan(1), dlogits);
    return loss.loss / std::numbers::ln2;
  }

  mhla::ThreadPool pool_;
  std::deque<Worker> workers_;
  examples::ShardedGradient<T> sum_;
  std::vector<double> losses_;  // of each sequence, in bits
};

/// Where training is.
struct Progress {
  Index step, steps;
  double bits;  ///< a byte, mean over the last steps
  double bytes_per_second;
  double seconds_left;
};

/// The mean of the last `count` losses, or of all if there are fewer.
inline double last_mean(std::span<const double> losses, std::size_t count) {
  const auto last = losses.last(std::min(count, losses.size()));
  double sum = 0;
  for (const double loss : last) sum += loss;
  return sum / static_cast<double>(last.size());
}

/// Takes the steps that are left.
/// \param after_step  called with a Progress; false: stop here
/// \returns the bytes that were read in a second
/// \throws std::runtime_error if the loss is not finite.
template <class T, class AfterStep>
double train(Model<T>& model, examples::TrainingState<T>& state, const Text& text,
             const Schedule& schedule, Workers<T>& workers, AfterStep&& after_step) {
  using Clock = std::chrono::steady_clock;
  const Settings& s = model.settings();
  const auto warm_up = static_cast<Index>(schedule.warm_up * static_cast<double>(schedule.steps));
  std::vector<T> gradient(model.parameters().size());
  const auto begin = Clock::now();
  const Index first = state.step();
  double speed = 0;
  for (Index step = first; step < schedule.steps; ++step) {
    const double bits =
        workers.learn(model, text.batch(s.seed, step, schedule.batch), std::span<T>(gradient));
    if (!std::isfinite(bits)) {
      throw std::runtime_error("the loss is not finite in step " + std::to_string(step + 1) +
                               ", expected a number; try a smaller --rate");
    }
    mhla::clip_gradients(gradient, schedule.gradient_norm);
    state.optimizer.step(state.parameters, gradient,
                         schedule.rate * mhla::warmup_cosine(step, warm_up, schedule.steps),
                         schedule.weight_decay);
    constrain(model.layout(), state.parameters);
    state.losses.push_back(bits);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const auto taken = static_cast<double>(step + 1 - first);
    speed = taken * static_cast<double>(schedule.batch * s.context) / seconds;
    const auto left = static_cast<double>(schedule.steps - step - 1);
    if (!after_step(Progress{step + 1, schedule.steps, last_mean(state.losses, 50), speed,
                             seconds / taken * left})) {
      break;
    }
  }
  return speed;
}

}  // namespace write_text
