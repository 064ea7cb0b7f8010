/// \file
/// Trains a language model of bytes on a text with softmax, linear and MHLA attention, and writes.
///
/// All three see the same sequences in the same order and start from the same parameters. A
/// sequence is N = 2,048 bytes; MHLA has blocks of W = 64 and learns how each reads the earlier
/// ones. Forward and backward passes, layers, optimiser and streaming states are the library's; the
/// model is in write_text/model.hpp.
///
/// Ends with the bits a byte of held-out text costs, what a token costs by its position, a
/// paragraph of each model, the proof that MHLA token by token is MHLA over whole sequences
/// (write_text/stream_proof.hpp), PREFIX.json with all results and PREFIX.png. A training is saved
/// to PREFIX.ATTENTION.safetensors every minute, at Ctrl-C and at the end; --resume goes on from
/// there, to the same bits as without a stop.
///
/// The text is the King James Bible (public domain), as Debian's bible-kjv prints it.
///
/// Run:  bash examples/run.sh write_text [--quick] [--resume] [options], see --help

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/command_line.hpp"
#include "support/comparison.hpp"
#include "support/results.hpp"
#include "write_text/report.hpp"

namespace {

using namespace write_text;

/// What the command line says.
struct Options : examples::Comparison {
  using Comparison::Comparison;

  Settings settings;
  Index held_out = 0;
  std::string text;
  std::string prompt = "And it came to pass";
  Index letters = 600;
  double temperature = 0.7;
};

/// \throws CLI::ParseError, std::runtime_error naming the option.
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  const auto range = [](Index low, Index high) { return CLI::Range(low, high); };
  const Index most = std::numeric_limits<Index>::max();
  add_run_options(app, o, "seconds: a small model, 40 steps of 512 bytes",
                  "check gradients and decoding in double");
  app.add_option("--text", o.text, "file to read, any bytes; its last twentieth is held out")
      ->take_last();
  app.add_option("--held-out", o.held_out, "sequences to test on, 0 for all")
      ->check(range(0, most));

  add_attention_option(app, o);
  Settings& s = o.settings;
  const auto* const dim = app.add_option("--dim", s.dim, "channels")->check(range(2, 4096));
  const auto* const depth = app.add_option("--depth", s.depth, "layers")->check(range(1, 64));
  app.add_option("--heads", s.heads, "heads of an attention")->check(range(1, 1024));
  const auto* const context =
      app.add_option("--context", s.context, "bytes of a sequence")->check(range(1, 1 << 20));
  app.add_option("--block", s.block, "MHLA: tokens of a block")->check(range(1, 1 << 20));
  std::string init = examples::name_of(examples::kMixingStarts, s.mixing_start);
  app.add_option("--init", init, "MHLA: mixing at the start, uniform or locality")
      ->check(CLI::IsMember({"uniform", "locality"}));
  app.add_flag("--freeze-mixing", s.freeze_mixing, "MHLA: mixing as at the start");
  app.add_option("--seed", s.seed, "of parameters and of the order of sequences")
      ->check(range(0, most));

  add_training_options(app, o, "sequences", 65536);
  const auto* const steps = add_steps_option(app, o);

  app.option_defaults()->group("Writing");
  app.add_option("--prompt", o.prompt, "what the models go on from");
  app.add_option("--letters", o.letters, "that a model writes")->check(range(1, most));
  app.add_option("--temperature", o.temperature, "of the draw")->check(CLI::PositiveNumber);
  app.parse(argc, argv);

  s.mixing_start = examples::named(examples::kMixingStarts, init);
  if (o.quick && dim->count() == 0) s.dim = 32;
  if (o.quick && depth->count() == 0) s.depth = 2;
  if (o.quick && context->count() == 0) s.context = 512;
  if (o.quick && steps->count() == 0) o.schedule.steps = 40;
  if (o.text.empty() && !o.check) throw std::runtime_error("--text is missing, expected a file");
  expect_valid(s);
  expect_valid(o.schedule);
}

int check() {
  bool ok = examples::gradients_are_right(check_gradient);
  for (const auto& [name, attention] : examples::kAttentions) {
    const double error = check_streaming(attention);
    std::printf("%-7s  largest error of logits token by token %.1e\n", name.c_str(), error);
    ok = ok && error <= kLargestLogitError;
  }
  if (!ok) {
    std::fprintf(stderr, "FAILED: expected logits within %.0e\n", kLargestLogitError);
  }
  return ok ? 0 : 1;
}

/// Trains to the end or to an interrupt, and saves.
/// \returns the bytes that were read in a second
double train_and_save(Model<float>& model, examples::TrainingState<float>& state, const Options& o,
                      const Text& text, Workers<float>& workers) {
  const Settings& s = model.settings();
  const auto run =
      training_run(o, s.attention, {{"settings", to_json(s)}, {"text", text.to_json()}});
  const auto bytes = static_cast<double>(o.schedule.batch * s.context);  // of a step
  return bytes *
         examples::train(
             run, o.schedule, state,
             [&](Index step, std::span<float> gradient) {
               return workers.learn(model, text.batch(s.seed, step, o.schedule.batch), gradient);
             },
             [&] { constrain(model.layout(), model.parameters()); },
             [&](double bits, double steps) {
               return examples::text("%.4f bits a byte  %6.0f bytes/s", bits, steps * bytes);
             });
}

/// \returns nothing if there was an interrupt; then the training is saved.
std::optional<Result> run_one(const Settings& settings, const Options& o, const Text& text) {
  Model<float> model(settings);
  Workers<float> workers(settings, o.threads);
  examples::TrainingState<float> state{
      model.parameters(), examples::Optimizer<float>(trained_tensors(model.layout(), settings))};
  Result result;
  result.settings = settings;
  result.parameters = model.layout().table().size();
  result.bytes_per_second = train_and_save(model, state, o, text, workers);
  if (examples::interrupted()) return std::nullopt;
  result.losses = state.losses;
  result.held_out_bits = workers.evaluate(model, text.held_out_sequences(o.held_out));
  result.paragraph = write(model, o.prompt, o.letters, o.temperature);
  result.costs = token_costs(model, text.held_out());
  if (settings.attention == Attention::kMhla) {
    result.proof =
        prove_streaming(model, text.held_out().first(static_cast<std::size_t>(settings.context)));
  }
  return result;
}

int run(const Options& o) {
  expect_files(o);
  const Text text(o.text, o.settings.context);
  const auto each = run_each(o, o.settings, [&](const Settings& s) { return run_one(s, o, text); });
  if (!each) return examples::interrupted_status();
  const std::vector<Result>& results = *each;
  print_paragraphs(results);
  print_tables(results);
  const bool proven = print_proofs(results);
  nlohmann::json all{{"schedule", to_json(o.schedule)}, {"text", text.to_json()}};
  for (const Result& result : results) all["results"].push_back(to_json(result));
  examples::write_and_draw(o.output, all, CHART);
  return proven ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::with_command_line(
      "write_text", "Trains a language model of bytes, once for each attention, and writes.",
      [&](CLI::App& app) {
        Options options("write_text");
        parse(app, options, argc, argv);
        return options.check ? check() : run(options);
      });
}
