#pragma once

/// \file
/// The three stages that a unit has (stage/unit_stages.hpp), each against its definition. A case
/// names a unit, the type of its tensors, the storage of its numbers and the bounds of its
/// products.

#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "mhla/attention/head_summaries.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/read_out.hpp"
#include "mhla/stage/unit_stages.hpp"
#include "support/any_partition.hpp"
#include "support/stage_case.hpp"

namespace mhla::test {

/// The vector unit.
template <class Accumulator>
struct VectorCase {
  using A = Accumulator;
  using T = Accumulator;
  using Stages = detail::UnitStages<detail::vector_unit, A>;
  static constexpr bool kSkips = true;  ///< coefficients that are not read may be anything
  static void map() {}                  ///< further actions of a feature map
  static Index group(Index rows) { return rows; }
  static Bound summary_bound(Index tokens) { return {tokens}; }
  static Bound mixing_bound(Index blocks) { return {blocks}; }
  static Bound read_out_bound(Index d) { return {d + 2}; }

  /// \param x  a row per block   // [M, D*E]
  static void store(const Matrix<A>& x, const detail::Summaries<A>& s) {
    for_each_place(s, [&](Index b, Index i, A& place) { place = x(b, i); });
  }
  static Matrix<A> stored(const detail::Summaries<A>& s) {
    Matrix<A> x(s.blocks, s.features * s.values);
    for_each_place(s, [&](Index b, Index i, const A& place) { x(b, i) = place; });
    return x;
  }
  static void store(const Matrix<A>& x, const detail::Mixtures<A>& mixtures, Index g) {
    std::copy_n(x.data(), x.size(), mixtures.kv.row(g));
  }
  static Matrix<A> stored(const detail::Mixtures<A>& mixtures, Index g) {
    const Index size = mixtures.features * mixtures.values;
    for (Index i = size; i < mixtures.kv.stride; ++i) {
      EXPECT_TRUE(std::isnan(mixtures.kv.row(g)[i])) << "written outside";
    }
    return Matrix<A>::Map(mixtures.kv.row(g), 1, size);
  }

 private:
  template <class F>
  static void for_each_place(const detail::Summaries<A>& s, F&& f) {
    for (Index b = 0; b < s.blocks; ++b) {
      for (Index i = 0; i < s.features * s.values; ++i) {
        const Index d = i / s.values, slab = d / detail::kTile.slab;
        f(b, i, s.block(b).row(slab)[(d % detail::kTile.slab) * s.values + i % s.values]);
      }
    }
  }
};

/// The kept tokens of a block in the order of their slots.
template <Partition P>
std::vector<Index> kept_tokens(const P& blocks, Index b, Mask mask) {
  std::vector<Index> tokens;
  for (Index r = 0; r < blocks.runs(b); ++r) {
    const Run run = blocks.run(b, r);
    for (Index t = run.begin; t < run.begin + run.length; ++t) {
      if (mask[t]) tokens.push_back(t);
    }
  }
  return tokens;
}

/// Rows `tokens` of x, widened.
template <class A, class T>
Matrix<A> rows_of(const Matrix<T>& x, const std::vector<Index>& tokens) {
  Matrix<A> rows(std::ssize(tokens), x.cols());
  for (Index s = 0; s < rows.rows(); ++s) {
    for (Index j = 0; j < x.cols(); ++j) {
      rows(s, j) = static_cast<A>(x(tokens[static_cast<std::size_t>(s)], j));
    }
  }
  return rows;
}

/// S_b and z_b of all blocks of a random partition. Masked tokens are NaN.
template <class Case>
void expect_summaries(Random& rng) {
  using T = typename Case::T;
  using A = typename Case::A;
  const auto blocks = random_partition(rng, rng.chance(0.1) ? 700 : rng.integer(1, 150));
  const Index n = blocks.tokens(), m = blocks.blocks();
  const Index d = rng.integer(1, 70), e = rng.integer(1, 70);
  Matrix<T> k = rng.matrix<T>(n, d), v = rng.matrix<T>(n, e);
  const RandomMask kept(rng, n, rng.chance(0.3) ? 1 : 0.7);
  for (Index t = 0; t < n; ++t) {
    if (!kept.mask[t]) k.row(t).setConstant(T(NAN)), v.row(t).setConstant(T(NAN));
  }
  const A divisor = rng.chance(0.5) ? A(1) : A(3);  // features that bfloat16 cannot represent
  const Elementwise map([divisor](A x) {
    Case::map();
    return x / divisor;
  });

  GuardedArena memory(detail::counted_bytes([&](detail::Arena& arena) {
    return std::pair(typename Case::Stages::Summaries("f", arena, m, d, e),
                     typename Case::Stages::Keys("f", arena, d, d, e));
  }));
  const typename Case::Stages::Summaries s("f", memory.next(), m, d, e);
  const typename Case::Stages::Keys scratch("f", memory.next(), d, d, e);
  const Guarded<A> key_sums(m, d);
  const detail::BlockShare share = detail::whole(blocks);
  for (Index task = 0; task < summary_tasks(s, share); ++task) {
    for_each_summary(s, share, task, scratch, [&](Index b, auto summary) {
      summarize(MatrixView<const T>(k), MatrixView<const T>(v), blocks, b, kept.mask, map, scratch,
                summary, key_sums.rows().row(b));
    });
  }
  memory.expect_intact();
  const Matrix<A> all = Case::stored(s);
  Exact expected_sums = Exact::zero(m, d);
  for (Index b = 0; b < m; ++b) {
    const std::vector<Index> tokens = kept_tokens(blocks, b, kept.mask);
    const Exact keys(Matrix<A>(rows_of<A>(k, tokens) / divisor)), values(rows_of<A>(v, tokens));
    expect_within<A>(Matrix<A>::Map(all.data() + b * d * e, d, e), keys.transpose() * values,
                     Case::summary_bound(std::ssize(tokens)), "S");
    expected_sums.value.row(b) = keys.value.colwise().sum();
    expected_sums.size.row(b) = keys.size.colwise().sum();
  }
  key_sums.expect(expected_sums, {n}, "z");
}

/// S~_i and z~_i of a random group of a dense or banded matrix. A NaN block reaches the rows that
/// read it. A NaN coefficient that is not read reaches nothing.
template <class Case>
void expect_mixtures(Random& rng) {
  using A = typename Case::A;
  using detail::Reach;
  const Index rows = rng.integer(1, 80), cols = rng.integer(1, 80);
  const Index d = rng.integer(1, 40), e = rng.integer(1, 40);
  const Index blocks = Case::kSkips && rng.chance(0.5) ? rng.integer(0, cols) : cols;
  const Reach reach = Case::kSkips && rng.chance(0.5) ? Reach::kEarlier : Reach::kAll;
  const auto bandwidth = [&] { return rng.chance(0.5) ? rng.integer(0, 9) : 80; };
  auto m = MixingMatrix<A>::banded(rng.matrix<A>(rows, cols), bandwidth(), bandwidth());
  const Index begin = rng.integer(0, rows - 1), end = rng.integer(begin + 1, rows);
  Matrix<A> x = rng.matrix<A>(blocks, d * e), z = rng.matrix<A>(blocks, d);

  Matrix<A> read = Matrix<A>::Zero(end - begin, blocks);
  for (Index i = 0; i < rows; ++i) {
    for (Index b = m.pattern().first(i); b < m.pattern().last(i); ++b) {
      if (b >= blocks || (reach == Reach::kEarlier && b >= i)) {
        m.at(i, b) = A(NAN);
      } else if (i >= begin && i < end) {
        read(i - begin, b) = m(i, b);
      }
    }
  }
  const Exact expected = Exact(read) * Exact(x), expected_sums = Exact(read) * Exact(z);
  const Index poisoned = Case::kSkips && blocks > 0 ? rng.integer(-blocks, blocks - 1) : -1;
  if (poisoned >= 0) x.row(poisoned).setConstant(A(NAN)), z.row(poisoned).setConstant(A(NAN));

  GuardedArena memory(1 << 24);
  const Index count = end - begin, capacity = Case::group(count);
  const typename Case::Stages::Summaries s("f", memory.next(), blocks, d, e);
  const detail::Coefficients<A> coefficients("f", memory.next(), count, blocks);
  const typename Case::Stages::Mixtures mixtures("f", memory.next(), capacity, s);
  const Guarded<A> sums(count, d);
  Case::store(x, s);
  const detail::MixingGroup<A> group(m, begin, end, reach, blocks, coefficients);
  mix(group, s, mixtures);
  group.mix(sums, {z.data(), d}, d);
  memory.expect_intact();
  for (Index g = 0; g < count; ++g) {
    const Matrix<A> mixture = Case::stored(mixtures, g), sum = sums.numbers().row(g);
    if (poisoned >= 0 && read(g, poisoned) != 0) {
      ASSERT_TRUE(mixture.array().isNaN().all() && sum.array().isNaN().all());
    } else {
      expect_within(mixture, expected.row(g), Case::mixing_bound(blocks), "S~");
      expect_within(sum, expected_sums.row(g), {blocks}, "z~");
    }
  }
}

/// Rows of an output, in any order and with any strides.
template <class Case>
void expect_read_out(Random& rng) {
  using T = typename Case::T;
  using A = typename Case::A;
  const Index count = rng.integer(0, detail::kStripTokens);
  const Index d = rng.integer(1, 70), e = rng.integer(1, 70);
  Matrix<A> q = rng.matrix<A>(count, d);
  if (rng.chance(0.5)) q = q.template cast<Eigen::bfloat16>().template cast<A>().eval();
  const Matrix<A> x = rng.matrix<A>(d, e);

  GuardedArena memory(1 << 22);
  const typename Case::Stages::Summaries s("f", memory.next(), 1, d, e);
  const typename Case::Stages::Mixtures mixtures("f", memory.next(), 16, s);
  const detail::QueryScratch<A> scratch("f", memory.next(), d, d, 0, Case::Stages::padded(e));
  const Index g = rng.integer(0, 15);
  Case::store(x, mixtures, g);
  Matrix<T> tensor = unwritten<T>(3 * count + 1, e + 2);
  const bool by_columns = rng.chance(0.3);
  const MatrixView<T> out = by_columns
                                ? MatrixView<T>(tensor.data(), 3 * count + 1, e, 1, 3 * count + 1)
                                : MatrixView<T>(tensor.data(), 3 * count + 1, e, e + 2);
  std::vector<Index> tokens;
  Exact expected = Exact(q) * Exact(x);
  for (Index t = 0; t < count; ++t) {
    tokens.push_back(3 * (count - t) - rng.integer(0, 2));
    const A den = static_cast<A>((rng.chance(0.5) ? 1 : -1) * rng.uniform(0.5, 2));
    scratch.denominators[t] = den;
    expected.value.row(t) /= den;
    expected.size.row(t) /= std::abs(den);
    std::copy_n(&q(t, 0), d, scratch.queries.row(t));
  }
  detail::Prefetch next(1, tokens.data(), count, MatrixView<const T>(tensor));
  write_mixture(scratch, tokens.data(), count, mixtures, g, next, out);
  memory.expect_intact();
  for (Index t = 0; t < count; ++t) {
    for (Index j = 0; j < e; ++j) {
      T& y = out(tokens[static_cast<std::size_t>(t)], j);
      ASSERT_TRUE(is_within<A>(static_cast<A>(y), expected, t, j, Case::read_out_bound(d)));
      y = T(NAN);
    }
  }
  for (Index i = 0; i < tensor.size(); ++i) {
    ASSERT_TRUE(std::isnan(static_cast<A>(tensor.data()[i]))) << "written outside";
  }
}

}  // namespace mhla::test
