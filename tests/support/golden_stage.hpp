#pragma once

/// \file
/// Checks of golden files that concern one stage (feature maps, initial mixing), and what all
/// checks of golden files share.
///
/// Double: |ours - golden| <= 1e-9 of the tensor's largest magnitude. Float: inputs are rounded to
/// float, the definition is evaluated on them in double, and the difference must stay within a
/// bound derived element by element. Feature maps bring their own (any_map.hpp).

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "mhla/policy/locality.hpp"
#include "support/any_map.hpp"
#include "support/safetensors.hpp"

namespace mhla::test::golden {

inline constexpr double kRoundoff = 0x1p-24;

/// The worst errors of one file over what they are measured by: the largest magnitude of the
/// tensor, and the bound.
struct Worst {
  double in_double = 0;
  double in_float = 0;
};

/// Raises `worst` to error / measure. What cannot be compared counts as infinitely wrong.
inline void raise(double& worst, double error, double measure) {
  const bool comparable = std::isfinite(error) && std::isfinite(measure);
  worst = std::max(worst, !comparable ? HUGE_VAL : error == 0 ? 0 : error / measure);
}

inline void compare(const Safetensors& file, const Tensor& golden, const double* ours,
                    Worst& worst) {
  if (golden.values.empty()) file.fail("has nothing to compare");
  double largest = 0;
  for (const double value : golden.values) {
    if (!std::isfinite(value)) file.fail("has a value that is not finite");
    largest = std::max(largest, std::abs(value));
  }
  for (std::size_t i = 0; i < golden.values.size(); ++i) {
    raise(worst.in_double, std::abs(ours[i] - golden.values[i]), largest);
  }
}

/// A tensor as a matrix; axes of length 1 behind the second are dropped.
inline Matrix<double> matrix(const Safetensors& file, const std::string& name) {
  const Tensor& tensor = file.tensor(name);
  std::vector<Index> shape = tensor.shape;
  while (shape.size() > 2 && shape.back() == 1) shape.pop_back();
  if (shape.size() == 1) shape.insert(shape.begin(), 1);
  if (shape.size() != 2) file.fail("has tensor '" + name + "' that is no matrix");
  return Eigen::Map<const Matrix<double>>(tensor.values.data(), shape[0], shape[1]);
}

// --- Feature maps -------------------------------------------------------------------------------

/// The map `name`, its weights under the first of `prefixes` that the file has.
template <class A>
AnyMap<A> read_map(const Safetensors& file, const std::string& name, double eps,
                   const std::vector<std::string>& prefixes) {
  const auto dense = [&](const std::string& layer) -> DenseWeights<A> {
    for (const std::string& prefix : prefixes) {
      const std::string weight = prefix + layer + ".weight", bias = prefix + layer + ".bias";
      if (!file.has(weight)) continue;
      return {matrix(file, weight).cast<A>(),
              file.has(bias) ? Matrix<A>(matrix(file, bias).cast<A>()) : Matrix<A>{}};
    }
    file.fail("lacks tensor '" + prefixes.front() + layer + ".weight' for feature map " + name);
  };
  if (name == "relu") return {Relu{eps}};
  if (name == "elu" || name == "elu1") return {EluPlusOne{}};
  if (name == "identity") return {Identity{}};
  if (name == "exp") return {Exp{}};
  if (name == "hedgehog") return {Hedgehog<A>(dense("layer"))};
  if (name == "t2r") return {T2R<A>(dense("layer").weight)};
  if (name == "elementwise_product")
    return {ElementwiseProduct<A>(dense("layer1"), dense("layer2"))};
  if (name != "dpfp") file.fail("has feature map '" + name + "', which is unknown");
  const Index nu = file.integer("dpfp_nu");
  if (nu < 1 || nu > 1000) file.fail("has dpfp_nu " + std::to_string(nu));
  return {Dpfp{static_cast<int>(nu)}};
}

/// Kind feature_maps: <name>.y = phi(x), for every name that occurs.
inline Worst check_feature_maps(const Safetensors& file) {
  const Tensor& x = file.tensor("x");
  std::set<std::string> names;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name != "x") names.insert(name.substr(0, name.find('.')));
  }
  if (x.values.empty() || names.empty()) file.fail("has no feature map to compare");
  const Index d = x.shape.back(), rows = static_cast<Index>(x.values.size()) / d;
  const std::vector<float> narrow(x.values.begin(), x.values.end());
  Worst worst;
  for (const std::string& name : names) {
    const double eps = file.says("feature_eps") ? file.number("feature_eps") : 0;
    const auto map = read_map<double>(file, name, eps, {name + ".param."});
    const auto narrow_map = read_map<float>(file, name, eps, {name + ".param."});
    const Index width = map.features(d);
    Matrix<double> y(rows, width);
    Matrix<float> narrow_y(1, width);
    for (Index r = 0; r < rows; ++r) {
      map(x.values.data() + r * d, y.data() + r * width, d);
      narrow_map(narrow.data() + r * d, narrow_y.data(), d);
      const auto expected = reference_features(
          narrow_map, std::vector<double>(narrow.data() + r * d, narrow.data() + (r + 1) * d),
          kRoundoff);
      for (Index j = 0; j < width; ++j) {
        const auto i = static_cast<std::size_t>(j);
        raise(worst.in_float, std::abs(static_cast<double>(narrow_y(0, j)) - expected.value[i]),
              expected.error[i]);
      }
    }
    const Tensor& golden = file.tensor(name + ".y");
    std::vector<Index> shape = x.shape;
    shape.back() = width;
    if (golden.shape != shape) file.fail("has '" + name + ".y' of a shape that is not phi(x)'s");
    compare(file, golden, y.data(), worst);
  }
  return worst;
}

// --- Initial mixing -----------------------------------------------------------------------------

/// The grid of blocks that a name like 2d_side16_group16 or 3d_3x5x10 speaks of.
inline GridShape block_grid(const Safetensors& file, const std::string& name,
                            const std::smatch& part) {
  const int axes = part[1].str()[0] - '0';
  std::vector<Index> sizes;
  if (part[2].matched) {  // side^axes tokens, the same of a block's sides
    const Index side = std::stoll(part[2]), group = std::stoll(part[3]);
    const auto block =
        static_cast<Index>(std::llround(std::pow(static_cast<double>(group), 1.0 / axes)));
    if (std::llround(std::pow(static_cast<double>(block), axes)) != group || block < 1 ||
        side % block != 0) {
      file.fail("has '" + name + "', whose blocks do not fill its grid");
    }
    sizes.assign(static_cast<std::size_t>(axes), side / block);
  } else {
    std::istringstream numbers(part[4]);
    for (std::string size; std::getline(numbers, size, 'x');) sizes.push_back(std::stoll(size));
    if (static_cast<int>(sizes.size()) != axes) {
      file.fail("has '" + name + "' with " + std::to_string(sizes.size()) + " axes");
    }
  }
  sizes.insert(sizes.begin(), 3 - sizes.size(), 1);
  return {sizes[0], sizes[1], sizes[2]};
}

/// Kind mixing_init: the released code's initial matrices, whatever their names say. In float an
/// element is rounded once; in double a column of M elements is summed.
inline Worst check_mixing_init(const Safetensors& file) {
  static const std::regex grammar(
      R"(([123])d_(?:side(\d{1,5})_group(\d{1,5})|(\d{1,5}(?:x\d{1,5})*))_([a-z]+))");
  static const std::map<std::string, Falloff> falloffs = {{"linear", Falloff::kLinear},
                                                          {"cos", Falloff::kCos},
                                                          {"exp", Falloff::kExp},
                                                          {"gaussian", Falloff::kGaussian},
                                                          {"local", Falloff::kLocal}};
  if (file.tensors().empty()) file.fail("has no matrix to compare");
  Worst worst;
  for (const auto& [name, golden] : file.tensors()) {
    std::smatch part;
    if (name.size() > 100 || !std::regex_match(name, part, grammar) ||
        !falloffs.contains(part[5])) {
      file.fail("has '" + name + "', a name that is unknown");
    }
    LocalityOptions options;
    options.falloff = falloffs.at(part[5]);
    options.sum_to_one =
        options.falloff == Falloff::kGaussian ? SumToOne::kNothing : SumToOne::kColumns;
    if (options.falloff == Falloff::kExp) options.sigma = file.number("exp_sigma");
    if (options.falloff == Falloff::kLocal) options.threshold = file.number("local_thres");
    const GridShape grid = block_grid(file, name, part);
    const Index m = grid[0] * grid[1] * grid[2];
    const Matrix<double> expected = matrix(file, name);
    if (expected.rows() != m || expected.cols() != m) {
      file.fail("has '" + name + "' that is not [" + std::to_string(m) + ", same]");
    }
    compare(file, golden, locality<double>(grid, options).dense().data(), worst);
    const Matrix<float> narrow = locality<float>(grid, options).dense();
    const double sums = static_cast<double>(m + 8) * 0x1p-53 * expected.cwiseAbs().maxCoeff();
    for (Index i = 0; i < expected.size(); ++i) {
      raise(worst.in_float, std::abs(static_cast<double>(narrow.data()[i]) - expected.data()[i]),
            kRoundoff * std::abs(expected.data()[i]) + sums);
    }
  }
  return worst;
}

}  // namespace mhla::test::golden
