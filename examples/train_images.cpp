/// \file
/// Trains a small vision transformer on Fashion-MNIST with softmax, linear and MHLA attention.
///
/// All three see the same images in the same order and start from the same parameters. An image is
/// N = 256 tokens on a 16 x 16 grid; MHLA has M = 16 blocks of 4 x 4 tokens and learns how each
/// reads the others, starting from locality. Forward and backward passes, layers and optimiser are
/// the library's; the model is in train_images/model.hpp.
///
/// Ends with a table, PREFIX.json with all results, and PREFIX.png: the losses, and the mixing
/// matrix of each layer as it started and as it was learned.
///
/// Run:       bash examples/run.sh train_images [--quick] [options], see --help
///            four runs for the ablation of the mixing matrix:
///              --attention mhla --init uniform|locality [--freeze-mixing]
/// Expected:  (five minutes on two cores; numbers depend a little on the processor's instructions)
///
///     attention  parameters  test accuracy  training loss  images/s
///     softmax         42922        80.45 %         0.4898       707
///     linear          42922        80.16 %         0.4844      1933
///     mhla            43946        82.73 %         0.4312      1681

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/fashion_mnist.hpp"
#include "support/progress_line.hpp"
#include "support/results.hpp"
#include "train_images/gradient_check.hpp"
#include "train_images/report.hpp"
#include "train_images/training.hpp"
#include "train_images/weights.hpp"

namespace {

using namespace train_images;

/// What the command line says.
struct Options {
  Settings settings;
  Schedule schedule;
  std::vector<std::string> attentions{"softmax", "linear", "mhla"};
  Index images = 20000;
  Index test_images = 10000;
  Index threads = std::max<Index>(std::thread::hardware_concurrency(), 1);
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string output = "train_images";
  std::string save;
  std::string load;
  bool quick = false;
  bool evaluate = false;
  bool check_gradients = false;
};

/// The training that follows from `o`, less the files.
/// \throws std::runtime_error naming the option.
void expect_valid(const Options& o) {
  expect_valid(o.settings);
  if (!(o.schedule.rate > 0 && o.schedule.rate <= 1)) {
    throw std::runtime_error("--rate is " + std::to_string(o.schedule.rate) +
                             ", expected a number above 0, at most 1");
  }
  if (!o.save.empty() && o.attentions.size() != 1) {
    throw std::runtime_error("--save is for one --attention, got " +
                             std::to_string(o.attentions.size()));
  }
}

/// \throws CLI::ParseError, std::runtime_error naming the option.
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  const auto range = [](Index low, Index high) { return CLI::Range(low, high); };
  std::string init = name_of(kMixingStarts, o.settings.mixing_start);

  app.add_flag("--quick", o.quick, "about a minute: 1 epoch of 10,000 images");
  app.add_option("--data", o.data, "folder of the data set");
  app.add_option("--test-images", o.test_images, "test images")->check(range(1, 10000));
  app.add_option("--threads", o.threads, "workers")->check(range(1, 1024));
  auto* const evaluate = app.add_flag("--evaluate", o.evaluate, "only the test accuracy of --load");
  auto* const load = app.add_option("--load", o.load, "weights that --save wrote");
  evaluate->needs(load);
  load->needs(evaluate);
  app.add_flag("--check-gradients", o.check_gradients, "compare gradients with differences")
      ->group("");

  app.option_defaults()->group("Model");
  std::vector<const CLI::Option*> of_training{
      app.add_option("--attention", o.attentions, "softmax, linear or mhla; repeatable")
          ->check(CLI::IsMember({"softmax", "linear", "mhla"}))
          ->expected(1)
          ->take_all(),
      app.add_option("--dim", o.settings.dim, "channels of a token")->check(range(1, 1024)),
      app.add_option("--depth", o.settings.depth, "layers")->check(range(1, 64)),
      app.add_option("--heads", o.settings.heads, "heads of an attention")->check(range(1, 1024)),
      app.add_option("--blocks", o.settings.blocks, "MHLA: blocks of tokens, a power of two")
          ->check(range(1, kTokens)),
      app.add_option("--init", init, "MHLA: mixing at the start, uniform or locality")
          ->check(CLI::IsMember({"uniform", "locality"})),
      app.add_flag("--freeze-mixing", o.settings.freeze_mixing, "MHLA: mixing as at the start"),
      app.add_option("--seed", o.settings.seed, "of parameters and of the order of images")
          ->check(range(0, std::numeric_limits<Index>::max()))};

  app.option_defaults()->group("Training");
  auto* const epochs = app.add_option("--epochs", o.schedule.epochs, "times an image is seen")
                           ->check(range(1, 10000));
  auto* const images =
      app.add_option("--images", o.images, "training images")->check(range(1, 60000));
  of_training.insert(
      of_training.end(),
      {epochs, images,
       app.add_option("--rate", o.schedule.rate, "largest learning rate")->check(CLI::Number),
       app.add_option("--batch", o.schedule.batch, "images of a step")->check(range(1, 60000)),
       app.add_option("--output", o.output, "prefix of the .json and the .png"),
       app.add_option("--save", o.save, "safetensors file for the weights of one --attention")});
  app.parse(argc, argv);

  for (const CLI::Option* const option : of_training) {
    if (o.evaluate && option->count() > 0) {
      throw std::runtime_error(option->get_name() +
                               " is for training, expected none with --evaluate");
    }
  }
  o.settings.mixing_start = named(kMixingStarts, init);
  if (o.quick && epochs->count() == 0) o.schedule.epochs = 1;
  if (o.quick && images->count() == 0) o.images = 10000;
  expect_valid(o);
}

int check_gradients() {
  bool ok = true;
  for (const auto& [name, attention] : kAttentions) {
    const GradientError worst = check_gradient(attention, 1);
    std::printf("%-9s  largest error of a gradient %.1e, in %s\n", name.c_str(), worst.relative,
                worst.tensor.c_str());
    ok = ok && worst.relative <= kLargestGradientError;
  }
  if (!ok) std::fprintf(stderr, "FAILED: expected at most %.0e\n", kLargestGradientError);
  return ok ? 0 : 1;
}

int evaluate(const Options& o) {
  const Model<float> model = load_model(o.load);
  const Images test = examples::read_images(o.data, examples::Part::kTest, o.test_images);
  Workers<float> workers(model.settings(), o.threads);
  std::printf("%s: %s attention, test accuracy %.2f %%\n", o.load.c_str(),
              name_of(kAttentions, model.settings().attention).c_str(),
              100 * accuracy_of(model, test, workers));
  return 0;
}

Result train_one(const Settings& settings, const Options& o, const Images& training,
                 const Images& test) {
  Model<float> model(settings);
  Workers<float> workers(settings, o.threads);
  Result result;
  result.settings = settings;
  result.parameters = model.layout().size();
  const auto mixing = [&] {
    std::vector<mhla::Matrix<float>> all;
    for (Index b = 0; b < settings.depth && settings.attention == Attention::kMhla; ++b) {
      all.push_back(model.mixing(static_cast<std::size_t>(b)).dense());
    }
    return all;
  };
  result.initial_mixing = mixing();
  examples::ProgressLine line(name_of(kAttentions, settings.attention));
  const auto report = [&line](const Progress& p) {
    line(p.step, p.steps, p.seconds_left, [&p] {
      return examples::text("loss %.4f  accuracy %5.2f %%  %5.0f images/s", p.loss,
                            100 * p.accuracy, p.images_per_second);
    });
  };
  result.course = train(model, training, o.schedule, workers, report);
  result.learned_mixing = mixing();
  result.test_accuracy = accuracy_of(model, test, workers);
  if (!o.save.empty()) save_model(model, o.save);
  return result;
}

int train_all(const Options& o) {
  const std::filesystem::path json = o.output + ".json", picture = o.output + ".png";
  examples::expect_folder("--output", json);
  if (!o.save.empty()) examples::expect_folder("--save", o.save);
  const Images training = examples::read_images(o.data, examples::Part::kTraining, o.images);
  const Images test = examples::read_images(o.data, examples::Part::kTest, o.test_images);
  std::vector<Result> results;
  for (const std::string& attention : o.attentions) {
    Settings settings = o.settings;
    settings.attention = named(kAttentions, attention);
    results.push_back(train_one(settings, o, training, test));
  }
  print_table(results);
  write_json(json, o.schedule, o.images, results);
  std::printf("%s\n", json.c_str());
  if (!o.save.empty()) std::printf("%s\n", o.save.c_str());
  std::fflush(stdout);
  if (examples::draw(CHART, json, picture)) std::printf("%s\n", picture.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a small vision transformer on Fashion-MNIST, once for each attention.");
  app.option_defaults()->always_capture_default();
  Options options;
  try {
    parse(app, options, argc, argv);
    if (options.check_gradients) return check_gradients();
    return options.evaluate ? evaluate(options) : train_all(options);
  } catch (const CLI::Success& request) {  // --help
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "train_images: %s (see --help)\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_images: %s\n", error.what());
    return 1;
  }
}
