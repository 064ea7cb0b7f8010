/// \file
/// Generates a video chunk by chunk: a chunk is a frame, and the state of the stream is bounded.
///
/// A denoiser is trained on clips of a disc that bounces off the walls of a box. Every token reads
/// its frame and the three frames before it whole (block_causal). Then three true frames begin a
/// video, and the model draws the others. A frame begins as noise. The model visits it several
/// times, with less noise each time. A visit appends the frame to the streams, reads the outputs
/// and rolls the streams back (BlockStreaming). The last frame stays. A video of any length takes
/// the same memory.
///
/// The program checks that frames from streams are those of one call on the whole clip. It prints
/// the PSNR of drawn frames against true ones, and of a video that stands still.
///
/// Run:  bash examples/run.sh stream_video [--quick] [options], see --help

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "stream_video/frames.hpp"
#include "stream_video/generator.hpp"
#include "stream_video/training.hpp"
#include "support/clock.hpp"
#include "support/command_line.hpp"
#include "support/results.hpp"

namespace {

using namespace stream_video;
using Rows = mhla::Matrix<float>;

constexpr Index kGiven = 3;  // frames that begin a video

struct Settings {
  Index steps = 6000, clips = 16, visits = 8, frames = 32, videos = 16, threads = 2;
  double rate = 2e-3;
  std::string output = "stream_video.png";
};

/// PSNR of a mean square error of numbers from -1 to 1.
double psnr(double square) { return 10 * std::log10(4 / square); }

/// The largest difference of frames that are appended to streams, after visits with noise, from
/// those of one call.
float largest_difference(const Denoiser<float>& model) {
  const Options<float>& o = model.options();
  examples::Random random(1);
  const Rows clip = draw_clip(o, o.frames, random);
  Rows levels(o.frames, kLevels);
  for (Index f = 0; f < o.frames; ++f) write_level(0.5, levels.row(f).data());
  const Rows whole = model(clip, levels);
  Generator video(model, o.frames);
  float worst = 0;
  for (Index f = 0; f < o.frames; ++f) {
    video.visit(draw_noise<float>(o.patches(), o.channels, random), 1);
    const Rows frame = frame_of(clip, f, o);
    const Rows y = video.append(frame, 0.5);
    worst = std::max(worst, (y - frame_of(whole, f, o)).cwiseAbs().maxCoeff());
  }
  return worst / whole.cwiseAbs().maxCoeff();
}

int run(const Settings& s) {
  examples::expect_folder("--output", s.output);
  if (!gradient_is_right()) throw std::runtime_error("the gradient is wrong");
  Denoiser<float> model{Options<float>()};
  const Options<float>& o = model.options();
  initialize(model, 1);
  mhla::ThreadPool pool(s.threads);
  const double minutes =
      examples::seconds_of(0, [&] { train(model, s.steps, s.clips, s.rate, 1'000'000, pool); }) /
      60;
  std::printf("%td parameters, trained in %.1f minutes\n", model.table().size(), minutes);

  const float difference = largest_difference(model);
  std::printf("largest difference of streams from one call %.1e\n", difference);
  if (!(difference < 1e-5F)) throw std::runtime_error("streams do not give what one call gives");

  std::vector<double> drawn(static_cast<std::size_t>(s.frames)), still(drawn);
  std::size_t bytes = 0;
  double seconds = 0;
  for (Index v = 0; v < s.videos; ++v) {
    examples::Random random(static_cast<std::uint64_t>(v) + 1);
    const Rows truth = draw_clip(o, s.frames, random);
    Rows video = truth;
    Generator generator(model, s.frames);
    for (Index f = 0; f < kGiven; ++f) generator.commit(frame_of(truth, f, o));
    seconds += examples::seconds_of(0, [&] {
      for (Index f = kGiven; f < s.frames; ++f) {
        frame_of(video, f, o) = generator.draw(s.visits, random);
      }
    });
    for (Index f = kGiven; f < s.frames; ++f) {
      const auto mean = [&](const Rows& other) {
        return static_cast<double>((other - frame_of(truth, f, o)).squaredNorm()) /
               static_cast<double>(other.size() * s.videos);
      };
      drawn[static_cast<std::size_t>(f)] += mean(frame_of(video, f, o));
      still[static_cast<std::size_t>(f)] += mean(frame_of(truth, kGiven - 1, o));
    }
    bytes = generator.state_bytes();
    if (v == 0) picture::save(strip(video, truth, o), s.output);
  }
  std::printf("\n  frame   drawn, dB   standing still, dB\n");
  for (Index f = kGiven; f < s.frames; f = f < 2 * kGiven ? f + 1 : 2 * f) {
    std::printf("%7td %11.1f %20.1f\n", f, psnr(drawn[static_cast<std::size_t>(f)]),
                psnr(still[static_cast<std::size_t>(f)]));
  }
  std::printf("%.1f ms a frame of %td visits; states of %zu bytes\n%s\n",
              1000 * seconds / static_cast<double>(s.videos * (s.frames - kGiven)), s.visits, bytes,
              s.output.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::with_command_line(
      "stream_video", "Trains a denoiser of video, and generates videos frame by frame.",
      [&](CLI::App& app) {
        Settings s;
        const auto range = [](Index low, Index high) { return CLI::Range(low, high); };
        bool quick = false;
        app.add_flag("--quick", quick, "seconds: 20 steps, two videos");
        app.add_option("--steps", s.steps, "of the training")->check(range(1, 1'000'000));
        app.add_option("--clips", s.clips, "of a step")->check(range(1, 4096));
        app.add_option("--visits", s.visits, "of a frame that is drawn")->check(range(1, 1000));
        app.add_option("--frames", s.frames, "of a video that is drawn")
            ->check(range(4, 1'000'000));
        app.add_option("--videos", s.videos, "that are drawn")->check(range(1, 1'000'000));
        app.add_option("--threads", s.threads, "of the training")->check(range(1, 1024));
        app.add_option("--rate", s.rate, "largest learning rate")->check(examples::finite());
        app.add_option("--output", s.output, "picture of the first video, above the true one");
        app.parse(argc, argv);
        if (quick) {
          examples::set_quick_values(app, {{"--steps", s.steps, 20}, {"--videos", s.videos, 2}});
        }
        return run(s);
      });
}
