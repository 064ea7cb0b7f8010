#pragma once

/// \file
/// Random problems for the forms. What their outputs must be is in reference.hpp.

#include <cmath>
#include <sstream>
#include <string>

#include "mhla/attention/naive.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/policy/mixing_matrix.hpp"
#include "support/any_map.hpp"
#include "support/any_partition.hpp"

namespace mhla::test {

/// One head's problem.
template <class T>
struct Problem {
  using A = accumulator_t<T>;

  std::uint64_t seed = 0;
  Matrix<T> q, k, v, normalizer_q, normalizer_k;
  AnyPartition query_blocks, key_blocks;
  Matrix<A> coefficients;
  Index lower = 0, upper = 0;  // bands of the mixing matrix; wide ones for a dense matrix
  AnyMap<A> query_map{Identity{}}, key_map{Identity{}};
  NaiveNormalizer normalizer = NaiveNormalizer::kKeySum;
  double eps = 0;
  double scale = 1;
  Matrix<bool> query_mask, key_mask;  // [1,N] or empty
  bool causal = false;

  MixingMatrix<A> mixing() const { return MixingMatrix<A>::banded(coefficients, lower, upper); }

  Inputs<T> inputs() const {
    Inputs<T> in{.q = q, .k = k, .v = v};
    if (has_own_normalizer()) {
      in.normalizer_q = normalizer_q;
      in.normalizer_k = normalizer_k;
    }
    in.query_mask = mask(query_mask);
    in.key_mask = mask(key_mask);
    return in;
  }
  bool has_own_normalizer() const { return normalizer_q.cols() > 0; }

  /// Calls f with the Operator of this problem.
  template <class F>
  void with_operator(F&& f) const {
    if (normalizer == NaiveNormalizer::kNone)
      f(Operator{query_map, key_map, NoNormalizer{}, scale});
    if (normalizer == NaiveNormalizer::kKeySum) f(Operator{query_map, key_map, KeySum{eps}, scale});
    if (normalizer == NaiveNormalizer::kCrossQuery) {
      if constexpr (requires { f(Operator{query_map, key_map, CrossQuery{eps}, scale}); }) {
        f(Operator{query_map, key_map, CrossQuery{eps}, scale});
      }
    }
  }

  std::string text() const {
    std::ostringstream s;
    s << "seed " << seed << ": q [" << q.rows() << "," << q.cols() << "], k [" << k.rows() << ","
      << k.cols() << "], v [" << v.rows() << "," << v.cols() << "], mixing [" << coefficients.rows()
      << "," << coefficients.cols() << "] band " << lower << "," << upper << ", maps "
      << query_map.name() << "/" << key_map.name() << ", normalizer "
      << static_cast<int>(normalizer) << (has_own_normalizer() ? " own" : "") << ", eps " << eps
      << ", scale " << scale << (query_mask.size() > 0 ? ", query mask" : "")
      << (key_mask.size() > 0 ? ", key mask" : "") << (causal ? ", causal" : "");
    return s.str();
  }

 private:
  static Mask mask(const Matrix<bool>& m) {
    return m.size() == 0 ? Mask{} : Mask{m.data(), m.cols(), 1};
  }
};

/// Random numbers in [-1, 1], with many zeros, or over `decades` decades on both sides of 1.
template <class T>
Matrix<T> random_values(Random& rng, Index rows, Index cols, double decades) {
  Matrix<T> m = rng.matrix<T>(rows, cols);
  const double kind = rng.uniform();
  for (Index r = 0; r < rows && kind < 0.4; ++r) {
    for (Index c = 0; c < cols; ++c) {
      const double x = static_cast<double>(m(r, c));
      const double y = kind < 0.2        ? x * std::pow(10, rng.uniform(-decades, decades))
                       : rng.chance(0.7) ? 0
                                         : x;
      m(r, c) = static_cast<T>(static_cast<accumulator_t<T>>(y));
    }
  }
  return m;
}

/// A random problem: sizes lean to the edges (0, 1, blocks that do not divide), all maps and
/// normalisers, masks, bands, denominators of their own.
/// \param causal  ordered blocks, as many queries as keys, no CrossQuery, a mixing matrix that may
///                be larger than needed
template <class T>
Problem<T> random_problem(std::uint64_t seed, bool causal) {
  using A = accumulator_t<T>;
  Random rng(seed);
  Problem<T> p;
  p.seed = seed;
  p.causal = causal;
  const auto tokens = [&rng] {
    const double kind = rng.uniform();
    return kind < 0.05   ? 0
           : kind < 0.1  ? 1
           : kind < 0.97 ? rng.integer(2, 24)
                         : rng.integer(60, 150);
  };
  p.normalizer = static_cast<NaiveNormalizer>(rng.integer(0, causal ? 1 : 2));
  if (p.normalizer == NaiveNormalizer::kCrossQuery) {
    const Index blocks = rng.integer(1, 6);
    p.query_blocks = random_equal_partition(rng, blocks, rng.integer(1, 6));
    p.key_blocks = p.query_blocks;
    if (rng.chance(0.3)) p.key_blocks = AnyPartition::of(Contiguous(blocks * 3, 3));
  } else {
    const Index n = tokens();
    p.query_blocks = causal ? random_ordered_partition(rng, n) : random_partition(rng, n);
    p.key_blocks = causal || rng.chance(0.6) ? p.query_blocks : random_partition(rng, tokens());
  }
  const Index nq = p.query_blocks.tokens(), nk = p.key_blocks.tokens();
  const Index d = rng.chance(0.8) ? rng.integer(1, 12) : rng.integer(13, 40);
  const Index e = rng.chance(0.05) ? 0 : rng.chance(0.8) ? rng.integer(1, 12) : rng.integer(13, 70);
  const bool widening = d <= 6 && rng.chance(0.15);
  const Index kind = rng.integer(kSameWidthMaps, kSameWidthMaps + 1);
  p.query_map = random_map<A>(rng, widening ? kind : rng.integer(0, kSameWidthMaps - 1), d);
  p.key_map = widening || rng.chance(0.5)
                  ? p.query_map
                  : random_map<A>(rng, rng.integer(0, kSameWidthMaps - 1), d);
  // e^x of large numbers is out of range, and so are sums of products of large numbers in half.
  const bool tame =
      std::is_same_v<T, Eigen::half> || p.query_map.exponential() || p.key_map.exponential();
  const double decades = tame ? 0.5 : 3;
  p.q = random_values<T>(rng, nq, d, decades);
  p.k = random_values<T>(rng, nk, d, decades);
  p.v = random_values<T>(rng, nk, e, decades);
  if (p.normalizer != NaiveNormalizer::kNone && rng.chance(0.15)) {
    p.normalizer_q = random_values<T>(rng, nq, d, decades);
    p.normalizer_k = random_values<T>(rng, nk, d, decades);
  }
  const Index extra = causal ? rng.integer(0, 2) : 0;
  const Index mq = std::max<Index>(1, p.query_blocks.blocks() + extra);
  const Index mk = std::max<Index>(1, p.key_blocks.blocks() + extra);
  p.coefficients = rng.matrix<A>(mq, mk, rng.chance(0.3) ? -1 : 0, 1);
  const bool band = rng.chance(0.3);
  p.lower = band ? rng.integer(0, 4) : mq;
  p.upper = band ? rng.integer(0, 4) : mk;
  p.eps = rng.chance(0.5) ? 0 : 1e-3;
  if (p.normalizer == NaiveNormalizer::kCrossQuery) p.eps = 1e-3;
  p.scale = rng.chance(0.7) ? 1 : 0.37;
  const auto random_mask = [&rng](Index n) {
    Matrix<bool> m(1, n);
    for (Index t = 0; t < n; ++t) m(0, t) = rng.chance(0.7);
    return m;
  };
  if (rng.chance(0.2)) p.key_mask = random_mask(nk);
  if (rng.chance(0.2)) p.query_mask = random_mask(nq);
  return p;
}

}  // namespace mhla::test
