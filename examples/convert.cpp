/// \file
/// Converts image classifiers with softmax or linear attention to MHLA, without training: layer by
/// layer, the mixing matrix is fitted by least squares to the outputs of the attention it replaces.
///
/// Takes checkpoints that train_images wrote; without any it trains a model with softmax attention,
/// PREFIX.softmax.safetensors, or goes on with it. For each of them: the test accuracy, that of the
/// model converted with fitted matrices, with locality and with uniform ones, and of each of the
/// three after one more epoch of training. Ends with a table of means over the checkpoints,
/// PREFIX.json with all results, and PREFIX.png: the matrices, and the accuracies. What an epoch
/// made is PREFIX.START.safetensors; of several checkpoints, PREFIX.CHECKPOINT.START.safetensors.
///
/// Run:       bash examples/run.sh convert [--quick]
///            bash examples/run.sh train_images --attention softmax --seed 1 --output one
///            bash examples/run.sh convert one.softmax.safetensors [more checkpoints] [options]

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "convert/fitting.hpp"
#include "convert/report.hpp"
#include "support/command_line.hpp"
#include "support/fashion_mnist.hpp"
#include "support/results.hpp"
#include "support/training_loop.hpp"
#include "train_images/checkpoint.hpp"
#include "train_images/training.hpp"

namespace {

using namespace convert;

/// What the command line says.
struct Options {
  std::vector<std::string> checkpoints;
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string output = "convert";
  Index blocks = 16;
  Index fit_images = 256;
  Index images = 20000;
  Index test_images = 10000;
  Index threads = std::max<Index>(std::thread::hardware_concurrency(), 1);
  bool quick = false;
  examples::Schedule schedule{.batch = 64, .rate = 1e-3};
};

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
  const auto* const images =
      app.add_option("--images", o.images, "images of the epoch")->check(range(1, 60000));
  const auto* const tests =
      app.add_option("--test-images", o.test_images, "test images")->check(range(1, 10000));
  app.add_option("--rate", o.schedule.rate, "largest learning rate")->check(CLI::Number);
  app.parse(argc, argv);
  if (o.quick && images->count() == 0) o.images = 2000;
  if (o.quick && tests->count() == 0) o.test_images = 1000;
  train_images::token_block(o.blocks);
  expect_valid(o.schedule);
  o.schedule.batch = std::min(o.schedule.batch, o.images);
  o.schedule.steps = o.images / o.schedule.batch;
  examples::expect_folder("--output", o.output + ".json");
}

/// Trains a model with softmax attention, five epochs, or goes on with its checkpoint.
void train_teacher(const std::string& path, const Options& o) {
  constexpr Index kEpochs = 5;
  Settings settings;
  settings.attention = Attention::kSoftmax;
  const Images images = read_images(o.data, examples::Part::kTraining, o.images);
  examples::Schedule schedule = o.schedule;
  schedule.rate = 2e-3;
  schedule.steps *= kEpochs;
  Model<float> model(settings);
  train_images::Workers<float> workers(model, o.threads);
  const examples::TrainingRun run{.name = "softmax",
                                  .checkpoint = path,
                                  .program = train_images::kProgram,
                                  .depends = {{"settings", to_json(settings)},
                                              {"schedule", to_json(schedule)},
                                              {"images", images.to_json()}},
                                  .resume = true};
  train_images::train(run, schedule, model, workers, images, images.count());
}

/// \throws std::runtime_error naming the file unless it has an attention to convert.
Model<float> teacher_of(const std::string& path) {
  Model<float> model = train_images::model_of(path);
  if (model.settings().attention != Attention::kMhla) return model;
  throw std::runtime_error(path + " has MHLA attention, expected softmax or linear");
}

/// What the files of a checkpoint's conversions begin with: with the checkpoint's name if there are
/// several.
std::string prefix_of(const std::string& checkpoint, const Options& o) {
  if (o.checkpoints.size() == 1) return o.output;
  return o.output + "." + std::filesystem::path(checkpoint).stem().string();
}

/// What an epoch from a start is called, and where it is saved.
examples::TrainingRun run_of(Start start, const std::string& checkpoint, const Settings& settings,
                             const Options& o) {
  const std::string name = name_of(start);
  return {.name = name,
          .checkpoint = prefix_of(checkpoint, o) + "." + name + ".safetensors",
          .program = train_images::kProgram,
          .depends = {{"settings", to_json(settings)},
                      {"schedule", to_json(o.schedule)},
                      {"images", o.images}},
          .resumable = false};
}

/// \returns nothing if there was an interrupt
std::optional<Conversion> convert_one(const std::string& path, const Model<float>& teacher,
                                      const Options& o, const Images& images, const Images& test) {
  using train_images::Workers;
  Conversion result{.checkpoint = path, .teacher = teacher.settings()};
  Workers<float> of_teacher(teacher, o.threads);
  result.accuracy = accuracy_of(teacher, test, of_teacher);
  for (const Start start : kStarts) {
    Settings settings = teacher.settings();
    settings.attention = Attention::kMhla;
    settings.freeze_mixing = false;
    settings.blocks = o.blocks;
    settings.mixing_start = start == Start::kUniform ? train_images::MixingStart::kUniform
                                                     : train_images::MixingStart::kLocality;
    Model<float> student = with_parameters_of(teacher, settings);
    if (start == Start::kFitted) {
      result.fits = fit_mixing_of(teacher, student, images, o.fit_images, o.threads);
      result.mixing = student.mixing();
    }
    StartResult& of_start = result.of_starts.emplace_back();
    Workers<float> workers(student, o.threads);
    of_start.converted = accuracy_of(student, test, workers);
    train_images::train(run_of(start, path, settings, o), o.schedule, student, workers, images,
                        o.images);
    if (examples::interrupted()) return std::nullopt;
    of_start.trained = accuracy_of(student, test, workers);
  }
  print(result);
  return result;
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
  examples::write_and_draw(o.output, to_json(results, o.images, o.fit_images), CHART);
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
