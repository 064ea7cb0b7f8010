#pragma once

/// \file
/// A random problem as a function of its variables: the tensors and parameters that gradients are
/// taken with respect to, in any scalar (dual numbers, Terms). Values come from the naive form.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mhla/attention/naive.hpp"
#include "support/any_map.hpp"
#include "support/gradient_terms.hpp"
#include "support/problem.hpp"
#include "support/reference.hpp"

namespace mhla::test {

/// One number for each variable of a problem: values, a direction, a gradient.
template <class W>
struct Variables {
  Matrix<W> q, k, v, normalizer_q, normalizer_k;  // as in Problem
  Matrix<W> mixing;                               // [Mq,Mk], 0 outside the band
  std::vector<W> query_weights, key_weights;      // of the feature maps, flat
};

/// Calls f(name, tensor of each of `all`) for every tensor; tensors have data() and size().
template <class F, class... V>
void for_each_tensor(F&& f, V&&... all) {
  f("q", all.q...);
  f("k", all.k...);
  f("v", all.v...);
  f("normalizer_q", all.normalizer_q...);
  f("normalizer_k", all.normalizer_k...);
  f("mixing", all.mixing...);
  f("query_weights", all.query_weights...);
  f("key_weights", all.key_weights...);
}

/// f of each element of one, two, ... tensors, in the shape of the first.
template <class To, class From, class F>
Matrix<To> map_elements(const Matrix<From>& m, F&& f) {
  Matrix<To> result(m.rows(), m.cols());
  for (Index i = 0; i < m.size(); ++i) result.data()[i] = f(m.data()[i]);
  return result;
}
template <class To, class From, class F>
std::vector<To> map_elements(const std::vector<From>& v, F&& f) {
  std::vector<To> result;
  for (const From& x : v) result.push_back(f(x));
  return result;
}
template <class To, class From, class F>
Variables<To> map_variables(const Variables<From>& from, F&& f) {
  return {map_elements<To>(from.q, f),
          map_elements<To>(from.k, f),
          map_elements<To>(from.v, f),
          map_elements<To>(from.normalizer_q, f),
          map_elements<To>(from.normalizer_k, f),
          map_elements<To>(from.mixing, f),
          map_elements<To>(from.query_weights, f),
          map_elements<To>(from.key_weights, f)};
}

/// The values of a problem's variables.
template <class T>
Variables<double> values_of(const Problem<T>& p) {
  using A = accumulator_t<T>;
  const auto wide = [](const T& x) { return static_cast<double>(static_cast<A>(x)); };
  const auto widen = [](const A& x) { return static_cast<double>(x); };
  return {map_elements<double>(p.q, wide),
          map_elements<double>(p.k, wide),
          map_elements<double>(p.v, wide),
          map_elements<double>(p.normalizer_q, wide),
          map_elements<double>(p.normalizer_k, wide),
          map_elements<double>(p.mixing().dense(), widen),
          map_elements<double>(flat_weights(p.query_map), widen),
          map_elements<double>(flat_weights(p.key_map), widen)};
}

/// True if (i, b) of the mixing matrix is a parameter.
template <class T>
bool in_band(const Problem<T>& p, Index i, Index b) {
  return b >= i - p.lower && b <= i + p.upper;
}

/// A random direction, 0 outside the band of the mixing matrix.
template <class T>
Variables<double> random_direction(const Problem<T>& p, Random& rng) {
  auto direction =
      map_variables<double>(values_of(p), [&rng](double) { return rng.uniform(-1, 1); });
  for (Index i = 0; i < direction.mixing.rows(); ++i) {
    for (Index b = 0; b < direction.mixing.cols(); ++b) {
      if (!in_band(p, i, b)) direction.mixing(i, b) = 0;
    }
  }
  return direction;
}

/// factor * phi of every row.
template <class W, class A>
Matrix<W> wide_map_rows(const AnyMap<A>& map, const Matrix<W>& x, const std::vector<W>& weights,
                        const W& factor) {
  Matrix<W> y(x.rows(), map.features(x.cols()));
  for (Index t = 0; t < x.rows(); ++t) {
    const auto features = wide_features(
        map, std::vector<W>(x.data() + t * x.cols(), x.data() + (t + 1) * x.cols()), weights);
    for (Index j = 0; j < y.cols(); ++j) y(t, j) = factor * features[static_cast<std::size_t>(j)];
  }
  return y;
}

/// The naive problem at the point `x`.
template <class W, class T>
NaiveProblem<W> naive_at(const Problem<T>& p, const Variables<W>& x) {
  using A = accumulator_t<T>;
  const W scale(static_cast<double>(static_cast<A>(p.scale)));
  NaiveProblem<W> n;
  n.q = wide_map_rows(p.query_map, x.q, x.query_weights, scale);
  n.k = wide_map_rows(p.key_map, x.k, x.key_weights, W(1));
  n.v = x.v;
  if (p.has_own_normalizer()) {
    n.normalizer_q = wide_map_rows(p.query_map, x.normalizer_q, x.query_weights, scale);
    n.normalizer_k = wide_map_rows(p.key_map, x.normalizer_k, x.key_weights, W(1));
  }
  n.mixing = x.mixing;
  n.query_block = p.query_blocks.block_of_token();
  n.key_block = p.key_blocks.block_of_token();
  n.query_slot = p.query_blocks.slot_of_token();
  n.normalizer = p.normalizer;
  n.eps = W(static_cast<double>(static_cast<A>(p.eps)));
  n.query_kept = reference_detail::mask_vector(p.query_mask);
  n.key_kept = reference_detail::mask_vector(p.key_mask);
  n.causal = p.causal;
  return n;
}

/// Scalars that carry the size of sums computed in T's accumulator.
template <class T>
using TermsOf = Terms<Wide<T>, accumulator_t<T>>;

/// The longest chain of roundings on the way of a term to the gradient of a tensor. There and back:
/// the tokens of a block, the blocks, the features, the values, each as a sum; eps, quotients,
/// products with coefficients and the scale; the feature map.
template <class T>
Index gradient_chain(const Problem<T>& p) {
  const Index d = std::max(p.q.cols(), p.k.cols()), e = p.v.cols();
  const Index f = p.query_map.features(std::max(p.q.cols(), p.normalizer_q.cols()));
  const Index blocks = p.query_blocks.blocks() + p.key_blocks.blocks();
  const Index tokens = largest_block(p.query_blocks) + largest_block(p.key_blocks);
  const Index map = 4 * d + 2 * Index(detail::kExponentialRoundoffs) + 8;
  return 2 * (tokens + blocks) + 3 * f + 2 * e + 2 * map + 40;
}

/// The same of a parameter, whose gradient sums over all tokens or over the elements of a summary.
template <class T>
Index parameter_chain(const Problem<T>& p) {
  const Index f = p.query_map.features(std::max(p.q.cols(), p.normalizer_q.cols()));
  return gradient_chain(p) + p.q.rows() + p.k.rows() + f * (p.v.cols() + 1);
}

/// Prepares a problem for a comparison of gradients, in which every output takes part: queries
/// whose denominator is lost in its own error are masked.
/// \return false if it is of no use: slot sums of CrossQuery are lost, which reach other queries,
///         or a layer's output in front of max(x, 0) has no certain sign
template <class T>
bool make_comparable(Problem<T>& p, Index& masked) {
  using S = TermsOf<T>;
  using W = Wide<T>;
  const auto x = map_variables<S>(values_of(p), [](double a) { return S(a); });
  const W u = static_cast<W>(kUnitRoundoff<T>), g = gamma(gradient_chain(p), u);
  for (const auto* side : {&p.query_map, &p.key_map}) {
    const bool query = side == &p.query_map;
    if (!std::holds_alternative<T2R<accumulator_t<T>>>(side->map)) continue;
    for (const Matrix<S>* rows : {query ? &x.q : &x.k, query ? &x.normalizer_q : &x.normalizer_k}) {
      const auto& weights = query ? x.query_weights : x.key_weights;
      for (Index t = 0; t < rows->rows(); ++t) {
        for (Index j = 0; j < rows->cols(); ++j) {
          S y(0);
          for (Index i = 0; i < rows->cols(); ++i) {
            y += weights[static_cast<std::size_t>(j * rows->cols() + i)] * (*rows)(t, i);
          }
          if (y.size > 0 && std::abs(y.value) <= gamma(rows->cols(), u) * y.size) return false;
        }
      }
    }
  }
  if (p.normalizer == NaiveNormalizer::kNone) return true;
  const Matrix<S> den = naive_denominators(naive_at(p, x));
  const W least = sizeof(accumulator_t<T>) == 4 ? W(1e-12) : W(1e-100);
  for (Index t = 0; t < den.rows(); ++t) {
    if (p.query_mask.size() > 0 && !p.query_mask(0, t)) continue;
    const W size = std::abs(den(t, 0).value);
    if (size >= 64 * g * den(t, 0).size && size >= least) continue;
    if (p.normalizer == NaiveNormalizer::kCrossQuery) return false;
    if (p.query_mask.size() == 0) p.query_mask = Matrix<bool>::Constant(1, den.rows(), true);
    p.query_mask(0, t) = false;
    ++masked;
  }
  return true;
}

/// A problem larger than those of random_problem: many blocks, more than are mixed together, or
/// long ones, more than a strip, of which few or no tokens may be kept.
template <class T>
Problem<T> large_problem(std::uint64_t seed, bool causal) {
  using A = accumulator_t<T>;
  Random rng(seed);
  Problem<T> p;
  p.seed = seed;
  p.causal = causal;
  p.normalizer = static_cast<NaiveNormalizer>(seed % (causal ? 2 : 3));
  const bool crosses_queries = p.normalizer == NaiveNormalizer::kCrossQuery;
  const auto partition = [&] {
    const bool many = rng.chance(0.5);
    if (crosses_queries) return random_equal_partition(rng, many ? 60 : 2, many ? 3 : 90);
    std::vector<Index> sizes;
    Index n = 0;
    for (; n < 180; n += sizes.back())
      sizes.push_back(many ? rng.integer(0, 6) : rng.integer(1, 150));
    return AnyPartition::of(BlockSizes(sizes));
  };
  p.query_blocks = partition();
  p.key_blocks = causal || crosses_queries || rng.chance(0.5) ? p.query_blocks : partition();
  const Index d = rng.chance(0.5) ? rng.integer(1, 4) : rng.integer(17, 40), e = rng.integer(1, 40);
  const Index nq = p.query_blocks.tokens(), nk = p.key_blocks.tokens();
  p.query_map = random_map<A>(rng, rng.chance(0.4) ? 1 : d < 10 ? kSameWidthMaps : 0, d);
  p.key_map = p.query_map;
  if (const auto flat = flat_weights(p.query_map); !flat.empty() && rng.chance(0.5)) {
    p.key_map = with_weights(p.query_map, std::vector<A>(flat.rbegin(), flat.rend()));
  }
  p.q = rng.matrix<T>(nq, d);
  p.k = rng.matrix<T>(nk, d);
  p.v = rng.matrix<T>(nk, e);
  if (p.normalizer != NaiveNormalizer::kNone && rng.chance(0.3)) {
    const Index own = p.query_map.weights() > 0 || rng.chance(0.3) ? d : rng.integer(1, 20);
    p.normalizer_q = rng.matrix<T>(nq, own);
    p.normalizer_k = rng.matrix<T>(nk, own);
  }
  p.coefficients = rng.matrix<A>(p.query_blocks.blocks(), p.key_blocks.blocks(), 0.1, 1);
  p.lower = rng.chance(0.3) ? rng.integer(0, 9) : p.coefficients.rows();
  p.upper = rng.chance(0.3) ? rng.integer(0, 9) : p.coefficients.cols();
  p.eps = 1e-2;
  p.scale = rng.chance(0.5) ? 1 : 0.3;
  const auto random_mask = [&rng](const AnyPartition& blocks) {
    Matrix<bool> mask(1, blocks.tokens());
    for (Index b = 0; b < blocks.blocks(); ++b) {
      constexpr double kKept[] = {0, 0.1, 0.7, 1};
      const double kept = kKept[rng.integer(0, 3)];
      for (Index r = 0; r < blocks.runs(b); ++r) {
        const Run run = blocks.run(b, r);
        for (Index t = run.begin; t < run.begin + run.length; ++t) mask(0, t) = rng.chance(kept);
      }
    }
    return mask;
  };
  if (rng.chance(0.4)) p.query_mask = random_mask(p.query_blocks);
  if (rng.chance(0.4)) p.key_mask = random_mask(p.key_blocks);
  return p;
}

}  // namespace mhla::test
