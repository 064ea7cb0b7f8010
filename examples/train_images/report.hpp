#pragma once

/// \file
/// What the user sees: a table, and a JSON of all results.

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../support/results.hpp"
#include "training.hpp"
#include "weights.hpp"

namespace train_images {

/// The outcome of one training.
struct Result {
  Settings settings;
  Index parameters = 0;
  double test_accuracy = 0;
  Course course;
  std::vector<mhla::Matrix<float>> initial_mixing;  ///< [M,M] of each block; MHLA only
  std::vector<mhla::Matrix<float>> learned_mixing;
};

inline void print_table(const std::vector<Result>& results) {
  std::printf("attention  parameters  test accuracy  training loss  images/s\n");
  for (const Result& r : results) {
    std::printf("%-9s  %10td  %11.2f %%  %13.4f  %8.0f\n",
                name_of(kAttentions, r.settings.attention).c_str(), r.parameters,
                100 * r.test_accuracy, r.course.final_loss, r.course.images_per_second);
  }
}

inline nlohmann::json to_json(const Schedule& s) {
  return {{"epochs", s.epochs},
          {"batch", s.batch},
          {"rate", s.rate},
          {"warm_up", s.warm_up},
          {"weight_decay", s.weight_decay},
          {"gradient_norm", s.gradient_norm}};
}

/// Writes the whole file or, with an exception, nothing.
inline void write_json(const std::filesystem::path& path, const Schedule& schedule, Index images,
                       const std::vector<Result>& results) {
  const auto rows = [](const std::vector<mhla::Matrix<float>>& matrices) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& m : matrices) {
      nlohmann::json matrix = nlohmann::json::array();
      for (Index i = 0; i < m.rows(); ++i) {
        matrix.push_back(std::vector<float>(m.row(i).begin(), m.row(i).end()));
      }
      list.push_back(matrix);
    }
    return list;
  };
  nlohmann::json json{{"schedule", to_json(schedule)}, {"images", images}};
  for (const Result& r : results) {
    json["results"].push_back({{"settings", to_json(r.settings)},
                               {"parameters", r.parameters},
                               {"test_accuracy", r.test_accuracy},
                               {"training_loss", r.course.final_loss},
                               {"images_per_second", r.course.images_per_second},
                               {"losses", r.course.losses},
                               {"initial_mixing", rows(r.initial_mixing)},
                               {"learned_mixing", rows(r.learned_mixing)}});
  }
  examples::write_results(path, json);
}

}  // namespace train_images
