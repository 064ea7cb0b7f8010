#pragma once

/// \file
/// The output: lines of each checkpoint, a table of their means, and a JSON.

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../support/progress_line.hpp"
#include "../train_images/report.hpp"
#include "fitting.hpp"

namespace convert {

/// Mixing matrices of a converted model before training.
enum class Start { kFitted, kLocality, kUniform };
inline constexpr std::array kStarts{Start::kFitted, Start::kLocality, Start::kUniform};
inline std::string name_of(Start start) {
  constexpr const char* kNames[] = {"fitted", "locality", "uniform"};
  return kNames[static_cast<std::size_t>(start)];
}

/// Test accuracies.
struct StartResult {
  double converted = 0;
  double trained = 0;  ///< an epoch later
};

/// Results of a checkpoint.
struct Conversion {
  std::string checkpoint;
  Settings teacher;
  double accuracy = 0;                        ///< of the teacher on the test images
  std::vector<BlockFit> fits{};               ///< of each block
  std::vector<mhla::Matrix<float>> mixing{};  ///< fitted [M,M] of each block
  std::vector<StartResult> of_starts{};       ///< in the order of kStarts
};

inline void print(const Conversion& c) {
  std::printf("%s: %s attention, test accuracy %.2f %%\n", c.checkpoint.c_str(),
              train_images::name_of(train_images::kAttentions, c.teacher.attention).c_str(),
              100 * c.accuracy);
  for (std::size_t b = 0; b < c.fits.size(); ++b) {
    std::printf("  block %td: heads away from the teacher's by %.3f with locality, %.3f fitted\n",
                b, c.fits[b].locality, c.fits[b].fitted);
  }
}

/// Text of a mean and a range in percent.
inline std::string mean_text(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  const auto [low, high] = std::ranges::minmax(values);
  return examples::text("%6.2f (%.2f to %.2f)", 100 * sum / static_cast<double>(values.size()),
                        100 * low, 100 * high);
}

inline void print_means(const std::vector<Conversion>& all) {
  const auto means = [&](auto&& value) {
    std::vector<double> values;
    for (const Conversion& c : all) values.push_back(value(c));
    return mean_text(values);
  };
  std::printf("test accuracy in %%, mean and range of %td\n", std::ssize(all));
  std::printf("%-9s  %-24s  %-24s\n", "mixing", "converted", "an epoch later");
  std::printf("%-9s  %-24s\n", "teacher", means([](const auto& c) { return c.accuracy; }).c_str());
  for (std::size_t s = 0; s < kStarts.size(); ++s) {
    std::printf("%-9s  %-24s  %-24s\n", name_of(kStarts[s]).c_str(),
                means([s](const auto& c) { return c.of_starts[s].converted; }).c_str(),
                means([s](const auto& c) { return c.of_starts[s].trained; }).c_str());
  }
}

inline void to_json(nlohmann::json& json, const Conversion& c) {
  json = {{"checkpoint", c.checkpoint}, {"teacher", c.teacher}, {"test_accuracy", c.accuracy}};
  for (const BlockFit& fit : c.fits) {
    json["residuals"].push_back({{"locality", fit.locality}, {"fitted", fit.fitted}});
  }
  json["mixing"] = train_images::rows_of(c.mixing);
  for (std::size_t s = 0; s < kStarts.size(); ++s) {
    json["starts"][name_of(kStarts[s])] = {{"converted", c.of_starts[s].converted},
                                           {"trained", c.of_starts[s].trained}};
  }
}

}  // namespace convert
