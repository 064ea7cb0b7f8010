#pragma once

/// \file
/// A problem for gradients, and memory for them. Random problems are in gradient_random.hpp.

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "mhla/gradient/gradients.hpp"
#include "support/problem.hpp"

namespace mhla::test {

/// Variables of gradients: five tensors and three rows of parameters.
enum Part : std::size_t {
  kQ,
  kK,
  kV,
  kNormalizerQ,
  kNormalizerK,
  kMixing,
  kQueryMap,
  kKeyMap,
  kParts
};
inline constexpr Part kAllParts[] = {kQ,           kK,      kV,        kNormalizerQ,
                                     kNormalizerK, kMixing, kQueryMap, kKeyMap};
inline constexpr const char* kPartNames[] = {
    "q", "k", "v", "normalizer_q", "normalizer_k", "mixing", "query_map", "key_map"};

/// One number per element of every part.
template <class W>
using Variables = std::array<Matrix<W>, kParts>;

/// Mixing matrices in the rows of m, those of a sequence side by side.
template <class M>
auto mixing_of(M& m, const Pattern& pattern, Index heads) {
  using A = std::remove_pointer_t<decltype(m.data())>;
  const Index size = pattern.size();
  return MixingView<A>(m.data(), pattern, heads, size, m.rows() / heads, heads * size);
}

/// A problem of one head.
template <class T>
struct GradientProblem {
  using A = accumulator_t<T>;

  std::uint64_t seed = 0;
  std::array<Matrix<T>, kMixing> tensors;
  Matrix<T> dout;
  CrossBlocks<AnyPartition, AnyPartition> blocks;
  Pattern pattern;
  Matrix<A> coefficients;  // [sequences with matrices or 1, heads, pattern.size()]
  Index mixing_heads = 1;  // with a matrix
  Operator<AnyMap<A>, AnyMap<A>, AnyNormalizer> op;
  Matrix<bool> query_mask, key_mask;  // [1,N] or empty
  bool causal = false;
  bool mixes = true;  // true if the coefficients are parameters

  MixingView<const A> mixing() const { return mixing_of(coefficients, pattern, mixing_heads); }
  /// The row of the coefficients that head h of sequence s reads.
  Index row_of(Index s, Index h) const {
    return (coefficients.rows() == mixing_heads ? 0 : s * mixing_heads) +
           (mixing_heads == 1 ? 0 : h);
  }
  /// The same with the mixing matrix of head h of sequence s.
  GradientProblem of_pair(Index s, Index h) const {
    GradientProblem pair = *this;
    pair.coefficients = coefficients.row(row_of(s, h));
    pair.mixing_heads = 1;
    return pair;
  }
  Index queries() const { return tensors[kQ].rows(); }
  Index keys() const { return tensors[kK].rows(); }
  static Mask mask(const Matrix<bool>& m) {
    return m.size() == 0 ? Mask{} : Mask{m.data(), m.cols()};
  }
  Inputs<T> inputs() const {
    return {.q = tensors[kQ],
            .k = tensors[kK],
            .v = tensors[kV],
            .normalizer_q = tensors[kNormalizerQ],
            .normalizer_k = tensors[kNormalizerK],
            .query_mask = mask(query_mask),
            .key_mask = mask(key_mask)};
  }
  /// Sets the coefficients, and zeros after the ends of the rows.
  void set_mixing(const Pattern& of, Random& rng, double low, Index heads = 1,
                  Index sequences = 1) {
    pattern = of;
    mixing_heads = heads;
    coefficients = Matrix<A>::Zero(sequences * heads, of.size());
    mixing_of(coefficients, of, heads).for_each([&](A& c) {
      c = static_cast<A>(rng.uniform(low, 1));
    });
  }
  std::string text() const {
    const auto shape = [](const auto& m) { return detail::shape_text({m.rows(), m.cols()}); };
    return "seed " + std::to_string(seed) + ": q " + shape(tensors[kQ]) + ", k " +
           shape(tensors[kK]) + ", v " + shape(tensors[kV]) + ", own q " +
           shape(tensors[kNormalizerQ]) + ", " + std::to_string(coefficients.rows()) + " mixing " +
           shape(pattern) + (pattern.sparse() ? " in lists" : " in a band") + ", maps " +
           op.query_map.name() + "/" + op.key_map.name() + ", normalizer " +
           std::to_string(op.normalizer.normalizer.index()) + ", scale " +
           std::to_string(op.scale) + (query_mask.size() > 0 ? ", query mask" : "") +
           (key_mask.size() > 0 ? ", key mask" : "");
  }
};

/// Memory for the gradient of every part. A mixing matrix is a flat row of numbers.
template <class T>
struct GradientBuffers {
  using A = accumulator_t<T>;

  std::array<Matrix<T>, kMixing> tensors;
  std::array<Matrix<A>, kParts - kMixing> parameters;
  Pattern pattern;
  Index mixing_heads;

  /// Every element starts with the next number of `start`.
  template <class Start>
  GradientBuffers(const GradientProblem<T>& p, Start&& start)
      : tensors(p.tensors), pattern(p.pattern), mixing_heads(p.mixing_heads) {
    const auto flat = [](const AnyMap<A>& map) { return Matrix<A>(1, map.weights()); };
    parameters = {Matrix<A>(p.coefficients.rows(), p.mixes ? pattern.size() : 0),
                  flat(p.op.query_map), flat(p.op.key_map)};
    for_each([&](Part, auto& m) {
      using Number = typename std::remove_cvref_t<decltype(m)>::Scalar;
      for (Number& x : m.reshaped()) x = static_cast<Number>(static_cast<A>(start()));
    });
  }
  explicit GradientBuffers(const GradientProblem<T>& p) : GradientBuffers(p, [] { return 0; }) {}

  /// Calls f(part, matrix of the part) for every part.
  template <class F>
  void for_each(F&& f) {
    for (const Part part : kAllParts) with(part, [&](auto& m) { f(part, m); });
  }
  /// Calls f with the matrix of a part.
  template <class F>
  void with(Part part, F&& f) {
    if (part < kMixing) {
      f(tensors[part]);
    } else {
      f(parameters[part - kMixing]);
    }
  }

  Gradients<T> views() {
    return {tensors[kQ], tensors[kK], tensors[kV], tensors[kNormalizerQ], tensors[kNormalizerK]};
  }
  ParameterGradients<A> parameter_views() {
    auto& [mixing, query_map, key_map] = parameters;
    ParameterGradients<A> views;
    if (mixing.size() > 0) views.mixing = mixing_of(mixing, pattern, mixing_heads);
    views.query_map = {query_map.data(), static_cast<std::size_t>(query_map.size())};
    views.key_map = {key_map.data(), static_cast<std::size_t>(key_map.size())};
    return views;
  }
  /// All numbers of all parts.
  template <class W>
  Variables<W> values() {
    Variables<W> x;
    for_each([&](Part part, auto& m) { x[part] = m.template cast<A>().template cast<W>(); });
    return x;
  }
};

/// Names of the parts in which a and b differ in a bit.
template <class T>
std::string different_bits(GradientBuffers<T> a, GradientBuffers<T> b) {
  std::string different;
  a.for_each([&](Part part, auto& x) {
    b.with(part, [&](auto& y) {
      const auto bytes = static_cast<std::size_t>(x.size()) * sizeof(*x.data());
      if constexpr (std::is_same_v<decltype(x), decltype(y)>) {
        const bool same =
            x.size() == y.size() && (bytes == 0 || std::memcmp(x.data(), y.data(), bytes) == 0);
        if (!same) different += std::string(kPartNames[part]) + " ";
      }
    });
  });
  return different;
}

/// Values of a problem's variables.
template <class W, class T>
Variables<W> values_of(const GradientProblem<T>& p) {
  using A = accumulator_t<T>;
  Variables<W> x;
  for (std::size_t part = 0; part < kMixing; ++part) {
    x[part] = p.tensors[part].template cast<A>().template cast<W>();
  }
  const auto row = [](const std::vector<A>& flat) {
    Matrix<W> m(1, static_cast<Index>(flat.size()));
    for (Index i = 0; i < m.size(); ++i) m(0, i) = W(flat[static_cast<std::size_t>(i)]);
    return m;
  };
  x[kMixing] = p.coefficients.template cast<W>();
  x[kQueryMap] = row(flat_weights(p.op.query_map));
  x[kKeyMap] = row(flat_weights(p.op.key_map));
  return x;
}

}  // namespace mhla::test
