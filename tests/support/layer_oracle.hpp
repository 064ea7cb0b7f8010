#pragma once

/// \file
/// Required output and gradients of a layer with a definition (support/layer_definition.hpp). For a
/// direction x' of its input or of a parameter tensor, dual numbers (jet.hpp) give J x' through the
/// definition, and
///
///     <J x', dy> = <x', J^T dy>
///
/// Both sides are the same sum over the paths from x' to dy, added up in another order. Their
/// difference is compared with the sum of the magnitudes of these paths.

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "mhla/layer/layer.hpp"
#include "support/jet.hpp"
#include "support/random.hpp"

namespace mhla::test {

/// Output of the definition for x of `batch` items.
template <class Layer, class S>
auto exact_output(const Layer& layer, std::span<const S> parameters, const Matrix<S>& x,
                  Index batch) -> decltype(exact_rows(layer, parameters, x, std::vector<Index>())) {
  Matrix<S> y(x.rows(), x.cols());
  const Index n = batch == 0 ? 0 : x.rows() / batch;
  std::vector<Index> tokens;
  for (Index t = 0; t < n; ++t) tokens.push_back(t);
  for (Index b = 0; b < batch; ++b) {
    const Matrix<S> item = x.middleRows(b * n, n);
    y.middleRows(b * n, n) = exact_rows(layer, parameters, item, tokens);
  }
  return y;
}

/// A layer that has a definition.
template <class Layer>
concept Defined = requires(const Layer& layer, std::span<const Jet> parameters,
                           const Matrix<Jet>& x) {
  exact_output(layer, parameters, x, Index{1});
};

/// A layer in double at a point, prepared for any direction.
template <class Layer>
class LayerOracle {
 public:
  /// <J x', dy>, and the sum of the magnitudes of its paths.
  struct Product {
    double value = 0, ways = 0;
  };

  LayerOracle(const Layer& layer, Index batch, const Matrix<double>& x, const Matrix<double>& dy)
      : layer_(layer), batch_(batch), dy_(dy), x_(x.cast<Jet>()) {
    for (const double p : layer.parameters()) parameters_.emplace_back(p);
  }

  Matrix<Jet> output() const {
    return exact_output(layer_, std::span<const Jet>(parameters_), x_, batch_);
  }
  /// Variables of the input, or of a parameter tensor.
  std::span<Jet> input() { return {x_.data(), static_cast<std::size_t>(x_.size())}; }
  std::span<Jet> tensor(const Parameter& p) {
    return layer_.table().numbers(std::span(parameters_), p.name);
  }
  /// Product along the direction with elements next().
  template <class Next>
  Product along(std::span<Jet> variables, Next&& next) const {
    for (Jet& v : variables) {
      v.tangent = next();
      v.ways = std::abs(v.tangent);
    }
    const Matrix<Jet> y = output();
    for (Jet& v : variables) v.tangent = v.ways = 0;
    Product sum;
    for (Index i = 0; i < y.size(); ++i) {
      sum.value += dy_.data()[i] * y.data()[i].tangent;
      sum.ways += std::abs(dy_.data()[i]) * y.data()[i].ways;
    }
    return sum;
  }

 private:
  const Layer& layer_;
  Index batch_;
  const Matrix<double>& dy_;
  Matrix<Jet> x_;
  std::vector<Jet> parameters_;
};

template <class Layer>
void expect_its_definition(const Layer& layer, Index batch, const Matrix<double>& x,
                           const Matrix<double>& y) {
  const Matrix<Jet> exact = LayerOracle<Layer>(layer, batch, x, y).output();
  for (Index i = 0; i < y.size(); ++i) {  // both sides err
    const Jet& number = exact.data()[i];
    ASSERT_LE(std::abs(y.data()[i] - number.value), 0x1p-52 * number.error) << "output " << i;
  }
}

/// Expects that J^T dy was added to `before`, along a random direction of x and of each parameter
/// tensor.
/// \param before, after  gradients dx and parameters
template <class Layer, class Gradients>
void expect_its_adjoint(const Layer& layer, Index batch, const Matrix<double>& x,
                        const Matrix<double>& dy, const Gradients& before, const Gradients& after) {
  LayerOracle<Layer> oracle(layer, batch, x, dy);
  Random rng(10);
  const auto expect = [&](const std::string& name, auto variables, const double* from,
                          const double* to) {
    double added = 0, size = 0;
    const auto derivative = oracle.along(variables, [&] {
      const double direction = rng.uniform(-1, 1);
      added += (*to++ - *from) * direction;
      size += std::abs(*from++ * direction);
      return direction;
    });
    constexpr double kError = 1e-13;
    EXPECT_LE(std::abs(added - derivative.value), kError * (derivative.ways + size))
        << name << ": " << added << ", expected " << derivative.value;
  };
  expect("x", oracle.input(), before.dx.data(), after.dx.data());
  for (const Parameter& p : layer.table().all()) {
    expect(p.name, oracle.tensor(p), before.parameters.data() + p.begin,
           after.parameters.data() + p.begin);
  }
}

/// Expects definition and adjoint for random numbers. Coefficients of the mixing matrix are not
/// negative, so that no denominator is near 0.
template <class Layer>
void expect_definition_and_adjoint(Random& rng, const typename Layer::Options& options, Index batch,
                                   Index tokens, const std::string& mixing) {
  struct Gradients {
    Matrix<double> dx;
    std::vector<double> parameters;
  };
  Layer layer(options);
  for (double& p : layer.parameters()) p = rng.uniform(-0.5, 0.5);
  for (double& m : layer.table().numbers(layer.parameters(), mixing)) m = rng.uniform(0.1, 1);
  const auto draw = [&] { return rng.matrix<double>(batch * tokens, options.channels); };
  const Matrix<double> x = draw(), dy = draw();
  const Matrix<double> y = layer(x, {.batch = batch});
  expect_its_definition(layer, batch, x, y);
  const Gradients before{draw(), std::vector<double>(layer.parameters().size(), 0.5)};
  Gradients after = before;
  layer.backward(x, dy, after.dx, after.parameters, {.batch = batch});
  expect_its_adjoint(layer, batch, x, dy, before, after);
}

}  // namespace mhla::test
