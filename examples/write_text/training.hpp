#pragma once

/// \file
/// A training on a text (support/training_loop.hpp), and its options of the command line.

#include <CLI/CLI.hpp>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/command_line.hpp"
#include "../support/comparison.hpp"
#include "../support/ranks.hpp"
#include "workers.hpp"

namespace write_text {

inline constexpr char kProgram[] = "write_text";  ///< whose checkpoints these are

struct TrainingOptions : examples::Comparison {
  TrainingOptions() : Comparison(kProgram) {}

  Settings settings;
  Index held_out = 0;
  std::string text;
};

inline void add_text_options(CLI::App& app, TrainingOptions& o) {
  app.add_option("--text", o.text, "file to read, any bytes; its last twentieth is held out")
      ->take_last();
  app.add_option("--held-out", o.held_out, "sequences to test on, 0 for all")
      ->check(CLI::Range(Index{0}, std::numeric_limits<Index>::max()));
}

/// Adds options of the model, except its attention, and of its training.
inline void add_model_options(CLI::App& app, TrainingOptions& o) {
  const auto range = [](Index low, Index high) { return CLI::Range(low, high); };
  app.option_defaults()->group("Model");
  Settings& s = o.settings;
  app.add_option("--dim", s.dim, "channels")->check(range(2, 4096));
  app.add_option("--depth", s.depth, "layers")->check(range(1, 64));
  app.add_option("--heads", s.heads, "heads of an attention")->check(range(1, 1024));
  app.add_option("--context", s.context, "bytes of a sequence")->check(range(1, 1 << 20));
  app.add_option("--block", s.block, "MHLA: tokens of a block")->check(range(1, 1 << 20));
  examples::add_choice(app, "--init", s.init, examples::kMixingStarts,
                       "MHLA: mixing at the start, uniform or locality");
  app.add_flag("--freeze-mixing", s.freeze_mixing, "MHLA: mixing as at the start");
  examples::add_seed_option(app, s.seed, "of parameters and of the order of sequences");
  add_training_options(app, o, "sequences", 65536);
  add_steps_option(app, o);
}

/// Sets the values of --quick for options that the parsed command line leaves out.
/// \throws std::runtime_error naming the option.
inline void complete(const CLI::App& app, TrainingOptions& o) {
  if (o.quick) {
    examples::set_quick_values(app, {{"--dim", o.settings.dim, 32},
                                     {"--depth", o.settings.depth, 2},
                                     {"--context", o.settings.context, 512},
                                     {"--steps", o.schedule.steps, 40}});
  }
  if (o.text.empty() && !o.check) throw std::runtime_error("--text is missing, expected a file");
  expect_valid(o.settings);
  expect_valid(o.schedule);
}

/// A training that has ended or was interrupted.
struct Trained {
  std::vector<double> losses;   ///< of each step, bits a byte
  double bytes_per_second = 0;  ///< that were read in this run
};

/// Trains to the end or to an interrupt. Rank 0 prints the progress and saves.
template <mhla::distributed::Communicator C>
Trained train(C& comm, Model<float>& model, const TrainingOptions& o, const Text& text,
              Workers<float>& workers) {
  const Settings& s = model.settings();
  examples::TrainingState<float> state{
      model.parameters(), examples::Optimizer<float>(trained_tensors(model.layout(), s))};
  auto run = training_run(o, s.attention, {{"settings", s}, {"text", text.to_json()}});
  run.quiet = comm.rank() != 0;
  run.stop = [&comm] { return examples::any_interrupted(comm); };
  const auto bytes = static_cast<double>(o.schedule.batch * s.context);  // of a step
  const double speed = examples::train(
      run, o.schedule, state,
      [&](Index step, std::span<float> gradient) {
        return workers.learn(comm, model, text.batch(s.seed, step, o.schedule.batch), gradient);
      },
      [&] { constrain(model.layout(), model.parameters()); },
      [&](double bits, double steps) {
        return examples::text("%.4f bits a byte  %6.0f bytes/s", bits, steps * bytes);
      });
  return {state.losses, bytes * speed};
}

}  // namespace write_text
