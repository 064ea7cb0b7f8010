#pragma once

/// \file
/// The output: a table, and a JSON of all results.

#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "../support/comparison.hpp"
#include "settings.hpp"

namespace train_images {

/// The outcome of one training.
struct Result : examples::Outcome<Settings> {
  double test_accuracy = 0;
  double images_per_second = 0;
  std::vector<mhla::Matrix<float>> initial_mixing{};  ///< [M,M] of each block; MHLA only
  std::vector<mhla::Matrix<float>> learned_mixing{};
};

inline void print_table(const std::vector<Result>& results) {
  std::printf("attention  parameters  test accuracy  training loss  images/s\n");
  for (const Result& r : results) {
    std::printf("%-9s  %10td  %11.2f %%  %13.4f  %8.0f\n", r.name().c_str(), r.parameters,
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

inline void to_json(nlohmann::json& json, const Result& r) {
  json = {{"settings", r.settings},
          {"parameters", r.parameters},
          {"test_accuracy", r.test_accuracy},
          {"training_loss", r.training_loss()},
          {"images_per_second", r.images_per_second},
          {"losses", r.losses},
          {"initial_mixing", rows_of(r.initial_mixing)},
          {"learned_mixing", rows_of(r.learned_mixing)}};
}

}  // namespace train_images
