/// \file
/// Trains a video transformer to fill holes in a clip with softmax, linear and MHLA attention.
///
/// Space-time boxes hide half of the patches of 16 frames. The models correct the patches of the
/// nearest frame that shows them. All three see the same clips and boxes in the same order and
/// start from the same parameters. The library has the blocks, with a 3-D rotary embedding and 3-D
/// blocks of MHLA, and the optimiser; restore_video/model.hpp has the model. The first four fifths
/// of one video are for training, the rest is for tests, with separate boxes. One scene does not
/// measure how well other scenes are restored.
///
/// Ends with the PSNR of hidden pixels in held-out clips, beside the PSNR of the clip's mean colour
/// and of the nearest frame, and PREFIX.json with all results. PREFIX.png has frames of the
/// held-out clip that the nearest frame fills worst: masked, restored, true.
///
/// The video is a hand that turns a box, from Debian's opencv-doc (Apache-2.0 and BSD-3-Clause).
/// Without --video the program draws a video.
///
/// Run:  bash examples/run.sh restore_video [--quick] [--resume] [options], see --help

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "restore_video/checks.hpp"
#include "restore_video/report.hpp"
#include "support/command_line.hpp"
#include "support/comparison.hpp"
#include "support/picture.hpp"
#include "support/results.hpp"

namespace {

using namespace restore_video;

/// Options of the command line.
struct Options : examples::Comparison {
  using Comparison::Comparison;

  Settings settings;
  std::string video;
};

/// \throws CLI::ParseError.
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  const auto range = [](Index low, Index high) { return CLI::Range(low, high); };
  add_run_options(app, o, "seconds: a small model, 20 steps of 8 frames",
                  "check gradients in double, and the PSNR");
  app.add_option("--video", o.video, "frames as PPM, one after the other; without it, discs")
      ->take_last();

  add_attention_option(app, o);
  Settings& s = o.settings;
  app.add_option("--dim", s.dim, "channels")->check(range(2, 4096));
  app.add_option("--depth", s.depth, "blocks")->check(range(1, 64));
  app.add_option("--heads", s.heads, "heads of an attention")->check(range(1, 1024));
  app.add_option("--frames", s.frames, "frames of a clip")->check(range(1, 1024));
  app.add_option("--stride", s.stride, "frames of the video to the next of a clip")
      ->check(range(1, 1024));
  app.add_option("--patch", s.patch, "pixels along a side of a patch")->check(range(1, 1024));
  app.add_flag("!--no-gate", s.gate, "no gate after attention");
  app.add_option("--masked", s.masked, "fraction of patches that is hidden")->check(CLI::Number);
  examples::add_seed_option(app, s.seed, "of parameters, clips and boxes");

  add_training_options(app, o, "clips", 65536);
  add_steps_option(app, o);
  app.parse(argc, argv);

  if (!o.quick) return;
  examples::set_quick_values(app, {{"--dim", s.dim, 32},
                                   {"--depth", s.depth, 2},
                                   {"--frames", s.frames, 8},
                                   {"--steps", o.schedule.steps, 20}});
}

/// \param shown  the clip of the picture
/// \returns nothing if there was an interrupt; then the training is saved.
std::optional<Result> run_one(const Settings& settings, const Options& o, const Video& video,
                              const std::vector<Clip<float>>& held_out, std::size_t shown) {
  Model<float> model(settings);
  Workers<float> workers(model, o.threads);
  std::vector<float> row(model.parameters().begin(), model.parameters().end());
  examples::TrainingState<float> state{row, examples::Optimizer<float>(model.trained())};
  Result result{{settings, model.table().size()}};
  const auto run =
      training_run(o, settings.attention, {{"settings", settings}, {"video", video.to_json()}});
  const auto batch = static_cast<double>(o.schedule.batch);
  const double steps_per_second = examples::train(
      run, o.schedule, state,
      [&](Index step, std::span<float> gradient) {
        return workers.learn(training_clips<float>(video, settings, step, o.schedule.batch),
                             gradient);
      },
      [&] { model.set_parameters(row); },
      [&](double loss, double speed) {
        return examples::text("loss %.4f  %6.2f clips/s", loss, batch * speed);
      });
  if (examples::interrupted()) return std::nullopt;
  result.clips_per_second = batch * steps_per_second;
  result.losses = state.losses;
  const auto restored = workers.restore(held_out);
  Squares squares;
  for (std::size_t i = 0; i < held_out.size(); ++i) squares.add(restored[i], held_out[i]);
  result.psnr = squares.psnr();
  result.restored = restored[shown];
  return result;
}

int run(Options& o) {
  const std::string json = o.output + ".json", picture = o.output + ".png";
  expect_files(o);
  const Video video = o.video.empty() ? Video::of_discs(240, 48, 64) : Video(o.video);
  o.settings.height = video.height(), o.settings.width = video.width();
  expect_valid(o.settings);
  expect_valid(o.schedule);
  const auto held_out = held_out_clips<float>(video, o.settings);
  std::printf("%td frames, %td clips held out; %td tokens a clip\n", video.frames(),
              std::ssize(held_out), o.settings.tokens());
  std::fflush(stdout);
  const Baselines baselines(held_out, o.settings);
  const auto each = run_each(o, o.settings, [&](const Settings& settings) {
    return run_one(settings, o, video, held_out, baselines.hardest);
  });
  if (!each) return examples::interrupted_status();
  print_table(*each, baselines);
  examples::write_results(json, {{"schedule", o.schedule},
                                 {"video", video.to_json()},
                                 {"mean_colour", baselines.mean},
                                 {"nearest_frame", baselines.nearest_frame},
                                 {"results", *each}});
  picture::save(strip(held_out[baselines.hardest], *each, baselines), picture);
  std::printf("%s\n%s\n", json.c_str(), picture.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::with_command_line(
      "restore_video",
      "Trains a video transformer, once for each attention, and fills holes in a clip.",
      [&](CLI::App& app) {
        Options options("restore_video", {.steps = 1200, .batch = 2, .rate = 2e-3});
        parse(app, options, argc, argv);
        return options.check ? check() : run(options);
      });
}
