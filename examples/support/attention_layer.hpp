#pragma once

/// \file
/// Shared parts of the examples of attention layers: layers from files or with initial values, and
/// the check of a gradient.

#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <mhla/io/safetensors.hpp>
#include <mhla/layer/layer.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace attention_layer {

/// \throws std::runtime_error with `otherwise` unless `ok`.
inline void expect(bool ok, const std::string& otherwise) {
  if (!ok) throw std::runtime_error("FAILED: " + otherwise);
}

/// Prints the error and returns the exit status.
inline int report(const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}

/// The layer in a file, for the arguments FILE PREFIX, or without arguments a layer with initial
/// values.
template <class L>
L load_or_make(int argc, char** argv, const typename L::Options& options) {
  expect(argc == 1 || argc == 3, "give a file and the prefix of the layer in it, or nothing");
  if (argc == 3) return {mhla::Safetensors::read(argv[1]), argv[2], options};
  L layer(options);
  layer.initialize(1);
  return layer;
}

/// Writes all parameters, under `prefix` + name.
template <class L>
void write(const L& layer, const std::string& prefix, const std::filesystem::path& path) {
  mhla::SafetensorsWriter file;
  for (const mhla::Parameter& p : layer.table().all()) {
    file.add(prefix + p.name, p.shape, layer.table().numbers(layer.parameters(), p.name));
  }
  file.write(path);
}

/// Relative difference between the derivative of <dy, y> by backward and by central differences,
/// along a random direction of x and of all parameters. It is about 1e-8 in double: the step is so
/// small that features hardly ever cross the kink of relu.
template <class L>
double derivative_error(const L& layer, const mhla::Matrix<double>& x) {
  constexpr double kStep = 1e-8;
  const mhla::Matrix<double> dy = x.Random(x.rows(), x.cols());
  const mhla::Matrix<double> towards = x.Random(x.rows(), x.cols());
  mhla::Matrix<double> dx = x.Zero(x.rows(), x.cols());
  const auto count = static_cast<mhla::Index>(layer.parameters().size());
  const Eigen::VectorXd direction = Eigen::VectorXd::Random(count);
  std::vector<double> gradients(layer.parameters().size());
  layer.backward(x, dy, dx, gradients);
  const double derivative = dx.cwiseProduct(towards).sum() +
                            Eigen::Map<Eigen::VectorXd>(gradients.data(), count).dot(direction);
  const auto value_at = [&](double h) {
    L moved = layer;
    Eigen::Map<Eigen::VectorXd>(moved.parameters().data(), count) += h * direction;
    return moved(mhla::Matrix<double>(x + h * towards)).cwiseProduct(dy).sum();
  };
  const double difference = (value_at(kStep) - value_at(-kStep)) / (2 * kStep);
  return std::abs(derivative - difference) / std::abs(difference);
}

}  // namespace attention_layer
