#pragma once

/// \file
/// A feature map chosen at run time, and a second definition of every map. The definition uses
/// plain scalars in a wide type, which may carry derivatives, and has a bound on the error of
/// evaluation in the accumulator type.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "mhla/policy/feature_map.hpp"
#include "mhla/policy/learned_feature_map.hpp"
#include "support/random.hpp"

namespace mhla::test {

template <class A>
struct AnyMap {
  std::variant<Relu, EluPlusOne, Identity, Exp, T2R<A>, ElementwiseProduct<A>, Hedgehog<A>, Dpfp>
      map;

  Index features(Index d) const {
    return std::visit([d](const auto& m) { return m.features(d); }, map);
  }
  void operator()(const A* x, A* y, Index d) const {
    std::visit([&](const auto& m) { m(x, y, d); }, map);
  }
  Index weights() const {
    return std::visit([](const auto& m) { return m.weights(); }, map);
  }
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d, A* dweights) const {
    std::visit([&](const auto& m) { m.adjoint(x, y, dy, dx, d, dweights); }, map);
  }
  void strip(MatrixView<const A> x, MatrixView<A> y) const {
    const auto visit = [&](const auto& m) {
      if constexpr (StripFeatureMap<decltype(m), A>) return m.strip(x, y);
      for (Index r = 0; r < x.rows; ++r) m(static_cast<const A*>(x.row(r)), y.row(r), x.cols);
    };
    std::visit(visit, map);
  }
  void strip_adjoint(MatrixView<const A> x, MatrixView<const A> y, MatrixView<const A> dy,
                     MatrixView<A> dx, A* dweights) const {
    const auto visit = [&](const auto& m) {
      if constexpr (StripFeatureMap<decltype(m), A>) {
        return m.strip_adjoint(x, y, dy, dx, dweights);
      }
      for (Index r = 0; r < x.rows; ++r) {
        m.adjoint(x.row(r), y.row(r), dy.row(r), dx.row(r), x.cols, dweights);
      }
    };
    std::visit(visit, map);
  }
  void tangent(const A* x, const A* y, const A* dx, A* dy, Index d, const A* dweights) const {
    std::visit([&](const auto& m) { detail::write_tangent<A>(m, x, y, dx, dy, d, dweights); }, map);
  }
  void strip_tangent(MatrixView<const A> x, MatrixView<const A> y, MatrixView<const A> dx,
                     MatrixView<A> dy, const A* dweights) const {
    const auto visit = [&](const auto& m) {
      if constexpr (StripFeatureMap<decltype(m), A>) {
        return m.strip_tangent(x, y, dx, dy, dweights);
      }
      for (Index r = 0; r < x.rows; ++r) {
        const A* const along = dx.absent() ? nullptr : static_cast<const A*>(dx.row(r));
        detail::write_tangent<A>(m, x.row(r), y.row(r), along, dy.row(r), x.cols, dweights);
      }
    };
    std::visit(visit, map);
  }
  bool exponential() const { return std::holds_alternative<Exp>(map); }
  const char* name() const {
    constexpr const char* kNames[] = {"relu", "elu",     "identity", "exp",
                                      "t2r",  "product", "hedgehog", "dpfp"};
    return kNames[map.index()];
  }
};

inline constexpr Index kSameWidthMaps = 6;  // the alternatives that keep the width come first

/// Returns a map for rows of width d. Weights of learned maps are random.
template <class A>
AnyMap<A> random_map(Random& rng, Index kind, Index d) {
  const auto dense = [&] {
    return DenseWeights<A>{rng.matrix<A>(d, d), rng.matrix<A>(d, rng.integer(0, 1))};
  };
  switch (kind) {
    case 0:
      return {Relu{rng.chance(0.5) ? 1e-6 : 0.01}};
    case 1:
      return {EluPlusOne{}};
    case 2:
      return {Identity{}};
    case 3:
      return {Exp{}};
    case 4:
      return {T2R<A>(rng.matrix<A>(d, d))};
    case 5:
      return {ElementwiseProduct<A>(dense(), dense())};
    case 6:
      return {Hedgehog<A>(dense())};
    default:
      return {Dpfp{static_cast<int>(rng.integer(1, 3))}};
  }
}

/// Calls f with each layer of a map, in the order of its flat weights.
template <class A, class F>
void for_each_layer(const AnyMap<A>& any, F&& f) {
  if (const auto* t2r = std::get_if<T2R<A>>(&any.map)) f(t2r->dense());
  if (const auto* hedgehog = std::get_if<Hedgehog<A>>(&any.map)) f(hedgehog->dense());
  if (const auto* product = std::get_if<ElementwiseProduct<A>>(&any.map)) {
    f(product->first());
    f(product->second());
  }
}

/// The weights of a map in the order of its gradient.
template <class A>
std::vector<A> flat_weights(const AnyMap<A>& any) {
  std::vector<A> flat;
  for_each_layer(any, [&flat](const DenseWeights<A>& dense) {
    flat.insert(flat.end(), dense.weight.data(), dense.weight.data() + dense.weight.size());
    flat.insert(flat.end(), dense.bias.data(), dense.bias.data() + dense.bias.size());
  });
  return flat;
}

/// Returns the map with other weights, in the order of flat_weights.
template <class A>
AnyMap<A> with_weights(const AnyMap<A>& any, const std::vector<A>& flat) {
  std::vector<DenseWeights<A>> layers;
  const A* next = flat.data();
  for_each_layer(any, [&](DenseWeights<A> dense) {
    for (Matrix<A>* m : {&dense.weight, &dense.bias}) {
      std::copy_n(next, m->size(), m->data());
      next += m->size();
    }
    layers.push_back(std::move(dense));
  });
  if (std::holds_alternative<T2R<A>>(any.map)) return {T2R<A>(layers[0].weight)};
  if (std::holds_alternative<Hedgehog<A>>(any.map)) return {Hedgehog<A>(layers[0])};
  if (std::holds_alternative<ElementwiseProduct<A>>(any.map)) {
    return {ElementwiseProduct<A>(layers[0], layers[1])};
  }
  return any;
}

/// Evaluates the definition of a map on numbers of type W, which may carry derivatives. Arithmetic,
/// < and exp of W are found by argument-dependent lookup. The map gives kind and shapes, `weights`
/// the numbers.
template <class W, class A>
std::vector<W> wide_features(const AnyMap<A>& any, const std::vector<W>& x,
                             const std::vector<W>& weights) {
  using std::exp;
  const std::size_t d = x.size();
  const W zero(0);
  std::vector<std::vector<W>> layers;  // outputs of each layer
  std::size_t next = 0;
  for_each_layer(any, [&](const DenseWeights<A>& dense) {
    std::vector<W> y(d, zero);
    for (W& output : y) {
      for (const W& input : x) output = output + weights[next++] * input;
    }
    for (std::size_t j = 0; j < static_cast<std::size_t>(dense.bias.size()); ++j) {
      y[j] = y[j] + weights[next++];
    }
    layers.push_back(std::move(y));
  });
  std::vector<W> y;
  if (const auto* relu = std::get_if<Relu>(&any.map)) {
    const W eps(static_cast<double>(static_cast<A>(relu->eps)));
    for (const W& a : x) y.push_back((zero < a ? a : zero) + eps);
  } else if (std::holds_alternative<EluPlusOne>(any.map)) {
    for (const W& a : x) y.push_back(zero < a ? a + W(1) : exp(a));
  } else if (std::holds_alternative<Identity>(any.map)) {
    y = x;
  } else if (std::holds_alternative<Exp>(any.map)) {
    for (const W& a : x) y.push_back(exp(a));
  } else if (std::holds_alternative<T2R<A>>(any.map)) {
    for (const W& a : layers[0]) y.push_back(zero < a ? a : zero);
  } else if (std::holds_alternative<ElementwiseProduct<A>>(any.map)) {
    for (std::size_t j = 0; j < d; ++j) y.push_back(layers[0][j] * layers[1][j]);
  } else if (std::holds_alternative<Hedgehog<A>>(any.map)) {
    W total = zero, largest = zero;
    for (const W& a : layers[0]) {
      for (const W& s : {a, zero - a}) largest = largest < s ? s : largest;
    }
    for (const int sign : {2, -2}) {
      for (const W& a : layers[0]) y.push_back(exp(W(sign) * a - W(2) * largest));
    }
    for (const W& e : y) total = total + e;
    for (W& e : y) e = e / total;
  } else {
    std::vector<W> u;
    for (const W& a : x) u.push_back(zero < a ? a : zero);
    for (std::size_t i = 0; i < d; ++i) u.push_back(zero - u[i]);
    const auto nu = static_cast<std::size_t>(std::get<Dpfp>(any.map).nu);
    for (std::size_t j = 1; j <= nu; ++j) {
      // roll(u, j): element i is u[i - j], with indices modulo 2D.
      for (std::size_t i = 0; i < 2 * d; ++i) y.push_back(u[i] * u[(i + 2 * d * nu - j) % (2 * d)]);
    }
  }
  return y;
}

/// Features in W, and a bound of their absolute error when evaluated in A.
template <class W>
struct ReferenceFeatures {
  std::vector<W> value;
  std::vector<W> error;
  void add(W v, W e) {
    value.push_back(v);
    error.push_back(e);
  }
};

/// gamma_n = n u / (1 - n u): the relative error of n roundings (Higham, section 3.1).
template <class W>
W gamma(Index n, W u) {
  return static_cast<W>(n) * u / (1 - static_cast<W>(n) * u);
}

/// Output j of a dense layer, with the error of a dot product of D terms and an addition.
template <class W, class A>
void reference_dense(const DenseWeights<A>& dense, const std::vector<W>& x, Index j, W u, W& value,
                     W& error) {
  const Index d = dense.weight.cols();
  value = dense.bias.size() == 0 ? W(0) : static_cast<W>(dense.bias.data()[j]);
  W size = std::abs(value);
  for (Index i = 0; i < d; ++i) {
    const W term = static_cast<W>(dense.weight(j, i)) * x[static_cast<std::size_t>(i)];
    value += term;
    size += std::abs(term);
  }
  error = gamma(d + 1, u) * size;
}

template <class W, class A>
ReferenceFeatures<W> reference_hedgehog(const Hedgehog<A>& map, const std::vector<W>& x, W u) {
  const auto d = static_cast<Index>(x.size());
  std::vector<W> t, dt;
  for (int sign : {1, -1}) {
    for (Index j = 0; j < d; ++j) {
      W y, dy;
      reference_dense(map.dense(), x, j, u, y, dy);
      t.push_back(sign * 2 * y);
      dt.push_back(2 * dy);
    }
  }
  W largest = -std::numeric_limits<W>::infinity(), largest_error = 0;
  for (std::size_t i = 0; i < t.size(); ++i) {
    largest = std::max(largest, t[i]);
    largest_error = std::max(largest_error, dt[i]);
  }
  std::vector<W> e, relative;  // e^(t - largest)
  W total = 0, worst = 0;
  for (std::size_t i = 0; i < t.size(); ++i) {
    const W argument_error = dt[i] + largest_error + u * (largest - t[i]);
    e.push_back(std::exp(t[i] - largest));
    relative.push_back(std::expm1(argument_error) + W(detail::kExponentialRoundoffs) * u);
    total += e.back();
    worst = std::max(worst, relative.back());
  }
  const W tiny = static_cast<W>(std::numeric_limits<A>::min());  // e^x below this counts as 0
  const W sum_error = worst + gamma(2 * d, u) * (1 + worst);
  ReferenceFeatures<W> f;
  for (std::size_t i = 0; i < t.size(); ++i) {
    const W y = e[i] / total;
    f.add(y, y * ((1 + relative[i]) * (1 + u) / (1 - sum_error) - 1) + 2 * tiny);
  }
  return f;
}

template <class W, class A>
ReferenceFeatures<W> reference_features(const AnyMap<A>& any, const std::vector<W>& x, W u) {
  const auto d = static_cast<Index>(x.size());
  const W tiny = static_cast<W>(std::numeric_limits<A>::min());
  const W exponential_error = W(detail::kExponentialRoundoffs) * u;
  ReferenceFeatures<W> f;
  if (const auto* relu = std::get_if<Relu>(&any.map)) {
    for (const W a : x) {
      const W y = (a > 0 ? a : W(0)) + static_cast<W>(static_cast<A>(relu->eps));
      f.add(y, u * y);
    }
  } else if (std::holds_alternative<EluPlusOne>(any.map)) {
    for (const W a : x) {
      const W y = a > 0 ? a + 1 : std::exp(a);
      f.add(y, exponential_error * y + tiny);
    }
  } else if (std::holds_alternative<Identity>(any.map)) {
    for (const W a : x) f.add(a, 0);
  } else if (std::holds_alternative<Exp>(any.map)) {
    for (const W a : x) f.add(std::exp(a), exponential_error * std::exp(a) + tiny);
  } else if (const auto* t2r = std::get_if<T2R<A>>(&any.map)) {
    for (Index j = 0; j < d; ++j) {
      W y, dy;
      reference_dense(t2r->dense(), x, j, u, y, dy);
      f.add(y > 0 ? y : W(0), dy);
    }
  } else if (const auto* product = std::get_if<ElementwiseProduct<A>>(&any.map)) {
    for (Index j = 0; j < d; ++j) {
      W a, da, b, db;
      reference_dense(product->first(), x, j, u, a, da);
      reference_dense(product->second(), x, j, u, b, db);
      const W spread = std::abs(a) * db + std::abs(b) * da + da * db;
      f.add(a * b, spread + u * (std::abs(a * b) + spread));
    }
  } else if (const auto* hedgehog = std::get_if<Hedgehog<A>>(&any.map)) {
    f = reference_hedgehog(*hedgehog, x, u);
  } else {
    const int nu = std::get<Dpfp>(any.map).nu;
    std::vector<W> both(x);
    for (W& a : both) a = a > 0 ? a : W(0);
    for (Index i = 0; i < d; ++i) both.push_back(-both[static_cast<std::size_t>(i)]);
    for (int j = 1; j <= nu; ++j) {
      for (Index i = 0; i < 2 * d; ++i) {
        const Index rolled = ((i - j) % (2 * d) + 2 * d) % (2 * d);
        const W y = both[static_cast<std::size_t>(i)] * both[static_cast<std::size_t>(rolled)];
        f.add(y, u * std::abs(y));
      }
    }
  }
  return f;
}

}  // namespace mhla::test
