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
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/interrupt.hpp"
#include "support/results.hpp"
#include "support/training_loop.hpp"
#include "write_text/report.hpp"

namespace {

using namespace write_text;

/// What the command line says.
struct Options {
  Settings settings;
  examples::Schedule schedule;
  std::vector<std::string> attentions{"softmax", "linear", "mhla"};
  Index held_out = 0;
  Index threads = std::max<Index>(std::thread::hardware_concurrency(), 1);
  std::string text;
  std::string output = "write_text";
  std::string prompt = "And it came to pass";
  Index letters = 600;
  double temperature = 0.7;
  bool quick = false;
  bool resume = false;
  bool check = false;
};

/// \throws CLI::ParseError, std::runtime_error naming the option.
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  const auto range = [](Index low, Index high) { return CLI::Range(low, high); };
  const Index most = std::numeric_limits<Index>::max();
  app.add_flag("--quick", o.quick, "seconds: a small model, 40 steps of 512 bytes");
  app.add_option("--text", o.text, "file to read, any bytes; its last twentieth is held out")
      ->take_last();
  app.add_option("--held-out", o.held_out, "sequences to test on, 0 for all")
      ->check(range(0, most));
  app.add_option("--threads", o.threads, "workers")->check(range(1, 1024));
  app.add_option("--output", o.output, "prefix of the files that are written");
  app.add_flag("--resume", o.resume, "go on from the checkpoints of such a run");
  app.add_flag("--check", o.check, "check gradients and decoding in double")->group("");

  app.option_defaults()->group("Model");
  app.add_option("--attention", o.attentions, "softmax, linear or mhla; repeatable")
      ->check(CLI::IsMember({"softmax", "linear", "mhla"}))
      ->expected(1)
      ->take_all();
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

  app.option_defaults()->group("Training");
  const auto* const steps =
      app.add_option("--steps", o.schedule.steps, "of training")->check(range(1, 100'000'000));
  app.add_option("--batch", o.schedule.batch, "sequences of a step")->check(range(1, 65536));
  app.add_option("--rate", o.schedule.rate, "largest learning rate")->check(CLI::Number);

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
  bool ok = true;
  for (const auto& [name, attention] : examples::kAttentions) {
    const examples::GradientError gradient = check_gradient(attention);
    const double streaming = check_streaming(attention);
    std::printf("%-7s  largest error of a gradient %.1e, in %s; of logits token by token %.1e\n",
                name.c_str(), gradient.relative, gradient.tensor.c_str(), streaming);
    ok = ok && gradient.relative <= examples::kLargestGradientError &&
         streaming <= kLargestLogitError;
  }
  if (!ok) {
    std::fprintf(stderr, "FAILED: expected at most %.0e and %.0e\n",
                 examples::kLargestGradientError, kLargestLogitError);
  }
  return ok ? 0 : 1;
}

std::filesystem::path checkpoint_of(const Options& o, const std::string& attention) {
  return o.output + "." + attention + ".safetensors";
}

/// Trains to the end or to an interrupt, and saves.
/// \returns the bytes that were read in a second
double train_and_save(Model<float>& model, examples::TrainingState<float>& state, const Options& o,
                      const Text& text, Workers<float>& workers) {
  const Settings& s = model.settings();
  const std::string name = examples::name_of(examples::kAttentions, s.attention);
  const examples::TrainingRun run{.name = name,
                                  .checkpoint = checkpoint_of(o, name),
                                  .program = "write_text",
                                  .depends = {{"settings", to_json(s)},
                                              {"schedule", to_json(o.schedule)},
                                              {"text", text.to_json()}},
                                  .resume = o.resume};
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
  const std::filesystem::path json = o.output + ".json", picture = o.output + ".png";
  examples::expect_folder("--output", json);
  const Text text(o.text, o.settings.context);
  std::vector<std::filesystem::path> checkpoints;
  for (const std::string& attention : o.attentions) {
    checkpoints.push_back(checkpoint_of(o, attention));
  }
  if (o.resume) examples::expect_any(checkpoints);
  examples::catch_interrupts();
  std::vector<Result> results;
  for (const std::string& attention : o.attentions) {
    Settings settings = o.settings;
    settings.attention = examples::named(examples::kAttentions, attention);
    auto result = run_one(settings, o, text);
    if (!result) return examples::interrupted_status();
    results.push_back(std::move(*result));
  }
  print_paragraphs(results);
  print_tables(results);
  const bool proven = print_proofs(results);
  nlohmann::json all{{"schedule", to_json(o.schedule)}, {"text", text.to_json()}};
  for (const Result& result : results) all["results"].push_back(to_json(result));
  examples::write_results(json, all);
  std::printf("%s\n", json.c_str());
  std::fflush(stdout);
  if (examples::draw(CHART, json, picture)) std::printf("%s\n", picture.c_str());
  return proven ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a language model of bytes, once for each attention, and writes.");
  app.option_defaults()->always_capture_default();
  Options options;
  try {
    parse(app, options, argc, argv);
    return options.check ? check() : run(options);
  } catch (const CLI::Success& request) {  // --help
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "write_text: %s (see --help)\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "write_text: %s\n", error.what());
    return 1;
  }
}
