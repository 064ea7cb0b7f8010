/// \file
/// Reads sequences with a language model of bytes that was trained on shorter ones.
///
/// Takes the checkpoint of a training of write_text with MHLA and the same options, or trains it
/// first. Its mixing matrices serve at most M blocks. Sums of decaying terms (DecayMixing) replace
/// them for any number of blocks, fitted to the outputs of each layer's attention.
///
/// Prints the residuals of the fits, and the change of outputs on a held-out sequence beside the
/// certified bound (mixing_change_bound). Prints bits per byte by position of held-out sequences of
/// 8 times the length, with learned matrices in windows and with terms straight through. Prints the
/// sizes of a stream's states. PREFIX.extend.json has all results.
///
/// Run:  bash examples/run.sh extend_text [--quick] [options], see --help

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <mhla/distributed/thread_ranks.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "extend_text/report.hpp"
#include "support/command_line.hpp"
#include "support/results.hpp"
#include "write_text/training.hpp"

namespace {

using namespace extend_text;

constexpr std::array<Index, 3> kTerms{1, 2, 4};

/// Options of the command line.
struct Options : write_text::TrainingOptions {
  Index times = 8;
  Index fit_sequences = 8;

  Index length() const { return times * settings.context; }
};

/// \throws CLI::ParseError, std::runtime_error naming the option.
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  app.add_flag("--quick", o.quick, "seconds: a small model, 40 steps of 512 bytes; reads 2,048");
  app.add_option("--threads", o.threads, "workers")->check(CLI::Range(1, 1024));
  app.add_option("--output", o.output, "prefix of the files of write_text, and of the results");
  app.add_option("--times", o.times, "of --context, the length that is read")
      ->check(CLI::Range(1, 1024));
  app.add_option("--fit-sequences", o.fit_sequences, "that the terms are fitted to")
      ->check(CLI::Range(1, 1024));
  add_text_options(app, o);
  add_model_options(app, o);
  app.parse(argc, argv);
  complete(app, o);
  if (o.quick && app.count("--times") == 0) o.times = 4;
  if (o.settings.context % o.settings.block != 0) {
    throw std::runtime_error("--context is " + std::to_string(o.settings.context) +
                             ", expected a multiple of --block, " +
                             std::to_string(o.settings.block));
  }
  o.resume = true;
}

/// The model of the checkpoint after its training; nothing if there was an interrupt.
std::optional<Model<float>> trained_model(const Options& o, const write_text::Text& text) {
  Model<float> model(o.settings);
  write_text::Workers<float> workers(o.settings, o.threads);
  mhla::distributed::run_ranks(1, [&](auto& alone) { train(alone, model, o, text, workers); });
  if (examples::interrupted()) return std::nullopt;
  return model;
}

/// Reads sequences with each mixing and each kind of windows.
void compare(const Model<float>& model, const std::vector<Fit>& fits, const Options& o,
             const std::vector<Bytes>& sequences, nlohmann::json& all) {
  const Index context = o.settings.context, length = o.length();
  const Model<float> reading = longer(model, length);
  Evaluation evaluation(reading, context, o.threads);
  Table table(context, length);
  std::vector<Matrix> learned, nearest;
  for (std::size_t l = 0; l < model.layout().layers.size(); ++l) {
    learned.emplace_back(model.mixing(l));
  }
  const auto windows = [](Index bytes) { return "windows of " + std::to_string(bytes); };
  table.add("learned, " + windows(context), evaluation.bits(learned, {context}, sequences));
  table.add("learned, " + windows(context) + ", half overlap",
            evaluation.bits(learned, {context, context / 2}, sequences));
  for (const Index terms : kTerms) {
    const auto mixing = with_terms(fits, terms);
    const std::string name = std::to_string(terms) + (terms == 1 ? " term, " : " terms, ");
    table.add(name + windows(context), evaluation.bits(mixing, {context}, sequences));
    table.add(name + "straight", evaluation.bits(mixing, {length}, sequences));
  }
  const auto mixing = with_terms(fits, kTerms.back());
  for (const Decay& m : mixing) {
    nearest.push_back(Matrix::banded(decay_matrix(m, length / o.settings.block).dense(),
                                     o.settings.blocks() - 1, 0));
  }
  table.add("the same, the nearest " + std::to_string(o.settings.blocks()) + " blocks alone",
            evaluation.bits(nearest, {length}, sequences));
  table.add("the same, positions begin again",
            evaluation.bits(mixing, {.size = length, .positions_return = true}, sequences));
  all["results"] = table.results();
}

int run(const Options& o) {
  examples::expect_folder("--output", o.output + ".extend.json");
  const write_text::Text text(o.text, o.settings.context);
  const auto sequences = text.held_out_sequences(o.held_out, o.length());
  if (sequences.empty()) {
    throw std::runtime_error(
        "--times is " + std::to_string(o.times) + ", expected less in all than the " +
        std::to_string(text.held_out().size()) + " bytes that are held out of --text");
  }
  examples::catch_interrupts();
  const auto model = trained_model(o, text);
  if (!model) return examples::interrupted_status();
  examples::release_interrupts();

  nlohmann::json all{{"settings", o.settings}, {"schedule", o.schedule}};
  mhla::ThreadPool pool(o.threads);
  const auto fits =
      fit_layers(*model, text.batch(o.settings.seed, 0, o.fit_sequences), kTerms, pool);
  bool ok = print_fits(*model, fits, text.held_out(), pool, all);
  compare(*model, fits, o, sequences, all);
  ok = print_states(*model, with_terms(fits, kTerms.back()), o.length(), sequences.front(), all) &&
       ok;
  const std::string results = o.output + ".extend.json";
  examples::write_results(results, all);
  std::printf("%s\n", results.c_str());
  return ok ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::with_command_line(
      "extend_text", "Lets a language model of bytes read longer sequences than it was trained on.",
      [&](CLI::App& app) {
        Options options;
        parse(app, options, argc, argv);
        return run(options);
      });
}
