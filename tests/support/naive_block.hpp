#pragma once

/// \file
/// Parts of blocks of models besides attention, in double and in plain loops.

#include <cmath>
#include <string>

#include "mhla/core/matrix.hpp"
#include "mhla/layer/parameters.hpp"

namespace mhla::test {

using Numbers = Matrix<double>;

/// Tensor `name` of a layer as a matrix, its first axis by all others; a row if it has one axis.
template <class L>
Numbers tensor(const L& layer, const std::string& name) {
  const MatrixView<const double> m = layer.table().matrix(layer.parameters(), name);
  Numbers all(m.rows, m.cols);
  for (Index r = 0; r < m.rows; ++r) {
    for (Index c = 0; c < m.cols; ++c) all(r, c) = m(r, c);
  }
  if (layer.table().find(name)->shape.size() == 1) return all.transpose();
  return all;
}

/// Layer of the parameters below a prefix.
template <class Inner, class Outer>
Inner inner_layer(const Outer& block, const std::string& prefix, typename Inner::Options options) {
  options.channels = block.options().channels;
  Inner layer(options);
  for (const Parameter& p : layer.table().all()) {
    const auto from = block.table().numbers(block.parameters(), prefix + p.name);
    std::copy(from.begin(), from.end(), layer.table().numbers(layer.parameters(), p.name).begin());
  }
  return layer;
}

inline Numbers naive_dense(const Numbers& x, const Numbers& weight, const Numbers& bias = {}) {
  Numbers y = x * weight.transpose();
  if (bias.size() > 0) y.rowwise() += bias.row(0);
  return y;
}
template <class L>
Numbers naive_dense(const Numbers& x, const L& layer, const std::string& name) {
  return naive_dense(x, tensor(layer, name + ".weight"), tensor(layer, name + ".bias"));
}

inline Numbers naive_layer_norm(const Numbers& x, double eps) {
  Numbers y = x;
  for (Index r = 0; r < x.rows(); ++r) {
    y.row(r).array() -= x.row(r).mean();
    y.row(r) /= std::sqrt(y.row(r).squaredNorm() / static_cast<double>(x.cols()) + eps);
  }
  return y;
}
template <class L>
Numbers naive_layer_norm(const Numbers& x, double eps, const L& layer, const std::string& name) {
  Numbers y = naive_layer_norm(x, eps);
  for (Index r = 0; r < x.rows(); ++r) {
    y.row(r) =
        y.row(r).cwiseProduct(tensor(layer, name + ".weight")) + tensor(layer, name + ".bias");
  }
  return y;
}

inline double naive_gelu(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
inline double naive_erf_gelu(double x) { return x / 2 * (1 + std::erf(x / std::sqrt(2))); }
inline double naive_silu(double x) { return x / (1 + std::exp(-x)); }

/// Multiplies each item's rows by 1 + its scale and adds its shift. Scale and shift are among the
/// `parts` parts of m.
inline Numbers naive_modulate(const Numbers& x, const Numbers& m, Index shift, Index scale) {
  const Index c = x.cols(), n = x.rows() / m.rows();
  Numbers y = x;
  for (Index r = 0; r < x.rows(); ++r) {
    for (Index i = 0; i < c; ++i) {
      y(r, i) = x(r, i) * (1 + m(r / n, scale * c + i)) + m(r / n, shift * c + i);
    }
  }
  return y;
}
inline Numbers naive_gate(const Numbers& x, const Numbers& m, Index gate) {
  const Index c = x.cols(), n = x.rows() / m.rows();
  Numbers y = x;
  for (Index r = 0; r < x.rows(); ++r) {
    for (Index i = 0; i < c; ++i) y(r, i) *= m(r / n, gate * c + i);
  }
  return y;
}

/// Adds a table of the layer to the rows of c.
template <class L>
Numbers naive_modulation(const Numbers& c, const L& layer, const std::string& table) {
  const auto numbers = layer.table().numbers(layer.parameters(), table);
  Numbers m = c;
  for (Index b = 0; b < m.rows(); ++b) {
    for (Index i = 0; i < m.cols(); ++i) m(b, i) += numbers[static_cast<std::size_t>(i)];
  }
  return m;
}

/// Depthwise 3 x 3 convolution over images of rows x cols tokens in raster order.
inline Numbers naive_convolution(const Numbers& x, const Numbers& weight, const Numbers& bias,
                                 Index rows, Index cols) {
  Numbers y = x;
  for (Index t = 0; t < x.rows(); ++t) {
    const Index item = t / (rows * cols) * rows * cols, row = (t - item) / cols, col = t % cols;
    for (Index c = 0; c < x.cols(); ++c) {
      y(t, c) = bias(0, c);
      for (Index i = 0; i < 3; ++i) {
        for (Index j = 0; j < 3; ++j) {
          const Index r = row + i - 1, q = col + j - 1;
          if (r < 0 || r >= rows || q < 0 || q >= cols) continue;
          y(t, c) += weight(c, 3 * i + j) * x(item + r * cols + q, c);
        }
      }
    }
  }
  return y;
}

/// Largest difference of two matrices, relative to the largest number of the second.
inline double relative_distance(const Numbers& a, const Numbers& b) {
  return (a - b).cwiseAbs().maxCoeff() / b.cwiseAbs().maxCoeff();
}

}  // namespace mhla::test
