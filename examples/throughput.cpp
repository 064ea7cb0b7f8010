/// \file
/// Measures items per second of models with softmax, linear attention and MHLA, on random weights:
/// figure 1 of the paper, on this processor instead of a GPU.
///
///     DiT-S/2       images of 128 to 4096 pixels, N = 64 to 65,536 tokens
///     DeiT-S        images of 256 pixels
///     VLT-T 1, 2    the two stages of VLT-T whose attention is not softmax
///     SANA          a block, 1024 to 4096 pixels
///     Wan2.1        a self-attention layer of the model of 1.3B, 31,500 tokens
///     340M          a language model: prompts of 2048 to 131,072 tokens, and a token after them
///
/// A model's time is the time of its ends and its depth times the time of one measured block. The
/// library has the blocks; variants of a model differ in the attention alone
/// (throughput/block.hpp). MHLA has as many blocks of tokens as its authors' models, and at other
/// lengths the most with M^2 <= N. Predicted is the ratio of the operation counts.
///
/// Run:       bash examples/run.sh throughput [--quick] [options], see --help
///            if MHLA_PYTHON has PyTorch, the same models run in PyTorch, too
/// Expected:  a table, PREFIX.json, and by run.sh PREFIX.svg; times depend on the machine

#include <CLI/CLI.hpp>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/command_line.hpp"
#include "support/results.hpp"
#include "throughput/models.hpp"
#include "throughput/report.hpp"

namespace {

using namespace throughput;

/// Options of the command line.
struct Options {
  std::vector<std::string> models;
  std::vector<Index> threads;
  Index longest_input = 1 << 20;
  double seconds = 1, softmax_seconds = 10;
  std::string output = "throughput", save;
  bool quick = false;
};

/// \throws CLI::ParseError, std::runtime_error naming the option
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  std::vector<std::string> names;
  for (const Model& m : models()) names.push_back(m.name);
  o.models = names;
  o.threads = {1};
  if (std::thread::hardware_concurrency() > 1) {
    o.threads.push_back(static_cast<Index>(std::thread::hardware_concurrency()));
  }
  app.add_option("--model", o.models, "what to measure; repeatable")
      ->check(CLI::IsMember(names))
      ->expected(1)
      ->take_all();
  app.add_option("--threads", o.threads, "numbers of threads; repeatable")
      ->check(CLI::Range(1, 1024))
      ->expected(1)
      ->take_all();
  app.add_option("--longest", o.longest_input, "largest input: pixels, frames or tokens")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--seconds", o.seconds, "a measurement repeats for so long")
      ->check(CLI::Range(0.0, 3600.0))
      ->check(examples::finite());
  app.add_option("--softmax-seconds", o.softmax_seconds,
                 "softmax of a layer that takes longer is measured on 8192 queries")
      ->check(CLI::Range(0.0, 86400.0))
      ->check(examples::finite());
  app.add_option("--output", o.output, "prefix of the .json");
  app.add_option("--save", o.save, "folder for each block with its input and output")
      ->check(CLI::ExistingDirectory);
  app.add_flag("--quick", o.quick, "seconds: each model once, on a small input");
  app.parse(argc, argv);
  examples::expect_folder("--output", o.output);
}

std::vector<Result> measure_all(const Options& o) {
  std::vector<Result> results;
  for (const Model& model : models()) {
    if (std::ranges::find(o.models, model.name) == o.models.end()) continue;
    for (const Index input : o.quick ? std::vector{model.quick} : model.inputs) {
      if (input > o.longest_input) continue;
      for (const Index threads : o.threads) {
        results.push_back(
            model.run(input, {threads, o.quick ? 0 : o.seconds, o.softmax_seconds, o.save}));
        print_row(results.back());
      }
    }
  }
  if (results.empty()) {
    throw std::runtime_error("--longest is " + std::to_string(o.longest_input) +
                             ", expected at least the smallest input of a --model");
  }
  return results;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::with_command_line(
      "throughput", "Items per second of models with softmax, linear attention and MHLA.",
      [&](CLI::App& app) {
        Options options;
        parse(app, options, argc, argv);
        print_header();
        const std::vector<Result> results = measure_all(options);
        print_notes();
        print_crossings(results);
        examples::write_results(options.output + ".json", to_json(results), 1);
        std::printf("%s.json: ok\n", options.output.c_str());
        return 0;
      });
}
