#pragma once

/// \file
/// What the user sees: a table, and a JSON of all results.

#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "../support/training_loop.hpp"
#include "settings.hpp"

namespace train_images {

/// The outcome of one training.
struct Result {
  Settings settings;
  Index parameters = 0;
  double test_accuracy = 0;
  double images_per_second = 0;
  std::vector<double> losses;                       ///< of each step
  std::vector<mhla::Matrix<float>> initial_mixing;  ///< [M,M] of each block; MHLA only
  std::vector<mhla::Matrix<float>> learned_mixing;

  double training_loss() const {  ///< mean over the last tenth of the steps
    return examples::last_mean(losses, std::max<std::size_t>(losses.size() / 10, 1));
  }
};

inline void print_table(const std::vector<Result>& results) {
  std::printf("attention  parameters  test accuracy  training loss  images/s\n");
  for (const Result& r : results) {
    std::printf("%-9s  %10td  %11.2f %%  %13.4f  %8.0f\n",
                name_of(kAttentions, r.settings.attention).c_str(), r.parameters,
                100 * r.test_accuracy, r.training_loss(), r.images_per_second);
  }
}

/// Matrices as lists of rows.
inline nlohmann::json rows_of(const std::vector<mhla::Matrix<float>>& matrices) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& m : matrices) {
    nlohmann::json matrix = nlohmann::json::array();
    for (Index i = 0; i < m.rows(); ++i) {
      matrix.push_back(std::vector<float>(m.row(i).begin(), m.row(i).end()));
    }
    list.push_back(matrix);
  }
  return list;
}

inline nlohmann::json to_json(const examples::Schedule& schedule, Index images, Index epochs,
                              const std::vector<Result>& results) {
  nlohmann::json json{{"schedule", to_json(schedule)}, {"images", images}, {"epochs", epochs}};
  for (const Result& r : results) {
    json["results"].push_back({{"settings", to_json(r.settings)},
                               {"parameters", r.parameters},
                               {"test_accuracy", r.test_accuracy},
                               {"training_loss", r.training_loss()},
                               {"images_per_second", r.images_per_second},
                               {"losses", r.losses},
                               {"initial_mixing", rows_of(r.initial_mixing)},
                               {"learned_mixing", rows_of(r.learned_mixing)}});
  }
  return json;
}

}  // namespace train_images
