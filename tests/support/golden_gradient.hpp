#pragma once

/// \file
/// Checks of golden files that hold gradients: of the operator's inputs and its mixing matrix, and
/// of feature maps and their weights, in double.
///
/// Tolerance: |ours - golden| <= 1e-7 of the tensor's largest magnitude.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "support/golden_operator.hpp"

namespace mhla::test::golden {

/// The worst error of a file's gradients over the largest magnitude of their tensor, and where.
struct WorstGradient {
  double error = 0;
  std::string tensor = "none";
};

/// Compares a tensor of the file with ours; both dense and in the file's order.
inline void compare_gradient(const Safetensors& file, const std::string& name,
                             const std::vector<double>& ours, WorstGradient& worst) {
  const Tensor& golden = file.tensor(name);
  if (golden.values.size() != ours.size()) {
    file.fail("has '" + name + "' of " + std::to_string(golden.values.size()) +
              " values, expected " + std::to_string(ours.size()));
  }
  Worst of_tensor;
  compare(file, golden, ours.data(), of_tensor);
  if (worst.tensor != "none" && of_tensor.in_double <= worst.error) return;
  worst = {of_tensor.in_double, name};
}

// ---- feature maps ------------------------------------------------------------------------------

/// The tensors of a map's weights behind their prefix, in the order of the map's flat gradient.
template <class A>
std::vector<std::string> weight_names(const AnyMap<A>& any) {
  std::vector<std::string> names;
  const auto layer = [&names](const std::string& name, const DenseWeights<A>& dense) {
    names.push_back(name + ".weight");
    if (dense.bias.size() > 0) names.push_back(name + ".bias");
  };
  if (const auto* t2r = std::get_if<T2R<A>>(&any.map)) layer("layer", t2r->dense());
  if (const auto* hedgehog = std::get_if<Hedgehog<A>>(&any.map)) layer("layer", hedgehog->dense());
  if (const auto* product = std::get_if<ElementwiseProduct<A>>(&any.map)) {
    layer("layer1", product->first());
    layer("layer2", product->second());
  }
  return names;
}

/// Cuts a map's flat gradient into its tensors: weights [d,d], biases [d].
inline std::map<std::string, std::vector<double>> cut_weights(const std::vector<double>& flat,
                                                              const AnyMap<double>& map, Index d) {
  std::map<std::string, std::vector<double>> parts;
  auto next = flat.begin();
  for (const std::string& name : weight_names(map)) {
    const Index size = name.ends_with(".weight") ? d * d : d;
    parts[name].assign(next, next + size);
    next += size;
  }
  return parts;
}

/// Kind feature_maps: <name>.dx and <name>.grad.* from <name>.dy, for every map that has one of
/// them or weights.
inline WorstGradient check_feature_map_gradients(const Safetensors& file) {
  const Tensor& x = file.tensor("x");
  std::set<std::string> names;
  for (const auto& [name, tensor] : file.tensors()) {
    const std::string map = name.substr(0, name.find('.'));
    for (const char* part : {".dy", ".dx", ".grad.", ".param."}) {
      if (name.starts_with(map + part)) names.insert(map);
    }
  }
  if (names.empty()) file.fail("has no gradient of a feature map ('<map>.dy') to compare");
  const Index d = x.shape.back(), rows = static_cast<Index>(x.values.size()) / d;
  WorstGradient worst;
  for (const std::string& name : names) {
    const double eps = file.says("feature_eps") ? file.number("feature_eps") : 0;
    const auto map = read_map<double>(file, name, eps, {name + ".param."});
    const Index width = map.features(d);
    const Tensor& dy = file.tensor(name + ".dy");
    if (static_cast<Index>(dy.values.size()) != rows * width) {
      file.fail("has '" + name + ".dy' of a shape that is not phi(x)'s");
    }
    std::vector<double> y(static_cast<std::size_t>(width)), dx(x.values.size());
    std::vector<double> weights(static_cast<std::size_t>(map.weights()));
    for (Index r = 0; r < rows; ++r) {
      map(x.values.data() + r * d, y.data(), d);
      map.adjoint(x.values.data() + r * d, y.data(), dy.values.data() + r * width,
                  dx.data() + r * d, d, weights.data());
    }
    compare_gradient(file, name + ".dx", dx, worst);
    for (const auto& [part, ours] : cut_weights(weights, map, d)) {
      compare_gradient(file, name + ".grad." + part, ours, worst);
    }
  }
  return worst;
}

// ---- the operator ------------------------------------------------------------------------------

/// The gradients of an operator file.
struct OperatorGradients {
  std::vector<double> q, k, v;
  Matrix<double> mixing;  // of the file's shape
  std::vector<double> query_map, key_map;
};

inline void add_operator_gradients(const Problem<double>& p, OperatorGradients& g) {
  const std::vector<double>& dout_values = p.file.tensor("dout").values;
  const TensorView<const double> dout(dout_values.data(), p.out.shape, p.out.strides);
  const BatchInputs<double> in = inputs(p.q, p.k, p.v);
  const auto like = [](std::vector<double>& to, const TensorView<double>& of) {
    to.assign(to.size(), 0);
    return TensorView<double>(to.data(), of.shape, of.strides);
  };
  g.q.resize(p.q_values.size());
  g.k.resize(p.k_values.size());
  g.v.resize(p.v_values.size());
  g.query_map.resize(static_cast<std::size_t>(p.query_map.weights()));
  g.key_map.resize(static_cast<std::size_t>(p.key_map.weights()));
  const BatchGradients<double> to{.q = like(g.q, p.q), .k = like(g.k, p.k), .v = like(g.v, p.v)};
  const auto blocks = p.blocks();
  const Index rows = p.causal ? p.mixing.rows() : blocks.queries.blocks();
  const Index cols = p.causal ? p.mixing.cols() : blocks.keys.blocks();
  const MixingMatrix<double> mixing(p.mixing.topLeftCorner(rows, cols));
  MixingMatrix<double> dmixing(Matrix<double>::Zero(rows, cols));
  const ParameterGradients<double> parameters{dmixing, g.query_map, g.key_map};
  if (p.causal) {
    causal_gradient(in, blocks.queries, mixing, p.op(), dout, to, parameters);
  } else {
    bidirectional_gradient(in, blocks, mixing, p.op(), dout, to, parameters);
  }
  g.mixing = Matrix<double>::Zero(p.mixing.rows(), p.mixing.cols());
  g.mixing.topLeftCorner(rows, cols) = dmixing.dense();
}

/// Compares the gradients of weights where the file has them: 'grad.' where the weight's own
/// name has 'param.'. Queries and keys may share a tensor.
inline void compare_weights(const Problem<double>& p, const OperatorGradients& g,
                            WorstGradient& worst) {
  std::map<std::string, std::vector<double>> sums;
  const auto add = [&](const AnyMap<double>& map, const std::vector<double>& flat, Index d,
                       const std::string& side) {
    for (const auto& [part, ours] : cut_weights(flat, map, d)) {
      for (const std::string& prefix : {"feature_map_" + side + ".", side + ".", std::string()}) {
        const std::string name = "grad." + prefix + part;
        if (!p.file.has(name)) continue;
        auto& sum = sums[name];
        sum.resize(ours.size());
        for (std::size_t i = 0; i < ours.size(); ++i) sum[i] += ours[i];
        break;
      }
    }
  };
  add(p.query_map, g.query_map, p.q.width(), "q");
  add(p.key_map, g.key_map, p.k.width(), "k");
  for (const auto& [name, ours] : sums) compare_gradient(p.file, name, ours, worst);
  for (const auto& [name, tensor] : p.file.tensors()) {
    if (name.starts_with("grad.") && !sums.contains(name)) {
      p.file.fail("has tensor '" + name + "', which belongs to no weight");
    }
  }
}

/// Kinds op and causal_official: dq, dk, dv and dmixing from dout.
inline WorstGradient check_operator_gradients(const Safetensors& file, bool official) {
  const Problem<double> p(file, official);
  if (file.tensor("dout").shape != file.tensor("out").shape) {
    file.fail("has 'dout' of a shape that is not out's");
  }
  OperatorGradients g;
  add_operator_gradients(p, g);
  WorstGradient worst;
  for (const auto& [name, ours] : {std::pair{"q", &g.q}, {"k", &g.k}, {"v", &g.v}}) {
    const std::string gradient = std::string("d") + name;
    if (file.tensor(gradient).shape != file.tensor(name).shape) {
      file.fail("has '" + gradient + "' of a shape that is not " + name + "'s");
    }
    compare_gradient(file, gradient, *ours, worst);
  }
  compare_gradient(file, "dmixing",
                   std::vector<double>(g.mixing.data(), g.mixing.data() + g.mixing.size()), worst);
  compare_weights(p, g, worst);
  return worst;
}

}  // namespace mhla::test::golden
