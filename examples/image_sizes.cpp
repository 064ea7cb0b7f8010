/// \file
/// Trains a vision transformer on Fashion-MNIST at one image size, and tests it at three others.
///
/// Training images have 16 x 16 tokens in 4 x 4 blocks. Tests stretch the same images over 12 x 12,
/// 24 x 24 and 16 x 24 tokens, in blocks as large. A model learns its mixing matrices, which other
/// sizes need to resize. Two learn a table over offsets of blocks (DistanceMixing), which gives the
/// matrices of any size. Another has linear attention, without a matrix. Position embeddings are
/// stretched in all of them.
///
/// Run:       bash examples/run.sh image_sizes [--quick] [options], see --help
/// Expected:  see image_sizes/README.md

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "image_sizes/variants.hpp"
#include "support/command_line.hpp"
#include "support/comparison.hpp"
#include "support/fashion_mnist.hpp"
#include "support/results.hpp"

namespace {

using namespace image_sizes;

constexpr char kProgram[] = "image_sizes";
constexpr GridShape kGrids[] = {{16, 16}, {12, 12}, {24, 24}, {16, 24}};  // the first is trained

struct Options {
  Settings settings;
  examples::Schedule schedule{.batch = 64, .rate = 2e-3};
  Index epochs = 5, images = 20000, test_images = 2000, threads = 1;
  std::string data = "/usr/share/datasets/fashion-mnist";
  bool quick = false;
};

/// \throws CLI::ParseError
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  const auto range = [](Index low, Index high) { return CLI::Range(low, high); };
  app.add_flag("--quick", o.quick, "some seconds: a smaller model, 512 images and 128 tests");
  app.add_option("--data", o.data, "folder of the data set");
  app.add_option("--epochs", o.epochs, "times an image is seen")->check(range(1, 10000));
  app.add_option("--images", o.images, "training images")->check(range(64, 60000));
  app.add_option("--test-images", o.test_images, "test images")->check(range(1, 10000));
  app.add_option("--threads", o.threads, "workers")->check(range(1, 1024));
  examples::add_seed_option(app, o.settings.seed, "of parameters and of the order of images");
  app.parse(argc, argv);
  if (o.quick) {
    examples::set_quick_values(app, {{"--epochs", o.epochs, 1},
                                     {"--images", o.images, 512},
                                     {"--test-images", o.test_images, 128}});
    o.settings.dim = 16;
    o.settings.depth = 2;
  }
  o.schedule.steps = o.images / o.schedule.batch * o.epochs;
}

/// The matrices of all blocks on a grid of blocks.
using MixingOn = std::function<Matrices(GridShape blocks)>;

/// Prints the accuracy at each size.
void print_row(const char* name, const Model<float>& trained, const Options& o, const Images& test,
               const MixingOn& mixing_on) {
  std::printf("%-40s", name);
  for (const GridShape grid : kGrids) {
    Settings settings = trained.settings();
    settings.grid = grid;
    const Model<float> model =
        on_grid(trained, grid, mixing_on ? mixing_on(block_grid(settings)) : Matrices{});
    Workers<float> workers(model, o.threads);
    std::printf(" %8.2f", 100 * accuracy_of(model, test, workers));
    std::fflush(stdout);
  }
  std::printf("\n");
}

void compare(const Options& o) {
  const Images images = read_images(o.data, examples::Part::kTraining, o.images);
  const Images test = read_images(o.data, examples::Part::kTest, o.test_images);
  const examples::TrainingRun run{
      .name = kProgram, .checkpoint = {}, .program = kProgram, .depends = {}, .quiet = true};
  const GridShape trained_blocks = block_grid(o.settings);  // 4 x 4
  const GridShape offsets(2 * trained_blocks[1] - 1, 2 * trained_blocks[2] - 1);
  std::printf("test accuracy, %%                        ");
  for (const GridShape g : kGrids) std::printf(" %5td x %td", g[1], g[2]);
  std::printf("\n");

  Settings settings = o.settings;
  settings.attention = train_images::Attention::kLinear;
  Model<float> linear(settings);
  Workers<float> linear_workers(linear, o.threads);
  train(run, o.schedule, linear, linear_workers, images, images.count());
  print_row("linear attention", linear, o, test, {});

  settings.attention = train_images::Attention::kMhla;
  Model<float> learned(settings);
  Workers<float> workers(learned, o.threads);
  train(run, o.schedule, learned, workers, images, images.count());
  const auto each = [&](const auto& matrix_of) {
    Matrices all;
    for (const auto& m : learned.mixing()) all.push_back(matrix_of(mhla::MixingMatrix<float>(m)));
    return all;
  };
  for (const auto unit : {mhla::DistanceUnit::kExtent, mhla::DistanceUnit::kBlock}) {
    const bool extent = unit == mhla::DistanceUnit::kExtent;
    print_row(
        extent ? "learned matrices, resized by extent" : "learned matrices, resized by block",
        learned, o, test, [&](GridShape to) {
          return each([&](const mhla::MixingMatrix<float>& m) {
            return to == trained_blocks ? m : resize(m, trained_blocks, to, {.unit = unit}).mixing;
          });
        });
  }
  double residual = 0;
  Tables fitted;
  each([&](const mhla::MixingMatrix<float>& m) {
    const auto fit = fit_distance(m, trained_blocks, offsets);
    residual = std::max(residual, fit.residual);
    fitted.push_back(fit.mixing);
    return m;
  });
  print_row("learned matrices, then fit_distance", learned, o, test,
            [&](GridShape to) { return matrices_of(fitted, to); });

  settings.freeze_mixing = true;
  for (const GridShape reach : {offsets, GridShape(3, 3)}) {
    Model<float> distance(settings);
    Tables tables(static_cast<std::size_t>(settings.depth), mhla::distance_locality<float>(reach));
    train_tables(run, o.schedule, distance, tables, workers, images);
    print_row(reach == offsets ? "DistanceMixing, all offsets" : "DistanceMixing, 3 x 3 offsets",
              distance, o, test, [&](GridShape to) { return matrices_of(tables, to); });
  }
  std::printf("largest residual of fit_distance: %.3f\n", residual);
}

}  // namespace

int main(int argc, char** argv) {
  return examples::with_command_line(
      kProgram, "Trains at one image size, and tests at three others.", [&](CLI::App& app) {
        Options options;
        parse(app, options, argc, argv);
        compare(options);
        return 0;
      });
}
