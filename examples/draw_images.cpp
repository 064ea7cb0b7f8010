/// \file
/// Trains a diffusion transformer (DiT) on Fashion-MNIST with softmax, linear and MHLA attention,
/// and draws.
///
/// All three see the same images, noise and times in the same order and start from the same
/// parameters. An image is N = 256 tokens of 2 x 2 pixels on a 16 x 16 grid. MHLA has M = 16 blocks
/// of 4 x 4 tokens, and learns its mixing matrix from locality. The library has the blocks, layers
/// and optimiser; draw_images/model.hpp has the model, draw_images/diffusion.hpp the diffusion.
///
/// The measure of drawn images is their Frechet distance to the test images, in the features of a
/// small classifier that is trained first (draw_images/judge.hpp). The distance of as many training
/// images stands beside it: a perfect model has that distance.
///
/// Ends with a table, PREFIX.json with all results and PREFIX.png with the drawn images.
///
/// Run:  bash examples/run.sh draw_images [--quick] [--resume] [options], see --help

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "draw_images/checks.hpp"
#include "draw_images/report.hpp"
#include "support/command_line.hpp"
#include "support/comparison.hpp"
#include "support/fashion_mnist.hpp"
#include "support/results.hpp"

namespace {

using namespace draw_images;

/// Options of the command line.
struct Options : examples::Comparison {
  using Comparison::Comparison;

  Settings settings;
  Drawing drawing;
  Index images = 60000;  // for training
  Index test_images = 10000;
  Index epochs = 3;      // of the classifier
  std::string data = "/usr/share/datasets/fashion-mnist";
};

/// \throws CLI::ParseError, std::runtime_error naming the option.
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  const auto range = [](Index low, Index high) { return CLI::Range(low, high); };
  add_run_options(app, o, "seconds: a small model, 40 steps of few images",
                  "check gradients, DDIM and the distance in double");
  app.add_option("--data", o.data, "folder of the data set");
  app.add_option("--images", o.images, "training images")->check(range(1000, 60000));

  add_attention_option(app, o);
  Settings& s = o.settings;
  app.add_option("--dim", s.dim, "channels")->check(range(1, 4096));
  app.add_option("--depth", s.depth, "blocks")->check(range(1, 64));
  app.add_option("--heads", s.heads, "heads of an attention")->check(range(1, 1024));
  examples::add_seed_option(app, s.seed, "of parameters, images and noise");

  add_training_options(app, o, "images", 65536);
  add_steps_option(app, o);

  app.option_defaults()->group("Drawing");
  Drawing& d = o.drawing;
  app.add_option("--sets", d.sets, "of images, for the spread")->check(range(1, 1000));
  app.add_option("--drawn", d.images, "images of a set")->check(range(2, 60000));
  app.add_option("--ddim", d.steps, "steps from noise to image")->check(range(1, 10000));
  app.add_option("--guidance", d.guidance, "towards the class, 1 for none")->check(CLI::Number);
  app.parse(argc, argv);

  if (o.quick) {
    o.epochs = 1;
    o.test_images = 1000;
    examples::set_quick_values(app, {{"--images", o.images, 2000},
                                     {"--dim", s.dim, 16},
                                     {"--depth", s.depth, 1},
                                     {"--steps", o.schedule.steps, 40},
                                     {"--sets", d.sets, 2},
                                     {"--drawn", d.images, 20},
                                     {"--ddim", d.steps, 3}});
  }
  expect_valid(s, d);
  expect_valid(o.schedule);
}

/// \returns nothing if there was an interrupt; then the training is saved.
std::optional<Result> run_one(const Settings& settings, const Options& o,
                              const examples::Images& images, mhla::ThreadPool& pool,
                              Judge& judge) {
  Model<float> model(settings);
  Workers<float> workers(model, pool);
  std::vector<float> row(model.parameters().begin(), model.parameters().end()), average = row;
  examples::TrainingState<float> state{
      row, examples::Optimizer<float>(trained_tensors(model)), {}, average};
  Result result{{settings, model.table().size()}};
  const auto run =
      training_run(o, settings.attention, {{"settings", settings}, {"images", images.to_json()}});
  result.images_per_second = train(run, o.schedule, model, state, images, workers);
  model.set_parameters(average);
  if (examples::interrupted()) return std::nullopt;
  result.losses = state.losses;
  const auto drawn = draw_sets(result.name(), model, o.drawing, workers, judge, result.judgement);
  if (!drawn) return std::nullopt;
  result.images = *drawn;
  return result;
}

int run(const Options& o) {
  expect_files(o);
  const auto training = examples::read_images(o.data, examples::Part::kTraining, o.images);
  const auto test = examples::read_images(o.data, examples::Part::kTest, o.test_images);
  mhla::ThreadPool pool(o.threads);
  Judge judge(training, test, o.epochs, o.settings.seed, pool);
  std::printf("the classifier is right about %.1f %% of the test images\n", 100 * judge.accuracy());
  std::fflush(stdout);
  const auto each = run_each(o, o.settings, [&](const Settings& settings) {
    return run_one(settings, o, training, pool, judge);
  });
  if (!each) return examples::interrupted_status();
  Judgement real;
  for (Index set = 0; set < o.drawing.sets; ++set) {
    judge.look(real_images(training, o.drawing.images, set), real);
  }
  print_table(*each, real);
  const auto first_set = digits_of(real_images(training, o.drawing.images, 0));
  examples::write_and_draw(o.output,
                           {{"schedule", o.schedule},
                            {"drawing", o.drawing},
                            {"classifier_accuracy", judge.accuracy()},
                            {"real", {{"frechet", real}, {"images", first_set}}},
                            {"results", *each}},
                           CHART);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::with_command_line(
      "draw_images",
      "Trains a diffusion transformer on Fashion-MNIST, once for each attention, and draws.",
      [&](CLI::App& app) {
        Options options("draw_images",
                        {.steps = 6000, .batch = 32, .rate = 2e-3, .weight_decay = 0});
        parse(app, options, argc, argv);
        return options.check ? check() : run(options);
      });
}
