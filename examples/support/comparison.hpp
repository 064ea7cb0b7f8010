#pragma once

/// \file
/// Shared parts of programs that train a model once per attention: options, checks before the first
/// step, and the loop over the attentions. A training is saved to PREFIX.ATTENTION.safetensors
/// every minute, at Ctrl-C and at the end. --resume continues it to the same bits as without a
/// stop.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <limits>
#include <mhla/core/scalar.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "attention_names.hpp"
#include "interrupt.hpp"
#include "results.hpp"
#include "training_loop.hpp"

namespace examples {

/// Options of the command line of each program.
struct Comparison {
  explicit Comparison(std::string name, const Schedule& s = {})
      : program(std::move(name)), schedule(s) {}

  std::string program;
  Schedule schedule;
  std::vector<std::string> attentions{"softmax", "linear", "mhla"};
  mhla::Index threads = std::max<mhla::Index>(std::thread::hardware_concurrency(), 1);
  std::string output = program;
  bool quick = false;
  bool resume = false;
  bool check = false;

  std::filesystem::path checkpoint(const std::string& attention) const {
    return output + "." + attention + ".safetensors";
  }
};

/// Adds the options of a run.
/// \param quick, check  descriptions of these options
inline void add_run_options(CLI::App& app, Comparison& o, const char* quick, const char* check) {
  app.add_flag("--quick", o.quick, quick);
  app.add_option("--threads", o.threads, "workers")->check(CLI::Range(1, 1024));
  app.add_option("--output", o.output, "prefix of the files that are written");
  app.add_flag("--resume", o.resume, "go on from the checkpoints of such a run");
  app.add_flag("--check", o.check, check)->group("");
}

/// Begins the group of the model's options.
inline void add_attention_option(CLI::App& app, Comparison& o) {
  app.option_defaults()->group("Model");
  app.add_option("--attention", o.attentions, "softmax, linear or mhla; repeatable")
      ->check(CLI::IsMember({"softmax", "linear", "mhla"}))
      ->expected(1)
      ->take_all();
}

/// Adds the option of the seed.
/// \param of  the data that follow from the seed
inline void add_seed_option(CLI::App& app, mhla::Index& seed, const char* of) {
  app.add_option("--seed", seed, of)
      ->check(CLI::Range(mhla::Index{0}, std::numeric_limits<mhla::Index>::max()));
}

/// Begins the group of the training's options, without its length.
/// \param items  name of the items of a step
inline void add_training_options(CLI::App& app, Comparison& o, const std::string& items,
                                 mhla::Index most) {
  app.option_defaults()->group("Training");
  app.add_option("--batch", o.schedule.batch, items + " of a step")
      ->check(CLI::Range(mhla::Index{1}, most));
  app.add_option("--rate", o.schedule.rate, "largest learning rate")->check(CLI::Number);
}
/// Adds the option of the training's length.
inline CLI::Option* add_steps_option(CLI::App& app, Comparison& o) {
  return app.add_option("--steps", o.schedule.steps, "of training")
      ->check(CLI::Range(mhla::Index{1}, mhla::Index{100'000'000}));
}

/// \throws std::runtime_error unless results can be written, and there is a checkpoint to resume.
inline void expect_files(const Comparison& o) {
  expect_folder("--output", o.output + ".json");
  const auto there = [&o](const std::string& attention) {
    return std::filesystem::exists(o.checkpoint(attention));
  };
  if (!o.resume || std::ranges::any_of(o.attentions, there)) return;
  throw std::runtime_error(o.checkpoint(o.attentions.front()).string() +
                           " is not there, expected a checkpoint for --resume");
}

/// The outcome of one training.
template <class Settings>
struct Outcome {
  Settings settings{};
  mhla::Index parameters = 0;
  std::vector<double> losses{};  ///< of each step

  std::string name() const { return name_of(kAttentions, settings.attention); }
  /// Mean loss of the last tenth of the steps.
  double training_loss() const {
    return last_mean(losses, std::max<std::size_t>(losses.size() / 10, 1));
  }
};

/// Results of run_one(settings) for each attention; nothing after an interrupt, for which run_one
/// returns nothing.
template <class Settings, class RunOne>
auto run_each(const Comparison& o, Settings settings, RunOne&& run_one)
    -> std::optional<std::vector<typename decltype(run_one(settings))::value_type>> {
  catch_interrupts();
  std::vector<typename decltype(run_one(settings))::value_type> results;
  for (const std::string& attention : o.attentions) {
    settings.attention = named(kAttentions, attention);
    auto result = run_one(std::as_const(settings));
    if (!result) return std::nullopt;
    results.push_back(std::move(*result));
  }
  return results;
}

/// The part of a training that is equal for all programs.
/// \param depends  settings and data that the training depends on besides the schedule
inline TrainingRun training_run(const Comparison& o, Attention attention, nlohmann::json depends) {
  const std::string name = name_of(kAttentions, attention);
  depends["schedule"] = o.schedule;
  return {.name = name,
          .checkpoint = o.checkpoint(name),
          .program = o.program,
          .depends = std::move(depends),
          .resume = o.resume};
}

}  // namespace examples
