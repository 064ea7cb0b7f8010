/// \file
/// Converts image classifiers with softmax or linear attention to MHLA, without training. The
/// mixing matrix of each layer is fitted by least squares to the outputs of the replaced attention.
///
/// Takes checkpoints of train_images. Without checkpoints it trains a model with softmax attention,
/// PREFIX.softmax.safetensors, or resumes its training. Prints the test accuracy of each model, of
/// the model converted with fitted, locality and uniform matrices, and of these after one more
/// epoch of training. Ends with a table of means over the checkpoints, PREFIX.json with all
/// results, and PREFIX.png with matrices and accuracies. The models after an epoch are
/// PREFIX.START.safetensors, or PREFIX.CHECKPOINT.START.safetensors with several checkpoints.
///
/// Run:       bash examples/run.sh convert [--quick]
///            bash examples/run.sh train_images --attention softmax --seed 1 --output one
///            bash examples/run.sh convert one.softmax.safetensors [more checkpoints] [options]

#include <CLI/CLI.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "convert/training.hpp"
#include "support/command_line.hpp"
#include "support/fashion_mnist.hpp"
#include "support/results.hpp"

namespace {

using namespace convert;

/// \throws CLI::ParseError, std::runtime_error naming the option.
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  const auto range = [](Index low, Index high) { return CLI::Range(low, high); };
  app.add_option("checkpoints", o.checkpoints,
                 "of train_images, with softmax or linear attention; without any one is trained");
  app.add_flag("--quick", o.quick, "half a minute: an epoch of 2,000 images, 1,000 test images");
  app.add_option("--threads", o.threads, "workers")->check(range(1, 1024));
  app.add_option("--output", o.output, "prefix of the files that are written");
  app.add_option("--data", o.data, "folder of the data set");
  app.add_option("--blocks", o.blocks, "blocks of tokens, a power of two")
      ->check(range(2, train_images::kTokens));
  app.add_option("--fit-images", o.fit_images, "images that matrices are fitted to")
      ->check(range(1, 60000));
  app.add_option("--images", o.images, "images of the epoch")->check(range(1, 60000));
  app.add_option("--test-images", o.test_images, "test images")->check(range(1, 10000));
  app.add_option("--rate", o.schedule.rate, "largest learning rate")->check(CLI::Number);
  app.parse(argc, argv);
  if (o.quick) {
    examples::set_quick_values(
        app, {{"--images", o.images, 2000}, {"--test-images", o.test_images, 1000}});
  }
  train_images::token_block(o.blocks);
  expect_valid(o.schedule);
  o.schedule.batch = std::min(o.schedule.batch, o.images);
  o.schedule.steps = o.images / o.schedule.batch;
  examples::expect_folder("--output", o.output + ".json");
}

/// \throws std::runtime_error if two checkpoints have one name.
void expect_names(const Options& o) {
  std::set<std::string> prefixes;
  for (const std::string& path : o.checkpoints) {
    if (!prefixes.insert(prefix_of(path, o)).second) {
      throw std::runtime_error(path +
                               " has the name of another checkpoint, expected names of their "
                               "own, which the files that are written get");
    }
  }
}

int run(Options o) {
  examples::catch_interrupts();
  if (o.checkpoints.empty()) {
    o.checkpoints = {o.output + ".softmax.safetensors"};
    train_teacher(o.checkpoints[0], o);
    if (examples::interrupted()) return examples::interrupted_status();
  }
  expect_names(o);
  std::vector<Model<float>> teachers;
  for (const std::string& path : o.checkpoints) teachers.push_back(teacher_of(path));
  const Images images =
      read_images(o.data, examples::Part::kTraining, std::max(o.images, o.fit_images));
  const Images test = read_images(o.data, examples::Part::kTest, o.test_images);
  std::vector<Conversion> results;
  for (std::size_t i = 0; i < teachers.size(); ++i) {
    auto result = convert_one(o.checkpoints[i], teachers[i], o, images, test);
    if (!result) return examples::interrupted_status();
    results.push_back(std::move(*result));
  }
  print_means(results);
  examples::write_and_draw(
      o.output, {{"images", o.images}, {"fit_images", o.fit_images}, {"results", results}}, CHART);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::with_command_line(
      "convert", "Converts image classifiers with softmax or linear attention to MHLA.",
      [&](CLI::App& app) {
        Options options;
        parse(app, options, argc, argv);
        return run(options);
      });
}
