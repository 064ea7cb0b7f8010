#pragma once

/// \file
/// The output: a table, and a JSON of all results.

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../support/comparison.hpp"
#include "judge.hpp"
#include "training.hpp"

namespace draw_images {

/// The outcome of one training.
struct Result : examples::Outcome<Settings> {
  double images_per_second = 0;  ///< in training
  Judgement judgement{};
  mhla::Matrix<float> images{};  ///< the first set
};

inline void print_table(const std::vector<Result>& results, const Judgement& real) {
  std::printf("attention  parameters  training loss  Frechet distance  recognised  images/s\n");
  const auto judged = [](const Judgement& j) {
    const Spread spread(j.distances);
    return examples::text("%8.3f +- %5.3f  %8.1f %%", spread.mean, spread.deviation,
                          100 * j.share());
  };
  for (const Result& r : results) {
    std::printf("%-9s  %10td  %13.4f  %s  %8.0f\n", r.name().c_str(), r.parameters,
                r.training_loss(), judged(r.judgement).c_str(), r.images_per_second);
  }
  std::printf("%-36s  %s\n", "training images", judged(real).c_str());
}

inline void to_json(nlohmann::json& json, const Judgement& j) {
  const Spread spread(j.distances);
  json = {{"distances", j.distances},
          {"mean", spread.mean},
          {"deviation", spread.deviation},
          {"recognised", j.share()}};
}

/// The first images, for the picture, each 28 x 28 bytes as hexadecimal digits.
inline nlohmann::json digits_of(const mhla::Matrix<float>& images) {
  constexpr Index kShown = 2 * kClasses;
  nlohmann::json list = nlohmann::json::array();
  for (Index i = 0; i < std::min(kShown, images.rows()); ++i) {
    std::string digits;
    for (const std::uint8_t pixel : grey(images.row(i).data())) {
      for (const int digit : {pixel >> 4, pixel & 15}) digits += "0123456789abcdef"[digit];
    }
    list.push_back(digits);
  }
  return list;
}

inline void to_json(nlohmann::json& json, const Result& r) {
  json = {{"settings", r.settings},
          {"parameters", r.parameters},
          {"training_loss", r.training_loss()},
          {"images_per_second", r.images_per_second},
          {"losses", r.losses},
          {"frechet", r.judgement},
          {"images", digits_of(r.images)}};
}

}  // namespace draw_images
