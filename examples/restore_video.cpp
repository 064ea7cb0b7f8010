/// \file
/// Trains a video transformer to fill holes in a clip with softmax, linear and MHLA attention.
///
/// Space-time boxes hide half of the patches of 16 frames; the models correct what the nearest
/// frame shows there. All three see the same clips and boxes in the same order and start from the
/// same parameters. The blocks, with a 3-D rotary embedding and 3-D blocks of MHLA, and the
/// optimiser are the library's; the model is in restore_video/model.hpp. Trained are the first four
/// fifths of one video, tested is the rest, with boxes of its own: one scene, so no measure of
/// restoring others.
///
/// Ends with the PSNR of hidden pixels held out, beside that of the clip's mean colour and of the
/// nearest frame, PREFIX.json with all results and PREFIX.png, frames of the clip held out that the
/// nearest frame fills worst: masked, restored, true.
/// A training is saved to PREFIX.ATTENTION.safetensors every minute, at Ctrl-C and at the end;
/// --resume goes on from there, to the same bits as without a stop.
///
/// The video is a hand that turns a box, from Debian's opencv-doc (Apache-2.0 and BSD-3-Clause);
/// without --video the program draws one.
///
/// Run:  bash examples/run.sh restore_video [--quick] [--resume] [options], see --help

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <stdexcept>
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

/// What the command line says.
struct Options : examples::Comparison {
  using Comparison::Comparison;

  Settings settings;
  std::string video;
};

/// \throws CLI::ParseError.
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  const auto range = [](Index low, Index high) { return CLI::Range(low, high); };
  const Index most = std::numeric_limits<Index>::max();
  add_run_options(app, o, "seconds: a small model, 20 steps of 8 frames",
                  "check gradients in double, and the PSNR");
  app.add_option("--video", o.video, "frames as PPM, one behind the other; without it, discs")
      ->take_last();

  add_attention_option(app, o);
  Settings& s = o.settings;
  const auto* const dim = app.add_option("--dim", s.dim, "channels")->check(range(2, 4096));
  const auto* const depth = app.add_option("--depth", s.depth, "blocks")->check(range(1, 64));
  app.add_option("--heads", s.heads, "heads of an attention")->check(range(1, 1024));
  const auto* const frames =
      app.add_option("--frames", s.frames, "frames of a clip")->check(range(1, 1024));
  app.add_option("--stride", s.stride, "frames of the video to the next of a clip")
      ->check(range(1, 1024));
  app.add_option("--patch", s.patch, "pixels along a side of a patch")->check(range(1, 1024));
  app.add_flag("!--no-gate", s.gate, "no gate behind attention");
  app.add_option("--masked", s.masked, "fraction of patches that is hidden")->check(CLI::Number);
  app.add_option("--seed", s.seed, "of parameters, clips and boxes")->check(range(0, most));

  add_training_options(app, o, "clips", 65536);
  const auto* const steps = add_steps_option(app, o);
  app.parse(argc, argv);

  if (o.quick && dim->count() == 0) s.dim = 32;
  if (o.quick && depth->count() == 0) s.depth = 2;
  if (o.quick && frames->count() == 0) s.frames = 8;
  if (o.quick && steps->count() == 0) o.schedule.steps = 20;
}

int check() {
  bool ok = examples::gradients_are_right(check_gradient);
  const double psnr = psnr_of_a_tenth();
  std::printf("an error of a tenth of the range has a PSNR of %.6f dB\n", psnr);
  ok = ok && std::abs(psnr - 20) < 1e-9;
  if (!ok) std::fprintf(stderr, "FAILED: expected 20 dB, and small errors\n");
  return ok ? 0 : 1;
}

/// \param shown  the clip of the picture
/// \returns nothing if there was an interrupt; then the training is saved.
std::optional<Result> run_one(const Settings& settings, const Options& o, const Video& video,
                              const std::vector<Clip<float>>& held_out, std::size_t shown) {
  Model<float> model(settings);
  Workers<float> workers(model, o.threads);
  std::vector<float> row(model.parameters().begin(), model.parameters().end());
  examples::TrainingState<float> state{row, examples::Optimizer<float>(model.trained())};
  Result result{.settings = settings, .parameters = model.table().size()};
  const auto run = training_run(o, settings.attention,
                                {{"settings", to_json(settings)}, {"video", video.to_json()}});
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
  const std::vector<Result>& results = *each;
  print_table(results, baselines);
  nlohmann::json all{{"schedule", to_json(o.schedule)},
                     {"video", video.to_json()},
                     {"mean_colour", baselines.mean},
                     {"nearest_frame", baselines.nearest_frame}};
  for (const Result& result : results) all["results"].push_back(to_json(result));
  examples::write_results(json, all);
  picture::save(strip(held_out[baselines.hardest], results, baselines), picture);
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
