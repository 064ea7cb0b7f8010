/// \file
/// Trains a small vision transformer on Fashion-MNIST with softmax, linear and MHLA attention.
///
/// All three see the same images in the same order and start from the same parameters. An image is
/// N = 256 tokens on a 16 x 16 grid. MHLA has M = 16 blocks of 4 x 4 tokens, and learns its mixing
/// matrix from locality. The library has the passes, layers and optimiser; train_images/model.hpp
/// has the model.
///
/// Ends with a table, PREFIX.json with all results, and PREFIX.png: the losses, and the mixing
/// matrix of each block before and after training.
///
/// Run:       bash examples/run.sh train_images [--quick] [options], see --help
///            bash examples/run.sh claims          blocks, starts, convolution, three seeds each
/// Expected:  (four minutes on two cores; numbers depend a little on the processor's instructions)
///
///     attention  parameters  test accuracy  training loss  images/s
///     softmax         42922        80.33 %         0.4762       670
///     linear          42926        80.46 %         0.4837      1651
///     mhla            43946        82.83 %         0.4176      1432

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/command_line.hpp"
#include "support/comparison.hpp"
#include "support/fashion_mnist.hpp"
#include "support/results.hpp"
#include "train_images/checkpoint.hpp"
#include "train_images/checks.hpp"
#include "train_images/report.hpp"
#include "train_images/training.hpp"

namespace {

using namespace train_images;

/// Options of the command line.
struct Options : examples::Comparison {
  using Comparison::Comparison;

  Settings settings;
  Index epochs = 5;
  Index images = 20000;
  Index test_images = 10000;
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string evaluate;
};

/// \throws CLI::ParseError, std::runtime_error naming the option.
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  const auto range = [](Index low, Index high) { return CLI::Range(low, high); };
  Settings& s = o.settings;
  add_run_options(app, o, "about a minute: 1 epoch of 10,000 images",
                  "compare gradients with differences");
  app.add_option("--data", o.data, "folder of the data set");
  app.add_option("--test-images", o.test_images, "test images")->check(range(1, 10000));
  app.add_option("--evaluate", o.evaluate, "only the test accuracy of a checkpoint");

  add_attention_option(app, o);
  app.add_option("--dim", s.dim, "channels of a token")->check(range(1, 1024));
  app.add_option("--depth", s.depth, "blocks of the model")->check(range(1, 64));
  app.add_option("--heads", s.heads, "heads of an attention")->check(range(1, 1024));
  app.add_option("--lepe", s.lepe, "side of the convolution beside attention, 0 for none")
      ->check(range(0, 15));
  app.add_option("--blocks", s.blocks, "MHLA: blocks of tokens, a power of two")
      ->check(range(1, kTokens));
  examples::add_choice(app, "--init", s.init, kMixingStarts,
                       "MHLA: mixing at the start, uniform or locality");
  app.add_flag("--freeze-mixing", s.freeze_mixing, "MHLA: mixing as at the start");
  examples::add_seed_option(app, s.seed, "of parameters and of the order of images");

  add_training_options(app, o, "images", 60000);
  app.add_option("--epochs", o.epochs, "times an image is seen")->check(range(1, 10000));
  app.add_option("--images", o.images, "training images")->check(range(1, 60000));
  app.parse(argc, argv);

  if (o.quick) {
    examples::set_quick_values(app, {{"--epochs", o.epochs, 1}, {"--images", o.images, 10000}});
  }
  expect_valid(s);
  expect_valid(o.schedule);
  if (o.schedule.batch > o.images) {
    throw std::runtime_error("--batch is " + std::to_string(o.schedule.batch) +
                             ", expected at most the number of training images, which is " +
                             std::to_string(o.images));
  }
  o.schedule.steps = o.images / o.schedule.batch * o.epochs;
}

int evaluate(const Options& o) {
  const Model<float> model = model_of(o.evaluate);
  const Images test = read_images(o.data, examples::Part::kTest, o.test_images);
  Workers<float> workers(model, o.threads);
  std::printf("%s: %s attention, test accuracy %.2f %%\n", o.evaluate.c_str(),
              name_of(kAttentions, model.settings().attention).c_str(),
              100 * accuracy_of(model, test, workers));
  return 0;
}

/// \returns nothing if there was an interrupt; then the training is saved.
std::optional<Result> train_one(const Settings& settings, const Options& o, const Images& images,
                                const Images& test) {
  Model<float> model(settings);
  Workers<float> workers(model, o.threads);
  Result result{{settings, model.table().size()}};
  result.initial_mixing = model.mixing();

  const auto run =
      training_run(o, settings.attention, {{"settings", settings}, {"images", images.to_json()}});
  const Trained trained = train(run, o.schedule, model, workers, images, images.count());
  if (examples::interrupted()) return std::nullopt;
  result.images_per_second = trained.images_per_second;
  result.losses = trained.losses;
  result.learned_mixing = model.mixing();
  result.test_accuracy = accuracy_of(model, test, workers);
  return result;
}

int train_all(const Options& o) {
  expect_files(o);
  const Images images = read_images(o.data, examples::Part::kTraining, o.images);
  const Images test = read_images(o.data, examples::Part::kTest, o.test_images);
  const auto each = run_each(o, o.settings, [&](const Settings& settings) {
    return train_one(settings, o, images, test);
  });
  if (!each) return examples::interrupted_status();
  print_table(*each);
  examples::write_and_draw(
      o.output,
      {{"schedule", o.schedule}, {"images", o.images}, {"epochs", o.epochs}, {"results", *each}},
      CHART);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::with_command_line(
      kProgram, "Trains a small vision transformer on Fashion-MNIST, once for each attention.",
      [&](CLI::App& app) {
        Options options(kProgram, {.batch = 64, .rate = 2e-3});
        parse(app, options, argc, argv);
        if (options.check) return examples::gradients_are_right(check_gradient) ? 0 : 1;
        return options.evaluate.empty() ? train_all(options) : evaluate(options);
      });
}
