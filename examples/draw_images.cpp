/// \file
/// Trains a diffusion transformer (DiT) on Fashion-MNIST with softmax, linear and MHLA attention,
/// and draws.
///
/// All three see the same images, noise and times in the same order and start from the same
/// parameters. An image is N = 256 tokens of 2 x 2 pixels on a 16 x 16 grid; MHLA has M = 16 blocks
/// of 4 x 4 tokens and learns how each reads the others, starting from locality. Blocks, layers and
/// optimiser are the library's; the model is in draw_images/model.hpp, the diffusion in
/// draw_images/diffusion.hpp.
///
/// A number instead of taste: the Frechet distance of drawn images to the test images, in the
/// features of a small classifier that is trained first (draw_images/classifier.hpp). It is defined
/// as FID, but of other features: compare it within this program alone. Beside it stands that of
/// training images, as many as were drawn, which a perfect model has.
///
/// Ends with a table, PREFIX.json with all results and PREFIX.png with what was drawn. A training
/// is saved to PREFIX.ATTENTION.safetensors every minute, at Ctrl-C and at the end; --resume goes
/// on from there, to the same bits as without a stop.
///
/// Run:  bash examples/run.sh draw_images [--quick] [--resume] [options], see --help

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "draw_images/checks.hpp"
#include "draw_images/report.hpp"
#include "support/command_line.hpp"
#include "support/comparison.hpp"
#include "support/fashion_mnist.hpp"
#include "support/progress_line.hpp"
#include "support/results.hpp"

namespace {

using namespace draw_images;

constexpr Index kTestImages = 10000;  // all

/// What the command line says.
struct Options : examples::Comparison {
  using Comparison::Comparison;

  Settings settings;
  Drawing drawing;
  Index images = 60000;  // to train on
  Index epochs = 3;      // of the classifier
  std::string data = "/usr/share/datasets/fashion-mnist";
};

/// \throws CLI::ParseError, std::runtime_error naming the option.
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  const auto range = [](Index low, Index high) { return CLI::Range(low, high); };
  const Index most = std::numeric_limits<Index>::max();
  struct Quicker {
    const CLI::Option* option;
    Index *value, quick;
  };
  std::vector<Quicker> all;  // what --quick sets, unless it is given
  const auto quicker = [&all](const CLI::Option* option, Index& value, Index quick) {
    all.push_back({option, &value, quick});
  };
  add_run_options(app, o, "seconds: a small model, 40 steps of few images",
                  "check gradients, DDIM and the distance in double");
  app.add_option("--data", o.data, "folder of the data set");
  quicker(app.add_option("--images", o.images, "training images")->check(range(1000, 60000)),
          o.images, 2000);

  add_attention_option(app, o);
  Settings& s = o.settings;
  quicker(app.add_option("--dim", s.dim, "channels")->check(range(1, 4096)), s.dim, 16);
  quicker(app.add_option("--depth", s.depth, "blocks")->check(range(1, 64)), s.depth, 1);
  app.add_option("--heads", s.heads, "heads of an attention")->check(range(1, 1024));
  app.add_option("--seed", s.seed, "of parameters, images and noise")->check(range(0, most));

  add_training_options(app, o, "images", 65536);
  quicker(add_steps_option(app, o), o.schedule.steps, 40);

  app.option_defaults()->group("Drawing");
  Drawing& d = o.drawing;
  quicker(app.add_option("--sets", d.sets, "of images, for the spread")->check(range(1, 1000)),
          d.sets, 2);
  quicker(app.add_option("--drawn", d.images, "images of a set")->check(range(2, 60000)), d.images,
          20);
  quicker(app.add_option("--ddim", d.steps, "steps from noise to image")->check(range(1, 10000)),
          d.steps, 3);
  app.add_option("--guidance", d.guidance, "towards the class, 1 for none")->check(CLI::Number);
  app.parse(argc, argv);

  for (const auto& [option, value, quick] : all) {
    if (o.quick && option->count() == 0) *value = quick;
  }
  if (o.quick) o.epochs = 1;
  expect_valid(s, d);
  expect_valid(o.schedule);
}

int check() {
  bool ok = examples::gradients_are_right(check_gradient);
  const double ddim = check_ddim(), frechet = check_frechet();
  std::printf("largest error of DDIM %.1e, of the distance %.1e\n", ddim, frechet);
  ok = ok && ddim <= kLargestDdimError && frechet <= kLargestFrechetError;
  if (!ok) {
    std::fprintf(stderr, "FAILED: expected at most %.0e and %.0e\n", kLargestDdimError,
                 kLargestFrechetError);
  }
  return ok ? 0 : 1;
}

/// Trains to the end or to an interrupt, and saves.
/// \returns the images that were read in a second
double train(Model<float>& model, examples::TrainingState<float>& state, const Options& o,
             const examples::Images& images, Workers<float>& workers) {
  const auto batch = static_cast<double>(o.schedule.batch);
  const auto run =
      training_run(o, model.settings().attention,
                   {{"settings", to_json(model.settings())}, {"images", images.to_json()}});
  const auto learn = [&](Index step, std::span<float> gradient) {
    average(state);
    return workers.learn(model, images, o.schedule, step, gradient);
  };
  const auto update = [&] {
    examples::constrain_mixing(model.table(), state.parameters);
    model.set_parameters(state.parameters);
  };
  const auto show = [batch](double loss, double speed) {
    return examples::text("loss %.4f  %5.0f images/s", loss, batch * speed);
  };
  return batch * examples::train(run, o.schedule, state, learn, update, show);
}

/// Draws all sets.
/// \returns false if there was an interrupt
bool draw(const Model<float>& model, const Options& o, Workers<float>& workers, Judge& judge,
          Result& result) {
  using Clock = std::chrono::steady_clock;
  examples::ProgressLine line(result.name());
  const auto begin = Clock::now();
  for (Index set = 0; set < o.drawing.sets && !examples::interrupted(); ++set) {
    const mhla::Matrix<float> images = workers.draw(model, o.drawing, set);
    judge.look(images, result.judgement);
    if (set == 0) result.images = images;
    const std::chrono::duration<double> each = (Clock::now() - begin) / (set + 1);
    line(set + 1, o.drawing.sets, each.count() * static_cast<double>(o.drawing.sets - set - 1),
         [&] { return examples::text("sets of %td images drawn", o.drawing.images); });
  }
  return !examples::interrupted();
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
  Result result;
  result.settings = settings;
  result.parameters = model.table().size();
  result.images_per_second = train(model, state, o, images, workers);
  model.set_parameters(average);
  if (examples::interrupted() || !draw(model, o, workers, judge, result)) return std::nullopt;
  result.losses = state.losses;
  return result;
}

int run(const Options& o) {
  expect_files(o);
  const auto training = examples::read_images(o.data, examples::Part::kTraining, o.images);
  const auto test = examples::read_images(o.data, examples::Part::kTest, kTestImages);
  mhla::ThreadPool pool(o.threads);
  Judge judge(training, test, o.epochs, o.settings.seed, pool);
  std::printf("the classifier is right about %.1f %% of the test images\n", 100 * judge.accuracy());
  std::fflush(stdout);
  const auto each = run_each(o, o.settings, [&](const Settings& settings) {
    return run_one(settings, o, training, pool, judge);
  });
  if (!each) return examples::interrupted_status();
  const std::vector<Result>& results = *each;
  Judgement real;
  for (Index set = 0; set < o.drawing.sets; ++set) {
    judge.look(real_images(training, o.drawing.images, set), real);
  }
  print_table(results, real);
  nlohmann::json all{{"schedule", to_json(o.schedule)},
                     {"drawing", to_json(o.drawing)},
                     {"classifier_accuracy", judge.accuracy()},
                     {"real",
                      {{"frechet", to_json(real)},
                       {"images", to_json(real_images(training, o.drawing.images, 0))}}}};
  for (const Result& result : results) all["results"].push_back(to_json(result));
  examples::write_and_draw(o.output, all, CHART);
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
