#pragma once

/// \file
/// AdamW on the tensors of a model, with or without decay per tensor.

#include <cstddef>
#include <mhla/layer/adamw.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace examples {

/// A tensor in a row of parameters.
struct TrainedTensor {
  std::string name;
  std::vector<mhla::Index> shape;
  mhla::Index begin;  ///< its first number in the row
  mhla::Index size;   ///< numbers
  bool decays;        ///< weights of products do

  template <class T>
  std::span<T> of(std::span<T> row) const {
    return row.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
  }
};

/// AdamW with a state per tensor.
template <class T>
class Optimizer {
 public:
  explicit Optimizer(std::vector<TrainedTensor> tensors) : tensors_(std::move(tensors)) {
    for (const TrainedTensor& tensor : tensors_) states_.emplace_back(tensor.size);
  }

  /// Makes a step of the tensors; other numbers of the row do not change.
  void step(std::span<T> parameters, std::span<const T> gradient, double rate,
            double weight_decay) {
    auto state = states_.begin();
    for (const TrainedTensor& tensor : tensors_) {
      mhla::adamw(tensor.of(parameters), tensor.of(gradient), *state++, rate,
                  {.weight_decay = tensor.decays ? weight_decay : 0});
    }
  }

  const std::vector<TrainedTensor>& tensors() const { return tensors_; }
  /// States in the order of the tensors.
  const std::vector<mhla::AdamWState<T>>& states() const { return states_; }
  std::vector<mhla::AdamWState<T>>& states() { return states_; }

 private:
  std::vector<TrainedTensor> tensors_;
  std::vector<mhla::AdamWState<T>> states_;
};

}  // namespace examples
