/// \file
/// Trains a language model of bytes on a text with softmax, linear and MHLA attention, and writes.
///
/// All three see the same sequences in the same order and start from the same parameters. A
/// sequence has N = 2,048 bytes. MHLA has blocks of W = 64 bytes, and learns its mixing matrix. The
/// library has the passes, layers, optimiser and streaming states; write_text/model.hpp has the
/// model.
///
/// Ends with the bits per byte of held-out text, the cost per token by position, a paragraph of
/// each model, PREFIX.json with all results and PREFIX.png. It proves that MHLA token by token
/// equals MHLA over whole sequences (write_text/stream_proof.hpp). Ranks that mpirun starts share
/// the sequences of a step, and give the bits of one rank.
///
/// The text is the King James Bible (public domain), as Debian's bible-kjv prints it.
///
/// Run:  bash examples/run.sh write_text [--quick] [--resume] [options], see --help

#include <CLI/CLI.hpp>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "support/command_line.hpp"
#include "support/comparison.hpp"
#include "support/ranks.hpp"
#include "support/results.hpp"
#include "write_text/report.hpp"
#include "write_text/training.hpp"

namespace {

using namespace write_text;

/// Options of the command line.
struct Options : TrainingOptions {
  std::string prompt = "And it came to pass";
  Index letters = 600;
  double temperature = 0.7;
};

/// \throws CLI::ParseError, std::runtime_error naming the option.
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  add_run_options(app, o, "seconds: a small model, 40 steps of 512 bytes",
                  "check gradients and decoding in double");
  add_text_options(app, o);
  add_attention_option(app, o);
  add_model_options(app, o);

  app.option_defaults()->group("Writing");
  app.add_option("--prompt", o.prompt, "what the models go on from")
      ->check([](const std::string& p) { return std::string(p.empty() ? "is empty" : ""); });
  app.add_option("--letters", o.letters, "that a model writes, with the prompt's")
      ->check(CLI::Range(Index{1}, std::numeric_limits<Index>::max()));
  app.add_option("--temperature", o.temperature, "of the draw")
      ->check(CLI::PositiveNumber)
      ->check(examples::finite());
  app.parse(argc, argv);
  complete(app, o);
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

/// The results of rank 0.
/// \returns nothing if there was an interrupt; then the training is saved.
template <mhla::distributed::Communicator C>
std::optional<Result> run_one(C& comm, const Settings& settings, const Options& o,
                              const Text& text) {
  Model<float> model(settings);
  Workers<float> workers(settings, o.threads);
  Result result{{settings, model.layout().table().size()}};
  const Trained trained = train(comm, model, o, text, workers);
  if (examples::any_interrupted(comm)) return std::nullopt;
  if (comm.rank() != 0) return result;
  result.losses = trained.losses;
  result.bytes_per_second = trained.bytes_per_second;
  result.held_out_bits = workers.evaluate(model, text.held_out_sequences(o.held_out));
  result.paragraph = write(model, o.prompt, o.letters, o.temperature);
  result.costs = token_costs(model, text.held_out());
  if (settings.attention == Attention::kMhla) {
    result.proof =
        prove_streaming(model, text.held_out().first(static_cast<std::size_t>(settings.context)));
  }
  return result;
}

template <mhla::distributed::Communicator C>
int run(C& comm, const Options& o) {
  expect_files(o);
  const Text text(o.text, o.settings.context);
  const auto each =
      run_each(o, o.settings, [&](const Settings& s) { return run_one(comm, s, o, text); });
  if (!each) return examples::interrupted_status();
  if (comm.rank() != 0) return 0;
  print_paragraphs(*each);
  print_tables(*each);
  const bool proven = print_proofs(*each);
  examples::write_and_draw(
      o.output, {{"schedule", o.schedule}, {"text", text.to_json()}, {"results", *each}}, CHART);
  return proven ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::with_command_line(
      kProgram, "Trains a language model of bytes, once for each attention, and writes.",
      [&](CLI::App& app) {
        Options options;
        parse(app, options, argc, argv);
        if (options.check) return check();
        return examples::with_ranks([&](auto& rank) { return run(rank, options); });
      });
}
