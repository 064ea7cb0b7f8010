/// \file
/// Lets a language model of bytes read sequences longer than those it was trained on.
///
/// Takes the checkpoint of a training of write_text with MHLA and the same options,
/// PREFIX.mhla.safetensors, or trains it first. Its mixing matrices are for M blocks and no more;
/// in their place come sums of decaying terms (DecayMixing) for any number of blocks, fitted to
/// what each layer's attention gives.
///
/// Prints how near the fits are; how far outputs move with them on a held-out sequence, beside the
/// certified bound (mixing_change_bound); bits a byte by position of held-out sequences of 8 times
/// the length, with learned matrices in windows and with terms straight through; and what a stream
/// keeps. Two more rows tell where a loss behind the length of training comes from: terms of the
/// nearest M blocks alone, and positions that begin again behind M blocks. PREFIX.extend.json has
/// all results.
///
/// Run:  bash examples/run.sh extend_text [--quick] [options], see --help

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <mhla/distributed/thread_ranks.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "extend_text/fitting.hpp"
#include "support/command_line.hpp"
#include "support/results.hpp"
#include "write_text/training.hpp"

namespace {

using namespace extend_text;

constexpr std::array<Index, 3> kTerms{1, 2, 4};

/// What the command line says.
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

/// The model of the checkpoint, trained to the end; nothing if there was an interrupt.
std::optional<Model<float>> trained_model(const Options& o, const write_text::Text& text) {
  Model<float> model(o.settings);
  write_text::Workers<float> workers(o.settings, o.threads);
  mhla::distributed::run_ranks(1, [&](auto& alone) { train(alone, model, o, text, workers); });
  if (examples::interrupted()) return std::nullopt;
  return model;
}

/// Prints a line for each fit. \returns whether the bounds hold
bool print_fits(const Model<float>& model, const std::vector<Fit>& fits, Bytes held_out,
                mhla::ThreadPool& pool, nlohmann::json& all) {
  write_text::CausalAttention<float> attention(model.settings());
  Activations<float> a(model.settings(), model.settings().context);
  forward(model, held_out.first(static_cast<std::size_t>(model.settings().context)), attention, a);
  std::printf(
      "                residual of outputs      bound of change      change of outputs\n"
      "layer  terms    fit  to coefficients    largest   median    largest   median\n");
  bool ok = true;
  for (const Fit& fit : fits) {
    const Change c = change_of(model, fit, a, pool);
    ok = ok && c.of_bound <= 1;
    std::printf("%5zu  %5td  %5.3f  %15.3f  %9.4f  %7.4f  %9.4f  %7.4f\n", fit.layer, fit.terms,
                fit.residual, fit.of_coefficients, c.bound.largest, c.bound.median,
                c.change.largest, c.change.median);
    all["fits"].push_back({{"layer", fit.layer},
                           {"terms", fit.terms},
                           {"weights", fit.mixing.view().weights()},
                           {"decays", fit.mixing.view().decays()},
                           {"residual", fit.residual},
                           {"residual_of_coefficients", fit.of_coefficients},
                           {"bound", {c.bound.largest, c.bound.median}},
                           {"change", {c.change.largest, c.change.median}}});
  }
  if (!ok) std::fprintf(stderr, "FAILED: expected no output to move by more than its bound\n");
  return ok;
}

/// A table of bits a byte by position, and its JSON.
class Table {
 public:
  /// Positions [0, context), twice as many each time from there on, and all.
  Table(Index context, Index length) {
    ranges_.push_back({0, context});
    while (ranges_.back().end < length) {
      const Index begin = ranges_.back().end;
      ranges_.push_back({begin, std::min(2 * begin, length)});
    }
    std::printf("\n%-38s", "bits a byte at positions up to");
    for (const Range& range : ranges_) std::printf("  %7td", range.end);
    std::printf("  %7s\n", "all");
    ranges_.push_back({0, length});
  }
  void add(const std::string& name, std::span<const double> bits) {
    std::printf("%-38s", name.c_str());
    nlohmann::json row{{"mixing", name}};
    for (const auto& [begin, end] : ranges_) {
      double sum = 0;
      for (Index t = begin; t < end; ++t) sum += bits[static_cast<std::size_t>(t)];
      row["bits"].push_back(sum / static_cast<double>(end - begin));
      std::printf("  %7.4f", row["bits"].back().get<double>());
    }
    std::printf("\n");
    std::fflush(stdout);
    results_.push_back(row);
  }
  /// The last of the bits is of all positions.
  nlohmann::json results() const { return results_; }

 private:
  struct Range {
    Index begin, end;
  };
  std::vector<Range> ranges_;
  nlohmann::json results_;
};

/// The fits with some number of terms, of all layers.
std::vector<Decay> with_terms(const std::vector<Fit>& fits, Index terms) {
  std::vector<Decay> mixing;
  for (const Fit& fit : fits) {
    if (fit.terms == terms) mixing.push_back(fit.mixing);
  }
  return mixing;
}

/// What streams keep of a whole sequence. \returns whether they are the causal form
bool print_states(const Model<float>& model, const std::vector<Decay>& mixing, const Options& o,
                  Bytes sequence, nlohmann::json& all) {
  const Index length = o.length();
  const Model<float> reading = longer(model, length);
  const bool same = streams_are_causal(
      reading, mixing, sequence.first(static_cast<std::size_t>(length)), o.settings.context);
  Activations<float> a(reading.settings(), 1);
  std::vector<Matrix> matrices;
  for (const Decay& m : mixing) matrices.push_back(decay_matrix(m, length / o.settings.block));
  const std::size_t terms = Reader(reading, mixing, a).state_bytes(),
                    matrix = Reader(reading, matrices, a).state_bytes();
  std::printf(
      "\nstreams of %td terms over %td bytes: attention %s the causal form\n"
      "they keep %zu KiB; with matrices of %td blocks %zu KiB\n",
      kTerms.back(), length, same ? "has the bits of" : "DIFFERS from", terms / 1024,
      length / o.settings.block, matrix / 1024);
  all["states"] = {{"same_bits", same}, {"bytes", terms}, {"bytes_of_matrices", matrix}};
  if (!same) std::fprintf(stderr, "FAILED: expected the same bits\n");
  return same;
}

/// Reads sequences in each way.
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

  nlohmann::json all{{"settings", to_json(o.settings)}, {"schedule", to_json(o.schedule)}};
  mhla::ThreadPool pool(o.threads);
  const auto fits =
      fit_layers(*model, text.batch(o.settings.seed, 0, o.fit_sequences), kTerms, pool);
  bool ok = print_fits(*model, fits, text.held_out(), pool, all);
  compare(*model, fits, o, sequences, all);
  ok = print_states(*model, with_terms(fits, kTerms.back()), o, sequences.front(), all) && ok;
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
