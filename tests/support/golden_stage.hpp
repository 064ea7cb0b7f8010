#pragma once

/// \file
/// Checks of golden files of one stage: feature maps, initial mixing.
///
/// In float, inputs are rounded and the definition is evaluated on them in double. The difference
/// must stay within a bound derived per element; bounds of maps are in any_map.hpp.

#include <regex>
#include <set>
#include <string>
#include <vector>

#include "mhla/policy/locality.hpp"
#include "support/any_map.hpp"
#include "support/golden.hpp"

namespace mhla::test::golden {

inline constexpr double kFloatRoundoff = 0x1p-24;

/// The layers of a map, in the order of its flat weights.
inline std::vector<std::string> layers_of(const std::string& map) {
  if (map == "elementwise_product") return {"layer1", "layer2"};
  if (map == "hedgehog" || map == "t2r") return {"layer"};
  return {};
}

/// Reads a map, whose weights have a prefix in their names.
template <class A>
AnyMap<A> read_map(const Safetensors& file, const std::string& name, const std::string& prefix) {
  std::vector<DenseWeights<A>> layers;
  for (const std::string& layer : layers_of(name)) {
    const std::string bias = prefix + layer + ".bias";
    layers.push_back({file.matrix<double>(prefix + layer + ".weight").cast<A>(), {}});
    if (file.contains(bias)) layers.back().bias = file.matrix<double>(bias).cast<A>();
  }
  if (name == "relu") {
    return {Relu{file.metadata().contains("feature_eps") ? value<double>(file, "feature_eps") : 0}};
  }
  if (name == "elu" || name == "elu1") return {EluPlusOne{}};
  if (name == "identity") return {Identity{}};
  if (name == "exp") return {Exp{}};
  if (name == "hedgehog") return {Hedgehog<A>(layers[0])};
  if (name == "t2r") return {T2R<A>(layers[0].weight)};
  if (name == "elementwise_product") return {ElementwiseProduct<A>(layers[0], layers[1])};
  if (name == "dpfp") return {Dpfp{value<int>(file, "dpfp_nu")}};
  throw std::runtime_error("has feature map '" + name + "', which is unknown");
}

/// Compares the weights' flat gradient with <map>.grad.*.
inline void compare_weights(const Safetensors& file, const std::string& map, const double* flat,
                            Result& result) {
  for (const std::string& layer : layers_of(map)) {
    for (const char* part : {".weight", ".bias"}) {
      const std::string name = map + ".grad." + layer + part;
      if (!file.contains(map + ".param." + layer + part)) continue;
      const Matrix<double> golden = file.matrix<double>(name);
      result.gradients[name].add(
          Eigen::Map<const Matrix<double>>(flat, golden.rows(), golden.cols()), golden);
      flat += golden.size();
    }
  }
}

/// Checks kind feature_maps: <name>.y = phi(x) for every name, and its gradients if there is a dy.
inline Result check_feature_maps(const Safetensors& file) {
  const Matrix<double> x = file.matrix<double>("x");
  const Matrix<float> rounded = x.cast<float>();
  const Index d = x.cols();
  std::set<std::string> names;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name != "x") names.insert(name.substr(0, name.find('.')));
  }
  Result result;
  for (const std::string& name : names) {
    const auto map = read_map<double>(file, name, name + ".param.");
    const auto map_in_float = read_map<float>(file, name, name + ".param.");
    const bool differentiated = file.contains(name + ".dy") || map.weights() > 0;
    Matrix<double> y(x.rows(), map.features(d)), dx = Matrix<double>::Zero(x.rows(), d), dy = y;
    if (differentiated) dy = file.matrix<double>(name + ".dy");
    if (dy.cols() != y.cols()) throw std::runtime_error("has '" + name + ".dy' of another width");
    std::vector<double> weights(static_cast<std::size_t>(map.weights()));
    Matrix<float> y_in_float(1, y.cols());
    for (Index r = 0; r < x.rows(); ++r) {
      map(x.row(r).data(), y.row(r).data(), d);
      map.adjoint(x.row(r).data(), y.row(r).data(), dy.row(r).data(), dx.row(r).data(), d,
                  weights.data());
      map_in_float(rounded.row(r).data(), y_in_float.data(), d);
      const std::vector<double> row(rounded.row(r).begin(), rounded.row(r).end());
      const auto expected = reference_features(map_in_float, row, kFloatRoundoff);
      for (std::size_t j = 0; j < expected.value.size(); ++j) {
        result.raise_in_float(std::abs(double(y_in_float.data()[j]) - expected.value[j]),
                              expected.error[j]);
      }
    }
    result.outputs[name + ".y"].add(y, file.matrix<double>(name + ".y"));
    if (!differentiated) continue;
    result.gradients[name + ".dx"].add(dx, file.matrix<double>(name + ".dx"));
    compare_weights(file, name, weights.data(), result);
  }
  return result;
}

/// Parses names such as 2d_side16_group16_cos or 3d_3x5x10_cos: blocks along each axis, and the
/// falloff at the end.
inline std::pair<GridShape, std::string> blocks_and_falloff(const std::string& name) {
  std::smatch part;
  const auto number = [&part](std::size_t i) { return Index{std::stoi(part[i])}; };
  if (std::regex_match(name, part, std::regex(R"(2d_side(\d+)_group(\d+)_([a-z]+))"))) {
    const Index side =
        number(1) / std::lround(std::sqrt(number(2)));  // tokens of a block: a square
    return {{side, side}, part[3]};
  }
  if (std::regex_match(name, part, std::regex(R"(3d_(\d+)x(\d+)x(\d+)_([a-z]+))"))) {
    return {{number(1), number(2), number(3)}, part[4]};
  }
  throw std::runtime_error("has '" + name + "', a name that is unknown");
}

/// Checks kind mixing_init: the released code's initial matrices. In float an element is rounded
/// once; in double a column of M elements is summed.
inline Result check_mixing_init(const Safetensors& file) {
  static const std::map<std::string, Falloff> falloffs = {{"linear", Falloff::kLinear},
                                                          {"cos", Falloff::kCos},
                                                          {"exp", Falloff::kExp},
                                                          {"gaussian", Falloff::kGaussian},
                                                          {"local", Falloff::kLocal}};
  Result result;
  for (const auto& [name, tensor] : file.tensors()) {
    const auto [blocks, falloff] = blocks_and_falloff(name);
    LocalityOptions options;
    options.falloff = falloffs.at(falloff);
    options.sum_to_one =
        options.falloff == Falloff::kGaussian ? SumToOne::kNothing : SumToOne::kColumns;
    if (options.falloff == Falloff::kExp) options.sigma = value<double>(file, "exp_sigma");
    if (options.falloff == Falloff::kLocal) options.threshold = value<double>(file, "local_thres");
    const Matrix<double> golden = file.matrix<double>(name);
    result.outputs[name].add(locality<double>(blocks, options).dense(), golden);
    const Matrix<float> in_float = locality<float>(blocks, options).dense();
    const double sums =
        static_cast<double>(golden.rows() + 8) * 0x1p-53 * golden.cwiseAbs().maxCoeff();
    for (Index i = 0; i < golden.size(); ++i) {
      result.raise_in_float(std::abs(double(in_float.data()[i]) - golden.data()[i]),
                            kFloatRoundoff * std::abs(golden.data()[i]) + sums);
    }
  }
  return result;
}

}  // namespace mhla::test::golden
