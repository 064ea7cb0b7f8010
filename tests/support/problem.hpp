#pragma once

/// \file
/// Random problems for the forms. Bounds of their distance from naive_attention are in
/// reference.hpp.

#include <cmath>
#include <sstream>
#include <string>
#include <variant>

#include "contract/normalizer.hpp"
#include "mhla/attention/batch.hpp"
#include "mhla/attention/naive.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/policy/mixing_matrix.hpp"
#include "support/any_map.hpp"
#include "support/any_partition.hpp"

namespace mhla::test {

/// A normaliser chosen at run time.
struct AnyNormalizer {
  using Choice = std::variant<NoNormalizer, KeySum, SquarePlusOne, CrossQuery>;
  Choice normalizer;

  AnyNormalizer(const Choice& choice = {}) : normalizer(choice) {}  // NOLINT
  AnyNormalizer(WeightSums sums, double eps) {
    if (sums == WeightSums::kToken) normalizer = KeySum{eps};
    if (sums == WeightSums::kCrossQuery) normalizer = CrossQuery{eps};
  }
  WeightSums sums() const {
    return std::visit([](const auto& z) { return z.sums(); }, normalizer);
  }
  template <class A>
  void denominators(const A* r, Index count, A* den) const {
    std::visit([&](const auto& z) { z.denominators(r, count, den); }, normalizer);
  }
  template <class A>
  void slopes(const A* r, Index count, A* slope) const {
    std::visit([&](const auto& z) { z.slopes(r, count, slope); }, normalizer);
  }
};

/// A problem of one head.
template <class T>
struct Problem {
  using A = accumulator_t<T>;

  std::uint64_t seed = 0;
  Matrix<T> q, k, v, normalizer_q, normalizer_k;
  AnyPartition query_blocks, key_blocks;
  Matrix<A> coefficients;
  Index lower = 0, upper = 0;  // bands of the mixing matrix; wide ones for a dense matrix
  AnyMap<A> query_map{Identity{}}, key_map{Identity{}};
  WeightSums normalizer = WeightSums::kToken;
  double eps = 0;
  double scale = 1;
  Matrix<bool> query_mask, key_mask;  // [1,N] or empty
  bool causal = false;
  bool sparse = false;  // nonzero coefficients as lists
  Index heads = 1;      // copies of the mixing matrix

  MixingMatrix<A> mixing() const {
    const auto m = MixingMatrix<A>::banded(coefficients, lower, upper);
    return per_head(sparse ? MixingMatrix<A>::sparse(m) : m, heads);
  }

  Inputs<T> inputs() const {
    Inputs<T> in{.q = q, .k = k, .v = v};
    if (has_separate_normalizer()) {
      in.normalizer_q = normalizer_q;
      in.normalizer_k = normalizer_k;
    }
    in.query_mask = mask(query_mask);
    in.key_mask = mask(key_mask);
    return in;
  }
  bool has_separate_normalizer() const { return normalizer_q.cols() > 0; }

  CrossBlocks<AnyPartition, AnyPartition> blocks() const { return {query_blocks, key_blocks}; }
  Order order() const { return causal ? Order::kCausal : Order::kBidirectional; }

  auto op() const { return Operator{query_map, key_map, AnyNormalizer(normalizer, eps), scale}; }

  std::string text() const {
    std::ostringstream s;
    s << "seed " << seed << ": q [" << q.rows() << "," << q.cols() << "], k [" << k.rows() << ","
      << k.cols() << "], v [" << v.rows() << "," << v.cols() << "], mixing [" << coefficients.rows()
      << "," << coefficients.cols() << "] " << (sparse ? "lists in " : "") << "band " << lower
      << "," << upper << ", maps " << query_map.name() << "/" << key_map.name() << ", normalizer "
      << static_cast<int>(normalizer) << (has_separate_normalizer() ? " own" : "") << ", eps "
      << eps << ", scale " << scale << (query_mask.size() > 0 ? ", query mask" : "")
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

/// Makes lists of some coefficients; a row or a column may have none.
template <class T>
void make_sparse(Problem<T>& p) {
  Random rng(p.seed);
  const double kept = rng.uniform();
  p.sparse = true;
  for (auto& c : p.coefficients.reshaped()) c = rng.chance(kept) ? c : 0;
}

/// A random problem: often edge sizes (0, 1, blocks that do not divide), all maps and normalisers,
/// masks, bands, separate queries and keys of denominators.
/// \param causal  ordered blocks, as many queries as keys, no CrossQuery, a mixing matrix that may
///     be larger than needed
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
  p.normalizer = static_cast<WeightSums>(rng.integer(0, causal ? 1 : 2));
  if (p.normalizer == WeightSums::kCrossQuery) {
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
  // Large numbers make e^x overflow, and also sums of products in half.
  const bool tame =
      std::is_same_v<T, Eigen::half> || p.query_map.exponential() || p.key_map.exponential();
  const double decades = tame ? 0.5 : 3;
  p.q = random_values<T>(rng, nq, d, decades);
  p.k = random_values<T>(rng, nk, d, decades);
  p.v = random_values<T>(rng, nk, e, decades);
  if (p.normalizer != WeightSums::kNone && rng.chance(0.15)) {
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
  p.eps = rng.chance(0.5) ? 0 : 0x1p-10;  // exact in any accumulator
  if (p.normalizer == WeightSums::kCrossQuery) p.eps = 0x1p-10;
  p.scale = rng.chance(0.7) ? 1 : 0.375;
  const auto mask = [&rng](Index n) {
    Matrix<bool> m(1, n);
    for (Index t = 0; t < n; ++t) m(0, t) = rng.chance(0.7);
    return m;
  };
  if (rng.chance(0.2)) p.key_mask = mask(nk);
  if (rng.chance(0.2)) p.query_mask = mask(nq);
  if (seed % 6 == 1) make_sparse(p);
  return p;
}

/// Keeps tokens with a probability per block, which may be 0.
inline Matrix<bool> random_mask(Random& rng, const AnyPartition& blocks) {
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
}

/// A problem larger than those of random_problem. It has many blocks, more than are mixed together,
/// or long blocks, more than a strip. Few or no tokens of a block may be kept.
template <class T>
Problem<T> large_problem(std::uint64_t seed, bool causal) {
  using A = accumulator_t<T>;
  Random rng(seed);
  Problem<T> p;
  p.seed = seed;
  p.causal = causal;
  p.normalizer = static_cast<WeightSums>(seed % (causal ? 2 : 3));
  const bool crosses_queries = p.normalizer == WeightSums::kCrossQuery;
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
  if (p.normalizer != WeightSums::kNone && rng.chance(0.3)) {
    const Index width = p.query_map.weights() > 0 || rng.chance(0.3) ? d : rng.integer(1, 20);
    p.normalizer_q = rng.matrix<T>(nq, width);
    p.normalizer_k = rng.matrix<T>(nk, width);
  }
  p.coefficients = rng.matrix<A>(p.query_blocks.blocks(), p.key_blocks.blocks(), 0.1, 1);
  p.lower = rng.chance(0.3) ? rng.integer(0, 9) : p.coefficients.rows();
  p.upper = rng.chance(0.3) ? rng.integer(0, 9) : p.coefficients.cols();
  p.eps = 0x1p-7;
  p.scale = rng.chance(0.5) ? 1 : 0.375;
  if (rng.chance(0.4)) p.query_mask = random_mask(rng, p.query_blocks);
  if (rng.chance(0.4)) p.key_mask = random_mask(rng, p.key_blocks);
  if (seed % 3 == 1) make_sparse(p);
  return p;
}

}  // namespace mhla::test
