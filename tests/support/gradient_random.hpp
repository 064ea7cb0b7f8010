#pragma once

/// \file
/// Random problems with well-conditioned gradients: if a denominator is a sum of weights, features
/// and coefficients are not negative.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/gradient_problem.hpp"
#include "support/seeds.hpp"
#include "support/special_values.hpp"

namespace mhla::test {

/// Size of a random problem.
enum class Size {
  kSmall,  ///< a few tokens: every element can be differentiated separately
  kAny,    ///< often edge cases: 0, 1, blocks that do not divide
  kMany,   ///< many blocks: more than are mixed together
  kLong,   ///< long blocks: more than one or two strips of tokens
};

/// Every eighth problem has many blocks, and every eighth long blocks.
inline Size size_of(std::uint64_t seed) {
  return seed % 8 == 3 ? Size::kMany : seed % 8 == 7 ? Size::kLong : Size::kAny;
}

namespace problem_detail {

inline AnyPartition draw_blocks(Random& rng, Size size, bool causal, bool equal) {
  const bool few = size == Size::kSmall || size == Size::kAny;
  if (equal) {
    const Index blocks = few ? rng.integer(1, 4) : size == Size::kMany ? 40 : 2;
    return random_equal_partition(rng, blocks, few ? rng.integer(1, 3) : 140 / blocks);
  }
  if (few) {
    const Index n = size == Size::kSmall ? rng.integer(1, 6) : rng.integer(0, 24);
    return causal ? random_ordered_partition(rng, n) : random_partition(rng, n);
  }
  std::vector<Index> sizes;
  for (Index n = 0; n < 150; n += sizes.back()) {
    sizes.push_back(size == Size::kMany ? rng.integer(0, 6) : rng.integer(1, 250));
  }
  return AnyPartition::of(BlockSizes(sizes));
}

/// Draws two maps with equal numbers of features.
template <class A>
void draw_maps(Random& rng, bool positive, Index d, AnyMap<A>& query_map, AnyMap<A>& key_map) {
  constexpr Index kPositive[] = {0, 1, 3, 4};  // relu, elu, exp, t2r
  const auto same_width = [&] {
    return positive ? kPositive[rng.integer(0, 3)] : rng.integer(0, kSameWidthMaps - 1);
  };
  if (d <= 6 && rng.chance(0.25)) {  // the maps that widen: hedgehog, dpfp
    const Index kind = positive || rng.chance(0.5) ? kSameWidthMaps : kSameWidthMaps + 1;
    query_map = random_map<A>(rng, kind, d);
    key_map = kind == kSameWidthMaps ? random_map<A>(rng, kind, d) : query_map;
  } else {
    query_map = random_map<A>(rng, same_width(), d);
    key_map = random_map<A>(rng, same_width(), d);
  }
}

/// Draws all coefficients, a band, or lists, some of which may be empty.
inline Pattern random_pattern(Random& rng, Index rows, Index cols) {
  const double kind = rng.uniform();
  if (kind < 0.4) return Pattern(rows, cols);
  if (kind < 0.7) return Pattern(rows, cols, rng.integer(0, 4), rng.integer(0, 4));
  const double kept = rng.uniform();
  std::vector<std::vector<Index>> lists(static_cast<std::size_t>(rows));
  for (std::vector<Index>& list : lists) {
    for (Index b = 0; b < cols; ++b) {
      if (rng.chance(kept)) list.push_back(b);
    }
  }
  return Pattern(cols, lists);
}

}  // namespace problem_detail

/// A random problem of a form (gradient_forms.hpp), with all normalisers, maps, masks, bands and
/// separate queries and keys of denominators.
template <class T, class Form>
GradientProblem<T> random_gradient(const Form& form, std::uint64_t seed, Size size) {
  using namespace problem_detail;
  Random rng(seed);
  GradientProblem<T> p;
  p.seed = seed;
  p.causal = form.causal;
  p.mixes = form.mixes;
  const Index normalizer = rng.integer(0, form.causal || !form.mixes ? 2 : 3);
  const bool equal = normalizer == 3, positive = normalizer % 2 == 1;
  if (normalizer == 1) p.op.normalizer = {KeySum{0.125}};
  if (normalizer == 2) p.op.normalizer = {SquarePlusOne{}};
  if (normalizer == 3) p.op.normalizer = {CrossQuery{0.125}};
  const AnyPartition blocks = draw_blocks(rng, size, form.causal, equal);
  p.blocks = {blocks, blocks};
  if (!form.causal && rng.chance(0.4)) {
    p.blocks.keys = equal ? AnyPartition::of(Contiguous(blocks.blocks() * 3, 3))
                          : draw_blocks(rng, size, false, false);
  }
  const Index nq = blocks.tokens(), nk = p.blocks.keys.tokens();
  const bool small = size == Size::kSmall;
  const Index d = small ? rng.integer(1, 3) : rng.chance(0.8) ? rng.integer(1, 8) : 21;
  const Index e = small ? rng.integer(1, 3) : rng.chance(0.9) ? rng.integer(0, 20) : 70;
  draw_maps(rng, positive, d, p.op.query_map, p.op.key_map);
  p.op.scale = rng.chance(0.6) ? 1 : 0.375;
  p.tensors = {rng.matrix<T>(nq, d), rng.matrix<T>(nk, d), rng.matrix<T>(nk, e)};
  p.dout = rng.matrix<T>(nq, e);
  if (normalizer != 0 && rng.chance(0.4)) {
    const bool weights = p.op.query_map.weights() + p.op.key_map.weights() > 0;
    const Index width = weights ? d : rng.integer(1, 8);
    p.tensors[kNormalizerQ] = rng.matrix<T>(nq, width);
    p.tensors[kNormalizerK] = rng.matrix<T>(nk, width);
  }
  const Index more = form.causal ? rng.integer(0, 2) : 0;  // only the leading part is read
  const Index rows = std::max<Index>(1, blocks.blocks() + more);
  const Index cols = std::max<Index>(1, p.blocks.keys.blocks() + more);
  p.set_mixing(random_pattern(rng, rows, cols), rng, positive ? 0.1 : -1);
  if (rng.chance(0.25)) p.query_mask = random_mask(rng, p.blocks.queries);
  if (rng.chance(0.25)) p.key_mask = random_mask(rng, p.blocks.keys);
  form.fit(p);
  return p;
}

/// A small problem that has everything: weights in both maps, separate queries and keys of the
/// denominator, a band.
template <class T, class Form>
GradientProblem<T> complete_problem(const Form& form) {
  using A = accumulator_t<T>;
  Random rng(1);
  GradientProblem<T> p;
  p.causal = form.causal;
  p.mixes = form.mixes;
  const Index n = 6, d = 3, e = 2;
  p.blocks.queries = p.blocks.keys = AnyPartition::of(Contiguous(n, 2));
  const auto dense = [&] {
    return DenseWeights<A>{rng.matrix<A>(d, d, 0, 1), rng.matrix<A>(d, 1, 0, 1)};
  };
  p.op.query_map = {ElementwiseProduct<A>(dense(), dense())};
  p.op.key_map = {ElementwiseProduct<A>(dense(), dense())};
  p.op.normalizer = {KeySum{1}};
  const auto tokens = [&](Index width) { return rng.matrix<T>(n, width, 0, 1); };
  p.tensors = {tokens(d), tokens(d), tokens(e), tokens(d), tokens(d)};
  p.dout = tokens(e);
  p.set_mixing(Pattern(3, 3, 1, 1), rng, 0.1);
  form.fit(p);
  return p;
}

/// Wide tokens in many blocks, with weights in both maps for odd seeds. Fewer workers mix more
/// blocks together.
template <class T, class Form>
GradientProblem<T> wide_problem(const Form& form, std::uint64_t seed) {
  Random rng(seed);
  GradientProblem<T> p = complete_problem<T>(form);
  constexpr Index kTokens = 120, kWidth = 8, kValues = 600;
  p.blocks.queries = p.blocks.keys = AnyPartition::of(Contiguous(kTokens, 2));
  p.op.query_map = p.op.key_map =
      random_map<accumulator_t<T>>(rng, seed % 2 == 0 ? 1 : kSameWidthMaps, kWidth);
  p.tensors = {rng.matrix<T>(kTokens, kWidth), rng.matrix<T>(kTokens, kWidth),
               rng.matrix<T>(kTokens, kValues)};
  p.dout = rng.matrix<T>(kTokens, kValues);
  p.set_mixing(Pattern(kTokens / 2, kTokens / 2), rng, 0.1);
  form.fit(p);
  return p;
}

/// Calls f(problem) for some random problems of all sizes.
template <class T, class Form, class F>
void for_problems(const Form& form, std::uint64_t count, F&& f) {
  for (const std::uint64_t seed : seeds(count)) {
    f(random_gradient<T>(form, seed, size_of(seed)));
  }
}

/// Calls f(problem) for the same problems, with special values in a tenth of them.
template <class T, class Form, class F>
void for_any_problems(const Form& form, std::uint64_t count, F&& f) {
  for_problems<T>(form, count, [&](GradientProblem<T> p) {
    Matrix<T>* const matrices[] = {&p.tensors[kQ],           &p.tensors[kK],
                                   &p.tensors[kV],           &p.tensors[kNormalizerQ],
                                   &p.tensors[kNormalizerK], &p.dout};
    make_tenth_special<T>(p.seed, matrices);
    f(p);
  });
}

/// Expects the same bits in every part.
template <class T>
void expect_same(const GradientBuffers<T>& a, const GradientBuffers<T>& b,
                 const GradientProblem<T>& p, const std::string& what) {
  EXPECT_EQ(different_bits(a, b), "") << what << " " << p.text();
}

}  // namespace mhla::test
