#pragma once

/// \file
/// A feature map chosen at run time, and every map's definition written a second time: plain
/// scalars in a wide type, with a bound on the error of evaluating it in the accumulator type.

#include <cmath>
#include <limits>
#include <variant>
#include <vector>

#include "mhla/stage/feature_map.hpp"
#include "mhla/stage/learned_feature_map.hpp"
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
  bool exponential() const { return std::holds_alternative<Exp>(map); }
  const char* name() const {
    constexpr const char* kNames[] = {"relu", "elu",     "identity", "exp",
                                      "t2r",  "product", "hedgehog", "dpfp"};
    return kNames[map.index()];
  }
};

inline constexpr Index kSameWidthMaps = 6;  // the alternatives that keep the width come first

/// A map for rows of width d; the weights of learned ones are random.
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

/// Features in W and a bound of their absolute error when evaluated in A.
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
  std::vector<W> e, relative;  // of exp(t - largest)
  W total = 0, worst = 0;
  for (std::size_t i = 0; i < t.size(); ++i) {
    const W argument_error = dt[i] + largest_error + u * (largest - t[i]);
    e.push_back(std::exp(t[i] - largest));
    relative.push_back(std::expm1(argument_error) + W(detail::kExponentialRoundoffs) * u);
    total += e.back();
    worst = std::max(worst, relative.back());
  }
  const W tiny = static_cast<W>(std::numeric_limits<A>::min());  // below it e^x counts as 0
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
