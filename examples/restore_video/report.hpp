#pragma once

/// \file
/// The output: a table, a JSON of all results, and a picture of frames.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../support/comparison.hpp"
#include "../support/picture.hpp"
#include "clips.hpp"

namespace restore_video {

/// The outcome of one training.
struct Result : examples::Outcome<Settings> {
  double psnr = 0;  ///< of hidden pixels of the clips held out, dB
  double clips_per_second = 0;
  mhla::Matrix<float> restored{};  ///< the clip of the picture

  double training_psnr() const { return Squares{training_loss(), 1}.psnr(); }  ///< dB
};

/// PSNR of fillings without learning.
struct Baselines {
  double mean, nearest_frame;
  std::size_t hardest = 0;  ///< the clip that the nearest frame fills worst: that of the picture

  Baselines(const std::vector<Clip<float>>& clips, const Settings& s) {
    Squares of_mean, of_nearest;
    double lowest = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < clips.size(); ++i) {
      of_mean.add(fill_with_mean(clips[i].patches, clips[i].mask, s), clips[i]);
      of_nearest.add(clips[i].filled, clips[i]);
      Squares of_clip;
      of_clip.add(clips[i].filled, clips[i]);
      if (of_clip.psnr() < lowest) lowest = of_clip.psnr(), hardest = i;
    }
    mean = of_mean.psnr(), nearest_frame = of_nearest.psnr();
  }
};

inline void print_table(const std::vector<Result>& results, const Baselines& baselines) {
  std::printf("filled by      parameters  PSNR held out  in training  clips/s\n");
  std::printf("mean colour                %10.2f dB\n", baselines.mean);
  std::printf("nearest frame              %10.2f dB\n", baselines.nearest_frame);
  for (const Result& r : results) {
    std::printf("%-13s  %10td  %10.2f dB  %8.2f dB  %7.2f\n", r.name().c_str(), r.parameters,
                r.psnr, r.training_psnr(), r.clips_per_second);
  }
}

inline void to_json(nlohmann::json& json, const Result& r) {
  json = {{"settings", r.settings},
          {"parameters", r.parameters},
          {"psnr", r.psnr},
          {"training_psnr", r.training_psnr()},
          {"clips_per_second", r.clips_per_second},
          {"losses", r.losses}};
}

/// Six frames of a clip side by side, `height` pixels high each.
inline picture::Picture row_of_frames(const mhla::Matrix<float>& patches, const Settings& s,
                                      Index height, Index gap) {
  constexpr Index kShown = 6;
  mhla::Matrix<float> image = mhla::Matrix<float>::Zero(kColours * s.frames * s.height, s.width);
  mhla::patches_adjoint(patches, s.patches(), image);  // puts patches back into the image
  const Index width = std::max<Index>(height * s.width / s.height, 1),
              shown = std::min(kShown, s.frames);
  picture::Picture row(height, shown * (width + gap) - gap);
  row.setConstant(picture::Color::Constant(255));
  for (Index i = 0; i < shown; ++i) {
    const Index f = shown == 1 ? 0 : i * (s.frames - 1) / (shown - 1);
    picture::Picture frame(s.height, s.width);
    for (Index y = 0; y < s.height; ++y) {
      for (Index x = 0; x < s.width; ++x) {
        for (Index c = 0; c < kColours; ++c) {
          const float value = image((c * s.frames + f) * s.height + y, x);
          frame(y, x)[c] = static_cast<stbi_uc>(127.5f * (std::clamp(value, -1.f, 1.f) + 1));
        }
      }
    }
    row.block(0, i * (width + gap), height, width) = picture::resized(
        frame.data()->data(), s.height, s.width, height, width, "a frame of the picture");
  }
  return row;
}

/// Draws frames of a clip: masked, restored by each model, and true.
inline picture::Picture strip(const Clip<float>& clip, const std::vector<Result>& results,
                              const Baselines& baselines) {
  constexpr Index kHeight = 132, kGap = 6, kLetters = 26, kLetterSize = 2;
  const Settings& s = results.front().settings;
  mhla::Matrix<float> seen = clip.patches;
  for (Index t = 0; t < seen.rows(); ++t) {
    if (clip.hidden(t)) seen.row(t).setConstant(0.6f);
  }
  std::vector<std::pair<std::string, mhla::Matrix<float>>> rows{
      {"masked", seen},
      {picture::text("nearest frame  %.2f dB", baselines.nearest_frame), clip.filled}};
  for (const Result& r : results) {
    rows.emplace_back(picture::text("%s  %.2f dB", r.name().c_str(), r.psnr), r.restored);
  }
  rows.emplace_back("true", clip.patches);

  const Index step = kHeight + kLetters + kGap;
  const Index width = row_of_frames(seen, s, kHeight, kGap).cols();
  picture::Picture canvas(kGap + std::ssize(rows) * step, width + 2 * kGap);
  canvas.setConstant(picture::Color::Constant(255));
  Index y = kGap;
  for (const auto& [label, patches] : rows) {
    picture::write(canvas, kGap, y + 4, kLetterSize, picture::Color::Constant(40), label);
    canvas.block(y + kLetters, kGap, kHeight, width) = row_of_frames(patches, s, kHeight, kGap);
    y += step;
  }
  return canvas;
}

}  // namespace restore_video
