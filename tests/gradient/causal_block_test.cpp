#include "mhla/gradient/causal_block.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/exact.hpp"

namespace mhla::test {
namespace {

using detail::CausalBlockGradient;
using detail::CausalGradientScratch;
using detail::HeadSizes;
using detail::IntraGradients;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kScale = 2, kEps = 2;  // den = 2 (r + 1)

/// One block of a sequence in numbers whose gradients are exact: the first number of every key of
/// the denominator is such that r + 1 is a power of two. Masked tokens are NaN.
struct Problem {
  Random rng;
  bool sums, own;  // divides by sums of weights; of queries and keys of their own
  Index d, e, dz, w, n, i;
  Contiguous blocks;
  RandomMask keys, queries;
  double weight;                 // m_ii
  Matrix<double> q, k, v, dout;  // [N,...]
  Matrix<double> nq, nk;         // the denominator's own
  Matrix<double> mixture, z;     // S~_i [D padded, E], z~_i
  Matrix<double> dq, dnq;        // before

  Problem(std::uint64_t seed, bool sums_, bool own_)
      : rng(seed),
        sums(sums_),
        own(own_),
        d(rng.integer(1, 9)),
        e(rng.integer(0, 9)),
        dz(own ? rng.integer(1, 5) : d),
        w(rng.chance(0.3) ? 64 : rng.integer(1, 150)),
        n(rng.integer(1, 3 * w)),
        i(rng.integer(0, (n + w - 1) / w - 1)),
        blocks(n, w),
        keys(rng, n, rng.chance(0.5) ? 1 : 0.6),
        queries(rng, n, rng.chance(0.5) ? 1 : 0.6),
        weight(rng.chance(0.3)   ? -1
               : rng.chance(0.5) ? 0.5
                                 : -2),
        q(integers<double>(rng, n, d)),
        k(integers<double>(rng, n, d)),
        v(integers<double>(rng, n, e)),
        dout(integers<double>(rng, n, e)),
        nq(integers<double>(rng, n, own ? dz : 0)),
        nk(integers<double>(rng, n, own ? dz : 0)),
        mixture(integers<double>(rng, detail::round_up(d, detail::kRowAlignment), e)),
        z(integers<double>(rng, 1, dz)),
        dq(integers<double>(rng, n, d)),
        dnq(integers<double>(rng, n, own ? dz : 0)) {
    if (sums) make_denominators();
    for (Index t = 0; t < n; ++t) {
      if (!keys.mask[t]) {
        for (auto* x : {&k, &v, &nk}) x->row(t).setConstant(kNaN);
      }
      if (!queries.mask[t]) {
        for (auto* x : {&q, &dout, &nq}) x->row(t).setConstant(kNaN);
      }
    }
  }

  Index begin() const { return blocks.run(i, 0).begin; }
  Index end() const { return begin() + blocks.block_size(i); }
  const Matrix<double>& sum_queries() const { return own ? nq : q; }
  const Matrix<double>& sum_keys() const { return own ? nk : k; }

  void make_denominators() {
    Matrix<double>&x = own ? nq : q, &y = own ? nk : k;
    Matrix<double> sum = z;
    for (Index t = begin(); t < end(); ++t) {
      auto& query = queries.keep[static_cast<std::size_t>(t)];
      query = query && keys.mask[t];
      if (!keys.mask[t]) continue;
      const double target =
          std::ldexp(rng.chance(0.5) ? 1 : -1, static_cast<int>(rng.integer(0, 3)));
      x(t, 0) = -1;  // phi(q) = -q
      y(t, 0) = 0;
      const double rest = -x.row(t).dot(sum.row(0) + weight * y.row(t));
      y(t, 0) = (target - 1 - rest) / weight;
      sum += weight * y.row(t);
    }
  }
  Inputs<double> inputs() const {
    Inputs<double> in{.q = q, .k = k, .v = v, .query_mask = queries.mask, .key_mask = keys.mask};
    if (own) {
      in.normalizer_q = nq;
      in.normalizer_k = nk;
    }
    return in;
  }
};

struct Result {
  Matrix<double> dq, dnq;       // [N,...]
  Matrix<double> dmixture, dz;  // [D,E], [1,Dz]
  Matrix<double> dk, dv, dnk;   // of the kept keys of the block
  double dweight = 0, dmap = 0;
};

/// dphi of the pair's query and key, and what else a gradient dp of their product changes.
void add_pair(double dp, const Matrix<double>& x, Index t, const Matrix<double>& y, Index j,
              Matrix<double>& dphi, Matrix<double>& dy, Index row) {
  dphi.row(0) += dp * y.row(j);
  dy.row(row) -= dp * x.row(t);  // phi(q) = -q
}

/// The definition, pair by pair.
Result definition(const Problem& p) {
  std::vector<Index> kept;
  for (Index t = p.begin(); t < p.end(); ++t) {
    if (p.keys.mask[t]) kept.push_back(t);
  }
  const Index keys = std::ssize(kept);
  const auto zeros = [](Index rows, Index cols) { return Matrix<double>::Zero(rows, cols).eval(); };
  Result x{p.dq,
           p.dnq,
           zeros(p.d, p.e),
           zeros(1, p.dz),
           zeros(keys, p.d),
           zeros(keys, p.e),
           zeros(keys, p.own ? p.dz : 0)};
  const Matrix<double> mixture = p.mixture.topRows(p.d);
  for (Index t = p.begin(); t < p.end(); ++t) {
    if (!p.queries.mask[t]) continue;
    Matrix<double> read = mixture, sum = p.z;
    Index seen = 0;
    for (; seen < keys && kept[static_cast<std::size_t>(seen)] <= t; ++seen) {
      const Index j = kept[static_cast<std::size_t>(seen)];
      read += p.weight * p.k.row(j).transpose() * p.v.row(j);
      if (p.sums) sum += p.weight * p.sum_keys().row(j);
    }
    const Matrix<double> phi = -p.q.row(t);
    double factor = kScale, dr = 0;
    if (p.sums) factor /= kScale * -p.sum_queries().row(t).dot(sum.row(0)) + kEps;
    const Matrix<double> dn = factor * p.dout.row(t);
    Matrix<double> dphi = dn * mixture.transpose(), dphi_own = zeros(1, p.dz);
    x.dmixture += phi.transpose() * dn;
    if (p.sums) {
      dr = -factor * phi.row(0).dot((dn * read.transpose()).row(0));
      x.dz -= dr * p.sum_queries().row(t);
      (p.own ? dphi_own : dphi) += dr * p.z;
    }
    for (Index s = 0; s < seen; ++s) {
      const Index j = kept[static_cast<std::size_t>(s)];
      const double score = phi.row(0).dot(p.k.row(j)), dp = dn.row(0).dot(p.v.row(j));
      add_pair(p.weight * dp, p.q, t, p.k, j, dphi, x.dk, s);
      x.dv.row(s) += p.weight * score * dn;
      x.dweight += score * dp;
      if (!p.sums) continue;
      add_pair(p.weight * dr, p.sum_queries(), t, p.sum_keys(), j, p.own ? dphi_own : dphi,
               p.own ? x.dnk : x.dk, s);
      x.dweight -= dr * p.sum_queries().row(t).dot(p.sum_keys().row(j));
    }
    x.dq.row(t) -= dphi;
    x.dmap += dphi.row(0).dot(p.q.row(t));
    if (!p.own || !p.sums) continue;
    x.dnq.row(t) -= dphi_own;
    x.dmap += dphi_own.row(0).dot(p.nq.row(t));
  }
  return x;
}

/// What the block computes; gradients of keys and values on top of 7.
template <class Z>
Result run(const Problem& p, const Z& normalizer, bool wants_weights) {
  const Operator op{Times{-1}, Identity{}, normalizer, kScale};
  using Op = std::remove_const_t<decltype(op)>;
  const Inputs<double> in = p.inputs();
  Result x{p.dq, p.dnq, unwritten<double>(p.d, p.e), unwritten<double>(1, p.dz), {}, {}, {}};
  Gradients<double> gradients{.q = x.dq};
  if (p.own) gradients.normalizer_q = x.dnq;
  detail::HeadGradient<double, Op> head(in, op);
  head.set(p.dout, gradients);
  const HeadSizes& sizes = head.sizes();
  Memory memory(3000000);
  const CausalGradientScratch<double> scratch("f", memory.arena, head.width(), sizes, 16,
                                              p.blocks.blocks(), largest_block(p.blocks));
  const IntraGradients<double> all("f", memory.arena, p.n, sizes);
  const IntraGradients<double> keys = all.from(p.begin());
  Index kept = 0;
  for (Index t = p.begin(); t < p.end(); ++t) kept += p.keys.mask[t] ? 1 : 0;
  keys.clear(kept, sizes);
  x.dnk.resize(kept, 0);
  const auto each = [&](auto&& f) {
    f(all.dkeys, p.d, x.dk);
    f(all.dvalues, p.e, x.dv);
    if (p.own) f(all.own_dkeys, p.dz, x.dnk);
  };
  each([&](const detail::Rows<double>& rows, Index cols, Matrix<double>&) {
    for (Index s = 0; s < kept; ++s) {
      for (Index j = 0; j < cols; ++j) rows.row(p.begin() + s)[j] += 7;
    }
  });

  const Index slabs = (p.d + detail::kSlabFeatures - 1) / detail::kSlabFeatures;
  const Index stride = detail::kSlabFeatures * p.e + 3;
  Matrix<double> kv = unwritten<double>(slabs, stride);
  const detail::SummaryBlock<double> dmixture{kv.data(), stride, p.e};
  x.dweight = CausalBlockGradient<double, Contiguous, Op>(head, in, p.blocks, p.i, op, scratch)
                  .run({p.weight, p.mixture.data(), p.z.data()}, {dmixture, x.dz.data()},
                       wants_weights ? &x.dmap : nullptr, keys);
  EXPECT_TRUE(kv.rightCols(3).array().isNaN().all()) << "written outside";
  for (Index f = 0; f < p.d; ++f) {
    for (Index j = 0; j < p.e; ++j) x.dmixture(f, j) = dmixture.row(f)[j];
  }
  each([&](const detail::Rows<double>& rows, Index cols, Matrix<double>& to) {
    const detail::Rows<double> own = rows.below(p.begin());
    to = matrix_of(own, kept, cols).array() - 7;
    expect_nothing_beside(rows, p.begin(), 0, cols);
    expect_nothing_beside(own, p.n - p.begin(), kept, cols);
  });
  return x;
}

template <class Z>
void expect_definition(const Problem& p, const Z& normalizer) {
  const Result expected = definition(p);
  for (const bool wants_weights : {true, false}) {
    const Result got = run(p, normalizer, wants_weights);
    EXPECT_EQ(got.dq, expected.dq);
    EXPECT_EQ(got.dnq, expected.dnq);
    EXPECT_EQ(got.dmixture, expected.dmixture);
    EXPECT_TRUE(p.sums ? got.dz == expected.dz : got.dz.array().isNaN().all());
    EXPECT_EQ(got.dk, expected.dk);
    EXPECT_EQ(got.dv, expected.dv);
    EXPECT_EQ(got.dnk, expected.dnk);
    EXPECT_EQ(got.dweight, expected.dweight);
    EXPECT_EQ(got.dmap, wants_weights ? expected.dmap : 0);
  }
}

TEST(CausalBlockGradient, WithoutNormalizerIsTheDefinition) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_definition(Problem(seed, false, seed % 5 == 0), NoNormalizer{});
  }
}

TEST(CausalBlockGradient, WithKeySumIsTheDefinition) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_definition(Problem(seed, true, false), KeySum{kEps});
  }
}

TEST(CausalBlockGradient, WithQueriesAndKeysOfTheDenominatorsOwnIsTheDefinition) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_definition(Problem(seed, true, true), KeySum{kEps});
  }
}

}  // namespace
}  // namespace mhla::test
