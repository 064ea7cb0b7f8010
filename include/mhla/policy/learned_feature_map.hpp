#pragma once

/// \file
/// Stage 1 of 5: feature maps with weights, and maps that widen the features.
///
///     Hedgehog              softmax([2y, -2y]),  y = W x + b                     D -> 2D
///     T2R                   max(W x, 0)                                          D -> D
///     Dpfp                  u * roll(u, j) for j = 1..nu,  u = [r, -r], r = max(x, 0)
///                                                                                D -> 2 nu D
///     ElementwiseProduct    (W1 x + b1) * (W2 x + b2)                            D -> D
///
/// Dpfp follows the released code, whose u is [max(x, 0), -max(x, 0)]; the paper of that map means
/// [max(x, 0), max(-x, 0)].
///
/// The gradient of a map's weights lies in one row: the weight, row by row, then the bias if it has
/// one; of a map with two layers, the first layer's before the second's.
///
/// A token costs 2*D*D flops a weight matrix, its adjoint 4*D*D, and 2*D*D more for
/// ElementwiseProduct, which computes both layers again.
/// Source: flash-linear-attention's feature maps as the authors' language layer uses them.

#include <type_traits>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/policy/feature_map.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// A dense layer y = W x + b on rows of D numbers; an empty bias counts as 0.
template <Accumulator A>
struct DenseWeights {
  Matrix<A> weight;  ///< [outputs, D]
  Matrix<A> bias;    ///< [1, outputs], [outputs, 1] or empty

  Index weights() const { return weight.size() + bias.size(); }
};

/// softmax([2y, -2y]) over all 2D features, y = W x + b.
template <Accumulator A>
class Hedgehog {
 public:
  /// \throws shape_error unless the weight is square and the bias fits it.
  explicit Hedgehog(DenseWeights<A> dense);

  Index features(Index d) const { return 2 * d; }
  Index weights() const { return dense_.weights(); }
  void operator()(const A* x, A* y, Index d) const;
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d, A* dweights = nullptr) const;
  const DenseWeights<A>& dense() const { return dense_; }

 private:
  DenseWeights<A> dense_;
};

/// max(W x, 0).
template <Accumulator A>
class T2R {
 public:
  /// \throws shape_error unless the weight is square.
  explicit T2R(Matrix<A> weight);

  Index features(Index d) const { return d; }
  Index weights() const { return dense_.weights(); }
  void operator()(const A* x, A* y, Index d) const;
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d, A* dweights = nullptr) const;
  const DenseWeights<A>& dense() const { return dense_; }

 private:
  DenseWeights<A> dense_;
};

/// u * roll(u, j) for j = 1..nu, one after another; u = [max(x, 0), -max(x, 0)].
struct Dpfp {
  int nu = 4;

  constexpr Index features(Index d) const { return 2 * nu * d; }
  constexpr Index weights() const { return 0; }
  template <Accumulator A>
  void operator()(const A* x, A* y, Index d) const;
  template <Accumulator A>
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d,
               std::type_identity_t<A>* dweights = nullptr) const;
};

/// (W1 x + b1) * (W2 x + b2), element by element.
template <Accumulator A>
class ElementwiseProduct {
 public:
  /// \throws shape_error unless both weights are square and of one size and the biases fit.
  ElementwiseProduct(DenseWeights<A> first, DenseWeights<A> second);

  Index features(Index d) const { return d; }
  Index weights() const { return first_.weights() + second_.weights(); }
  void operator()(const A* x, A* y, Index d) const;
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d, A* dweights = nullptr) const;
  const DenseWeights<A>& first() const { return first_; }
  const DenseWeights<A>& second() const { return second_; }

 private:
  DenseWeights<A> first_;
  DenseWeights<A> second_;
};

static_assert(DifferentiableFeatureMap<Hedgehog<float>, float>);
static_assert(DifferentiableFeatureMap<T2R<float>, float>);
static_assert(DifferentiableFeatureMap<Dpfp, float>);
static_assert(DifferentiableFeatureMap<ElementwiseProduct<float>, float>);

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator A>
void expect_square(const char* function, const DenseWeights<A>& dense) {
  const Index d = dense.weight.rows();
  if (dense.weight.cols() != d) {
    fail_shape(function, "weight", "has shape " + shape_text({d, dense.weight.cols()}),
               "a square matrix [D, D]");
  }
  if (dense.bias.size() != 0 && dense.bias.size() != d) {
    fail_shape(function, "bias", "has " + std::to_string(dense.bias.size()) + " elements",
               std::to_string(d) + " or none");
  }
}

template <Accumulator A>
void expect_width(const char* function, const DenseWeights<A>& dense, Index d) {
  if (dense.weight.cols() != d) {
    fail_shape(function, "x", "has width " + std::to_string(d),
               std::to_string(dense.weight.cols()) + " (the width of the weight)");
  }
}

/// Output j of the layer for one row x [D].
template <Accumulator A>
A dense_output(const DenseWeights<A>& dense, const A* x, Index j) {
  const Index d = dense.weight.cols();
  const A product = dot(dense.weight.data() + j * d, x, d);
  return dense.bias.size() == 0 ? product : product + dense.bias.data()[j];
}

/// Adds what the gradient dy of output j contributes to dx [D] and, unless null, to dweights.
template <Accumulator A>
void dense_output_adjoint(const DenseWeights<A>& dense, const A* x, Index j, A dy, A* dx,
                          A* dweights) {
  const Index d = dense.weight.cols();
  add_scaled(dy, dense.weight.data() + j * d, dx, d);
  if (dweights == nullptr) return;
  add_scaled(dy, x, dweights + j * d, d);
  if (dense.bias.size() != 0) dweights[dense.weight.size() + j] += dy;
}

}  // namespace detail

template <Accumulator A>
Hedgehog<A>::Hedgehog(DenseWeights<A> dense) : dense_(std::move(dense)) {
  detail::expect_square("Hedgehog", dense_);
}

template <Accumulator A>
void Hedgehog<A>::operator()(const A* x, A* y, Index d) const {
  detail::expect_width("Hedgehog", dense_, d);
  for (Index j = 0; j < d; ++j) {
    y[j] = 2 * detail::dense_output(dense_, x, j);
    y[d + j] = -y[j];
  }
  const A largest = detail::maximum(y, 2 * d);
  for (Index j = 0; j < 2 * d; ++j) y[j] -= largest;
  detail::transform(y, y, 2 * d, [](auto p) { return detail::exponential(p); });
  const A total = detail::sum(y, 2 * d);
  for (Index j = 0; j < 2 * d; ++j) y[j] /= total;
}

template <Accumulator A>
void Hedgehog<A>::adjoint(const A* x, const A* y, const A* dy, A* dx, Index d, A* dweights) const {
  detail::expect_width("Hedgehog", dense_, d);
  const A mean = detail::dot(y, dy, 2 * d);  // of dy under the softmax
  for (Index j = 0; j < d; ++j) {
    const A difference = y[j] * (dy[j] - mean) - y[d + j] * (dy[d + j] - mean);
    detail::dense_output_adjoint(dense_, x, j, 2 * difference, dx, dweights);
  }
}

template <Accumulator A>
T2R<A>::T2R(Matrix<A> weight) : dense_{std::move(weight), {}} {
  detail::expect_square("T2R", dense_);
}

template <Accumulator A>
void T2R<A>::operator()(const A* x, A* y, Index d) const {
  detail::expect_width("T2R", dense_, d);
  for (Index j = 0; j < d; ++j) {
    const A product = detail::dense_output(dense_, x, j);
    y[j] = product < 0 ? A(0) : product;
  }
}

template <Accumulator A>
void T2R<A>::adjoint(const A* x, const A* y, const A* dy, A* dx, Index d, A* dweights) const {
  detail::expect_width("T2R", dense_, d);
  for (Index j = 0; j < d; ++j) {
    if (y[j] > 0) detail::dense_output_adjoint(dense_, x, j, dy[j], dx, dweights);
  }
}

namespace detail {

/// u = [max(x, 0), -max(x, 0)] for x [D], as a circle of 2D elements.
template <Accumulator A>
struct DpfpElements {
  const A* x;
  Index d;

  Index around(Index i) const { return (i % (2 * d) + 2 * d) % (2 * d); }
  A operator[](Index i) const {
    const A value = x[i < d ? i : i - d];
    const A positive = value < 0 ? A(0) : value;
    return i < d ? positive : -positive;
  }
};

}  // namespace detail

template <Accumulator A>
void Dpfp::operator()(const A* x, A* y, Index d) const {
  const detail::DpfpElements<A> u{x, d};
  for (Index j = 1; j <= nu; ++j) {
    A* const part = y + (j - 1) * 2 * d;
    for (Index i = 0; i < 2 * d; ++i) part[i] = u[i] * u[u.around(i - j)];
  }
}

template <Accumulator A>
void Dpfp::adjoint(const A* x, const A* /*y*/, const A* dy, A* dx, Index d,
                   std::type_identity_t<A>* /*dweights*/) const {
  const detail::DpfpElements<A> u{x, d};
  // u[i] is the first factor of feature i of each part, and the second one of feature i + j.
  const auto du = [&](Index i) {
    A total = 0;
    for (Index j = 1; j <= nu; ++j) {
      const A* const part = dy + (j - 1) * 2 * d;
      const Index before = u.around(i - j), after = u.around(i + j);
      total += part[i] * u[before] + part[after] * u[after];
    }
    return total;
  };
  for (Index i = 0; i < d; ++i) {
    if (x[i] > 0) dx[i] += du(i) - du(d + i);
  }
}

template <Accumulator A>
ElementwiseProduct<A>::ElementwiseProduct(DenseWeights<A> first, DenseWeights<A> second)
    : first_(std::move(first)), second_(std::move(second)) {
  detail::expect_square("ElementwiseProduct", first_);
  detail::expect_square("ElementwiseProduct", second_);
  detail::expect_width("ElementwiseProduct", second_, first_.weight.cols());
}

template <Accumulator A>
void ElementwiseProduct<A>::operator()(const A* x, A* y, Index d) const {
  detail::expect_width("ElementwiseProduct", first_, d);
  for (Index j = 0; j < d; ++j) {
    y[j] = detail::dense_output(first_, x, j) * detail::dense_output(second_, x, j);
  }
}

template <Accumulator A>
void ElementwiseProduct<A>::adjoint(const A* x, const A* /*y*/, const A* dy, A* dx, Index d,
                                    A* dweights) const {
  detail::expect_width("ElementwiseProduct", first_, d);
  A* const dsecond = dweights == nullptr ? nullptr : dweights + first_.weights();
  for (Index j = 0; j < d; ++j) {
    const A a = detail::dense_output(first_, x, j), b = detail::dense_output(second_, x, j);
    detail::dense_output_adjoint(first_, x, j, dy[j] * b, dx, dweights);
    detail::dense_output_adjoint(second_, x, j, dy[j] * a, dx, dsecond);
  }
}

}  // namespace MHLA_TARGET
}  // namespace mhla
