#pragma once

/// \file
/// The trained tensors of a model, and the model of a checkpoint.

#include <algorithm>
#include <exception>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/checkpoint.hpp"
#include "model.hpp"

namespace train_images {

inline constexpr char kProgram[] = "train_images";  ///< whose checkpoints these are

/// State of a training at its first step.
/// \param row  overwritten by the parameters
inline examples::TrainingState<float> state_of(const Model<float>& model, std::span<float> row) {
  std::ranges::copy(model.parameters(), row.begin());
  return {row, examples::Optimizer<float>(
                   examples::trained_tensors(model.table(), !model.settings().trains_mixing()))};
}

/// \throws std::runtime_error, mhla::safetensors_error naming the file unless it is a checkpoint.
inline Model<float> model_of(const std::string& path) {
  const auto run = examples::run_of_checkpoint(path, kProgram);
  Settings settings;
  try {
    settings = run.at("settings").get<Settings>();
    expect_valid(settings);
  } catch (const std::exception& error) {
    throw std::runtime_error(path + " does not describe a model: " + error.what());
  }
  Model<float> model(settings);
  std::vector<float> row(model.parameters().size());
  auto state = state_of(model, row);
  examples::load_checkpoint(path, kProgram, run, std::numeric_limits<Index>::max(), state);
  model.set_parameters(row);
  return model;
}

}  // namespace train_images
