#pragma once

/// \file
/// A training by AdamW, from the start or from a checkpoint, to its end or to Ctrl-C. It has
/// warm-up and cosine decay of the rate, a bound on the gradient and a progress line. It writes a
/// checkpoint every minute, at Ctrl-C and at the end.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <mhla/layer/adamw.hpp>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint.hpp"
#include "interrupt.hpp"
#include "progress_line.hpp"

namespace examples {

struct Schedule {
  mhla::Index steps = 800;
  mhla::Index batch = 4;       ///< items of a step
  double rate = 3e-3;          ///< largest learning rate
  double warm_up = 0.05;       ///< fraction of all steps in which the rate grows from 0
  double weight_decay = 0.05;  ///< of the weights of products
  double gradient_norm = 1;    ///< longer gradients are scaled to it
};

/// \throws std::runtime_error naming the option.
inline void expect_valid(const Schedule& s) {
  if (s.rate > 0 && s.rate <= 1) return;
  throw std::runtime_error("--rate is " + std::to_string(s.rate) +
                           ", expected a number above 0, at most 1");
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Schedule, steps, batch, rate, warm_up, weight_decay,
                                   gradient_norm)

/// The mean of the last `count` losses, or of all if there are fewer.
inline double last_mean(std::span<const double> losses, std::size_t count) {
  const auto last = losses.last(std::min(count, losses.size()));
  double sum = 0;
  for (const double loss : last) sum += loss;
  return sum / static_cast<double>(last.size());
}

/// The run of a training, and its file.
struct TrainingRun {
  std::string name;  ///< of what is trained
  std::filesystem::path checkpoint;
  std::string program;     ///< that trains
  nlohmann::json depends;  ///< settings, schedule and data
  bool resume = false;     ///< from the checkpoint, if it is there
  bool resumable = true;   ///< whether the program has --resume
  bool quiet = false;      ///< neither saves nor says where it is: another rank does
  std::function<bool()> stop = interrupted;  ///< asked after each step
};

/// Takes the remaining steps, and saves; prints a line after an interrupt.
/// \param learn  learn(step, gradient) writes the gradient and returns the loss
/// \param update called after each step
/// \param show   show(mean loss of 50 steps, steps per second) returns the progress text
/// \returns steps per second; examples::interrupted() is true if steps remain
/// \throws std::runtime_error if the loss is not finite; what load_checkpoint throws.
template <class T, class Learn, class Update, class Show>
double train(const TrainingRun& run, const Schedule& schedule, TrainingState<T>& state,
             Learn&& learn, Update&& update, Show&& show) {
  using Clock = std::chrono::steady_clock;
  if (run.resume && std::filesystem::exists(run.checkpoint)) {
    load_checkpoint(run.checkpoint, run.program, run.depends, schedule.steps, state);
    update();
  }
  const auto save = [&] {
    if (!run.quiet) save_checkpoint(run.checkpoint, run.program, run.depends, state);
  };
  const auto warm_up =
      static_cast<mhla::Index>(schedule.warm_up * static_cast<double>(schedule.steps));
  std::vector<T> gradient(state.parameters.size());
  ProgressLine line(run.name);
  const auto begin = Clock::now();
  auto saved = begin;
  double speed = 0;
  for (mhla::Index step = state.step(), first = step; step < schedule.steps; ++step) {
    const double loss = learn(step, std::span<T>(gradient));
    if (!std::isfinite(loss)) {
      throw std::runtime_error("the loss is not finite in step " + std::to_string(step + 1) +
                               ", expected a number; try a smaller --rate");
    }
    mhla::clip_gradients(gradient, schedule.gradient_norm);
    state.optimizer.step(state.parameters, gradient,
                         schedule.rate * mhla::warmup_cosine(step, warm_up, schedule.steps),
                         schedule.weight_decay);
    update();
    state.losses.push_back(loss);
    const auto now = Clock::now();
    const std::chrono::duration<double> seconds = now - begin;
    speed = static_cast<double>(step + 1 - first) / seconds.count();
    const auto left = static_cast<double>(schedule.steps - step - 1);
    if (!run.quiet) {
      line(step + 1, schedule.steps, left / speed,
           [&] { return show(last_mean(state.losses, 50), speed); });
    }
    if (run.stop()) break;
    if (now - saved > std::chrono::minutes(1)) {
      save();
      saved = now;
    }
  }
  save();
  if (interrupted() && !run.quiet) {
    const char* const on = run.resume      ? "; the same command goes on"
                           : run.resumable ? "; --resume goes on"
                                           : "";
    std::fprintf(stderr, "\nstopped after step %td of %td of %s%s\n", state.step(), schedule.steps,
                 run.name.c_str(), on);
  }
  return speed;
}

}  // namespace examples
