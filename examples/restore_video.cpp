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
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "restore_video/checks.hpp"
#include "restore_video/report.hpp"
#include "support/picture.hpp"
#include "support/results.hpp"
#include "support/training_loop.hpp"

namespace {

using namespace restore_video;

constexpr char kProgram[] = "restore_video";

/// What the command line says.
struct Options {
  Settings settings;
  examples::Schedule schedule{.steps = 1200, .batch = 2, .rate = 2e-3};
  std::vector<std::string> attentions{"softmax", "linear", "mhla"};
  Index threads = std::max<Index>(std::thread::hardware_concurrency(), 1);
  std::string video;
  std::string output = kProgram;
  bool quick = false;
  bool resume = false;
  bool check = false;
};

/// \throws CLI::ParseError.
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  const auto range = [](Index low, Index high) { return CLI::Range(low, high); };
  const Index most = std::numeric_limits<Index>::max();
  app.add_flag("--quick", o.quick, "seconds: a small model, 20 steps of 8 frames");
  app.add_option("--video", o.video, "frames as PPM, one behind the other; without it, discs")
      ->take_last();
  app.add_option("--threads", o.threads, "workers")->check(range(1, 1024));
  app.add_option("--output", o.output, "prefix of the files that are written");
  app.add_flag("--resume", o.resume, "go on from the checkpoints of such a run");
  app.add_flag("--check", o.check, "check gradients in double, and the PSNR")->group("");

  app.option_defaults()->group("Model");
  app.add_option("--attention", o.attentions, "softmax, linear or mhla; repeatable")
      ->check(CLI::IsMember({"softmax", "linear", "mhla"}))
      ->expected(1)
      ->take_all();
  Settings& s = o.settings;
  const auto* const dim = app.add_option("--dim", s.dim, "channels")->check(range(2, 4096));
  const auto* const depth = app.add_option("--depth", s.depth, "blocks")->check(range(1, 64));
  app.add_option("--heads", s.heads, "heads of an attention")->check(range(1, 1024));
  const auto* const frames =
      app.add_option("--frames", s.frames, "frames of a clip")->check(range(1, 1024));
  app.add_option("--stride", s.stride, "frames of the video to the next of a clip")
      ->check(range(1, 1024));
  app.add_option("--patch", s.patch, "pixels along a side of a patch")->check(range(1, 1024));
  app.add_option("--masked", s.masked, "fraction of patches that is hidden")->check(CLI::Number);
  app.add_option("--seed", s.seed, "of parameters, clips and boxes")->check(range(0, most));

  app.option_defaults()->group("Training");
  const auto* const steps =
      app.add_option("--steps", o.schedule.steps, "of training")->check(range(1, 100'000'000));
  app.add_option("--batch", o.schedule.batch, "clips of a step")->check(range(1, 65536));
  app.add_option("--rate", o.schedule.rate, "largest learning rate")->check(CLI::Number);
  app.parse(argc, argv);

  if (o.quick && dim->count() == 0) s.dim = 32;
  if (o.quick && depth->count() == 0) s.depth = 2;
  if (o.quick && frames->count() == 0) s.frames = 8;
  if (o.quick && steps->count() == 0) o.schedule.steps = 20;
}

int check() {
  bool ok = true;
  for (const auto& [name, attention] : examples::kAttentions) {
    const examples::GradientError gradient = check_gradient(attention);
    std::printf("%-7s  largest error of a gradient %.1e, in %s\n", name.c_str(), gradient.relative,
                gradient.tensor.c_str());
    ok = ok && gradient.relative <= examples::kLargestGradientError;
  }
  const double psnr = psnr_of_a_tenth();
  std::printf("an error of a tenth of the range has a PSNR of %.6f dB\n", psnr);
  ok = ok && std::abs(psnr - 20) < 1e-9;
  if (!ok) {
    std::fprintf(stderr, "FAILED: expected at most %.0e, and 20 dB\n",
                 examples::kLargestGradientError);
  }
  return ok ? 0 : 1;
}

std::filesystem::path checkpoint_of(const Options& o, const std::string& attention) {
  return o.output + "." + attention + ".safetensors";
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
  const examples::TrainingRun run{.name = result.name(),
                                  .checkpoint = checkpoint_of(o, result.name()),
                                  .program = kProgram,
                                  .depends = {{"settings", to_json(settings)},
                                              {"schedule", to_json(o.schedule)},
                                              {"video", video.to_json()}},
                                  .resume = o.resume};
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
  examples::expect_folder("--output", json);
  const Video video = o.video.empty() ? Video::of_discs(240, 48, 64) : Video(o.video);
  o.settings.height = video.height(), o.settings.width = video.width();
  expect_valid(o.settings);
  expect_valid(o.schedule);
  const auto held_out = held_out_clips<float>(video, o.settings);
  std::vector<std::filesystem::path> checkpoints;
  for (const std::string& attention : o.attentions) {
    checkpoints.push_back(checkpoint_of(o, attention));
  }
  if (o.resume) examples::expect_any(checkpoints);
  std::printf("%td frames, %td clips held out; %td tokens a clip\n", video.frames(),
              std::ssize(held_out), o.settings.tokens());
  std::fflush(stdout);
  const Baselines baselines(held_out, o.settings);
  examples::catch_interrupts();
  std::vector<Result> results;
  for (const std::string& attention : o.attentions) {
    Settings settings = o.settings;
    settings.attention = examples::named(examples::kAttentions, attention);
    auto result = run_one(settings, o, video, held_out, baselines.hardest);
    if (!result) return examples::interrupted_status();
    results.push_back(std::move(*result));
  }
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
  CLI::App app("Trains a video transformer, once for each attention, and fills holes in a clip.");
  app.option_defaults()->always_capture_default();
  Options options;
  try {
    parse(app, options, argc, argv);
    return options.check ? check() : run(options);
  } catch (const CLI::Success& request) {  // --help
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s (see --help)\n", kProgram, error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", kProgram, error.what());
    return 1;
  }
}
