#pragma once

/// \file
/// The attentions that are compared, and their models at other image sizes.

#include <algorithm>
#include <mhla/fit/fit_distance.hpp>
#include <mhla/fit/resize.hpp>
#include <mhla/layer/adamw.hpp>
#include <mhla/policy/distance_derivatives.hpp>
#include <mhla/policy/distance_mixing.hpp>
#include <span>
#include <string>
#include <vector>

#include "../train_images/training.hpp"

namespace image_sizes {

using mhla::GridShape;
using mhla::Index;
using train_images::Images;
using train_images::Model;
using train_images::Settings;
using train_images::Workers;
using Tables = std::vector<mhla::DistanceMixing<float>>;

/// Mixing matrices of all blocks of a model.
using Matrices = std::vector<mhla::MixingMatrix<float>>;

/// The mixing matrices in a row of parameters, or in their gradient.
template <class T>
std::vector<mhla::MixingView<T>> mixing_of(const Model<float>& model, std::span<T> row) {
  std::vector<mhla::MixingView<T>> all;
  for (const mhla::Parameter& p : model.table().all()) {
    if (!examples::is_mixing(p.name)) continue;
    all.emplace_back(p.place().numbers(row).data(), mhla::Pattern(p.shape[0], p.shape[0]));
  }
  return all;
}

/// The matrices of tables on a grid of blocks.
inline Matrices matrices_of(const Tables& tables, GridShape blocks) {
  Matrices all;
  for (const auto& table : tables) all.push_back(distance_matrix(table, blocks));
  return all;
}

/// The parameters of a model with these mixing matrices.
inline std::vector<float> with_mixing(const Model<float>& model, const Matrices& mixing) {
  std::vector<float> row(model.parameters().begin(), model.parameters().end());
  const auto views = mixing_of(model, std::span<float>(row));
  for (std::size_t b = 0; b < views.size(); ++b) {
    std::ranges::copy(mixing[b].storage(), views[b].storage().begin());
  }
  return row;
}

/// The trained model on another grid of tokens. Positions are stretched, as is usual.
/// \param mixing  of the blocks of that grid; empty for matrices that every grid has
inline Model<float> on_grid(const Model<float>& trained, GridShape grid, const Matrices& mixing) {
  Settings settings = trained.settings();
  settings.grid = grid;
  Model<float> model(settings);
  std::vector<float> row(model.parameters().size());
  for (const mhla::Parameter& p : model.table().all()) {
    const auto from = trained.table().numbers(trained.parameters(), p.name);
    const auto to = p.place().numbers(std::span<float>(row));
    if (p.name != "position") {
      if (mixing.empty() || !examples::is_mixing(p.name)) std::ranges::copy(from, to.begin());
      continue;
    }
    const Index c = settings.dim;
    for (Index t = 0; t < settings.tokens(); ++t) {
      for (Index j = 0; j < c; ++j) {
        const auto at = [&](Index y, Index x) {
          return from[static_cast<std::size_t>((y * train_images::kGrid[2] + x) * c + j)];
        };
        to[static_cast<std::size_t>(t * c + j)] = static_cast<float>(
            train_images::stretched(t / grid[2], t % grid[2], grid, train_images::kGrid, at));
      }
    }
  }
  model.set_parameters(row);
  if (!mixing.empty()) model.set_parameters(with_mixing(model, mixing));
  return model;
}

/// Trains tables that write the mixing matrices of a model before each step.
/// \param model  whose own mixing matrices are frozen; its parameters are those of the end
inline void train_tables(const examples::TrainingRun& run, const examples::Schedule& schedule,
                         Model<float>& model, Tables& tables, Workers<float>& workers,
                         const Images& images) {
  const GridShape blocks = block_grid(model.settings());
  model.set_parameters(with_mixing(model, matrices_of(tables, blocks)));
  std::vector<float> row(model.parameters().size());
  auto state = state_of(model, row);
  std::vector<mhla::AdamWState<float>> states(
      tables.size(), mhla::AdamWState<float>(std::ssize(tables.front().storage())));
  train_images::Batches batches(images.count(), schedule.batch, model.settings().seed);
  const auto warm_up = static_cast<Index>(schedule.warm_up * static_cast<double>(schedule.steps));
  examples::train(
      run, schedule, state,
      [&](Index step, std::span<float> gradient) {
        const double loss = workers.learn(model, images, batches.of_step(step), gradient).loss;
        const auto dmixing = mixing_of(model, gradient);
        for (std::size_t b = 0; b < tables.size(); ++b) {
          mhla::DistanceMixing<float> dtable(tables[b].offsets());
          distance_matrix_adjoint(tables[b], blocks, dmixing[b], dtable);
          const double rate = schedule.rate * mhla::warmup_cosine(step, warm_up, schedule.steps);
          mhla::adamw<float>(tables[b].storage(), dtable.storage(), states[b], rate,
                             {.weight_decay = 0});
          for (float& f : tables[b].storage()) f = std::max(f, 1e-4f);  // sums stay above 0
          std::ranges::fill(dmixing[b].storage(), 0.0f);                // frozen
        }
        return loss / static_cast<double>(schedule.batch);
      },
      [&] {
        model.set_parameters(row);
        model.set_parameters(with_mixing(model, matrices_of(tables, blocks)));
      },
      [](double, double) { return std::string(); });
}

}  // namespace image_sizes
