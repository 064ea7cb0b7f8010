#include "mhla/gradient/head_gradient.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "mhla/policy/learned_feature_map.hpp"
#include "support/exact.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

using detail::GradientScratch;
using detail::HeadGradient;
using detail::HeadSizes;
using detail::kReadRows;
using detail::kStripTokens;
using detail::ParameterSums;
using detail::RightOperand;
using detail::Rows;
using detail::Start;
using detail::WeightParts;

static_assert(DifferentiableOperatorOn<Operator<>, float>);
static_assert(DifferentiableOperatorOn<Operator<T2R<double>, Identity, CrossQuery>, double>);
struct NoAdjoint {  // a feature map, but no more
  Index features(Index d) const { return d; }
  template <class A>
  void operator()(const A*, A*, Index) const {}
};
static_assert(OperatorOn<Operator<NoAdjoint>, float>);
static_assert(!DifferentiableOperatorOn<Operator<NoAdjoint, Relu>, float>);
static_assert(!DifferentiableOperatorOn<Operator<Relu, NoAdjoint>, float>);
static_assert(!DifferentiableOperatorOn<Operator<T2R<double>>, float>);

TEST(ParameterSums, AreTheMemoryOfWhatIsWanted) {
  auto m = MixingMatrix<float>::banded(4, 5, 1, 1);
  std::vector<float> query(3), key(2);
  const ParameterSums<float> all = detail::sums_of<float>({&m, query, key});
  EXPECT_EQ(all.mixing, m.storage().data());
  EXPECT_EQ(all.query_map, query.data());
  EXPECT_EQ(all.key_map, key.data());
  const ParameterSums<float> none = detail::sums_of<float>({});
  EXPECT_TRUE(none.mixing == nullptr && none.query_map == nullptr && none.key_map == nullptr);
  const std::span<float> empty = std::span(key).first(0);
  EXPECT_EQ(detail::sums_of<float>({.query_map = empty}).query_map, nullptr);
  EXPECT_EQ(detail::sums_of<float>({.key_map = empty}).key_map, nullptr);
}

constexpr double kScale = 2, kEps = 2;  // den = 2 (r + 1)

/// One head of whole numbers, masked tokens NaN, with gradients that are added to.
template <class T>
struct Head {
  using A = accumulator_t<T>;
  Random rng;
  Index n, d, e, dz;
  Matrix<T> q, k, v, nq, nk, dout;
  Matrix<T> dq, dk, dv, dnq, dnk;  // before

  explicit Head(std::uint64_t seed, bool own)
      : rng(seed),
        n(rng.integer(1, 150)),
        d(rng.integer(1, 12)),
        e(rng.integer(0, 12)),
        dz(own ? rng.integer(1, 15) : 0),
        q(integers<T>(rng, n, d, 2)),
        k(integers<T>(rng, n, d, 2)),
        v(integers<T>(rng, n, e, 2)),
        nq(integers<T>(rng, n, dz, 2)),
        nk(integers<T>(rng, n, dz, 2)),
        dout(integers<T>(rng, n, e, 2)),
        dq(integers<T>(rng, n, d, 9)),
        dk(integers<T>(rng, n, d, 9)),
        dv(integers<T>(rng, n, e, 9)),
        dnq(integers<T>(rng, n, dz, 9)),
        dnk(integers<T>(rng, n, dz, 9)) {}

  bool own() const { return dz > 0; }
  Inputs<T> inputs() const {
    Inputs<T> in{.q = q, .k = k, .v = v};
    if (own()) {
      in.normalizer_q = nq;
      in.normalizer_k = nk;
    }
    return in;
  }
};

/// r + 1 is a power of two for all queries.
void make_denominators(Head<double>& x, const Matrix<double>& z) {
  Matrix<double>& queries = x.own() ? x.nq : x.q;
  for (Index t = 0; t < x.n; ++t) {
    const double target =
        std::ldexp(x.rng.chance(0.5) ? 1 : -1, static_cast<int>(x.rng.integer(0, 3)));
    queries(t, 0) = 0;
    queries(t, 0) = -(target - 1 + queries.row(t).dot(z.row(0)));  // phi(q) = -q and z_0 = 1
  }
}

/// The query side of one strip, in the order of the bidirectional form.
template <class Z>
void expect_query_side(std::uint64_t seed, bool own, const Z& normalizer) {
  constexpr bool kSums = detail::kUsesKeySums<Z>;
  Head<double> x(seed, own);
  const Index dz = own ? x.dz : x.d, count = std::min(x.n, kStripTokens);
  Matrix<double> z = integers<double>(x.rng, 1, dz), mixture = integers<double>(x.rng, x.d, x.e);
  z(0, 0) = 1;
  if (kSums) make_denominators(x, z);
  std::vector<Index> tokens;
  for (Index s = 0; s < count; ++s) tokens.push_back(x.n - 1 - s);
  const auto start = x.rng.chance(0.5) ? Start::kZero : Start::kTarget;
  Matrix<double> dmixture = integers<double>(x.rng, x.d, x.e),
                 dsum = integers<double>(x.rng, 1, dz);

  Matrix<double> dq = x.dq, dnq = x.dnq, expected_dsum = dsum, expected_dmixture = dmixture;
  if (start == Start::kZero) expected_dmixture.setZero();
  double dmap = 3;
  for (const Index t : tokens) {
    const Matrix<double>& queries = own ? x.nq : x.q;
    double factor = kScale;
    if (kSums) factor /= kScale * -queries.row(t).dot(z.row(0)) + kEps;
    const Matrix<double> dn = factor * x.dout.row(t);
    Matrix<double> dphi = dn * mixture.transpose();
    expected_dmixture -= x.q.row(t).transpose() * dn;
    const double dr = factor * x.q.row(t).dot(dphi.row(0));  // phi(q) = -q
    if (kSums) expected_dsum -= dr * queries.row(t);
    if (kSums && own) {
      dnq.row(t) -= dr * z;
      dmap += dr * z.row(0).dot(x.nq.row(t));
    } else if (kSums) {
      dphi += dr * z;
    }
    dq.row(t) -= dphi;
    dmap += dphi.row(0).dot(x.q.row(t));
  }

  const Operator op{Times{-1}, Identity{}, normalizer, kScale};
  using Op = std::remove_const_t<decltype(op)>;
  const Inputs<double> in = x.inputs();
  Gradients<double> gradients{.q = x.dq};
  if (own) gradients.normalizer_q = x.dnq;
  HeadGradient<double, Op> head(in, op);
  head.set(x.dout, gradients);
  EXPECT_EQ(head.own(), own);
  EXPECT_EQ(head.width(), std::max(x.d, x.dz));
  Memory memory(1000000);
  const GradientScratch<double> w("f", memory.arena, head.width(), head.sizes(), 1, 1, 0);
  const Index slab = detail::kSlabFeatures * x.e;
  std::vector<double> kv(
      static_cast<std::size_t>(detail::round_up(x.d, detail::kSlabFeatures) * x.e));
  const detail::SummaryBlock<double> block{kv.data(), slab, x.e};
  std::copy_n(dmixture.data(), dmixture.size(), kv.data());
  const Matrix<double> transposed = mixture.transpose();
  double got_dmap = 3;

  head.gather_queries(tokens.data(), count, w);
  if (kSums) {
    head.gather_own_queries(tokens.data(), count, w);
    head.sum_weights(count, z.data(), w);
  }
  head.divide(tokens.data(), count, w);
  head.read_queries(count, RightOperand<double>{transposed.data(), x.d}, w);
  head.accumulate_mixture(start, count, block, {}, w);
  head.differentiate_sums(count, w);
  if (kSums) {
    head.differentiate_key_sum(count, w.dsums, z.data(), w, dsum.data());
    head.finish_own_queries(tokens.data(), count, &got_dmap, w);
  }
  head.finish_queries(tokens.data(), count, &got_dmap, w);
  EXPECT_EQ(x.dq, dq);
  EXPECT_EQ(x.dnq, dnq);
  EXPECT_EQ(dsum, expected_dsum);
  EXPECT_EQ((Eigen::Map<Matrix<double>>(kv.data(), x.d, x.e)), expected_dmixture);
  EXPECT_EQ(got_dmap, dmap);
}

TEST(HeadGradient, QuerySideOfAStripIsTheDefinition) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_query_side(seed, seed % 2 == 0, NoNormalizer{});
    expect_query_side(seed, seed % 2 == 0, KeySum{kEps});
    expect_query_side(seed, seed % 2 == 0, CrossQuery{kEps});
  }
}

/// The key side of a block, whose kept keys may have gradients already.
template <class T>
void expect_key_side(std::uint64_t seed, bool own) {
  using A = accumulator_t<T>;
  Head<T> x(seed, own);
  const RandomMask keep(x.rng, x.n, x.rng.chance(0.5) ? 1 : 0.6);
  const Contiguous blocks(x.n, x.rng.integer(1, 150));
  const Index b = x.rng.integer(0, blocks.blocks() - 1), dz = own ? x.dz : x.d;
  const bool sums = x.rng.chance(0.7), gathers = x.rng.chance(0.5), wants_k = x.rng.chance(0.8),
             wants_v = x.rng.chance(0.8), wants_weights = x.rng.chance(0.5);
  const Matrix<A> gradient = integers<A>(x.rng, x.d, x.e, 2), z = integers<A>(x.rng, 1, dz, 2);
  Memory memory(2000000);
  const auto before = [&](Index cols) { return integers<A>(x.rng, x.n, cols, 2); };
  const Matrix<A> dkeys = before(x.d), dvalues = before(x.e), own_dkeys = before(x.dz);

  Matrix<A> dk = x.dk.template cast<A>(), dv = x.dv.template cast<A>(),
            dnk = x.dnk.template cast<A>();
  A dmap = 3;
  const Index begin = blocks.run(b, 0).begin, end = begin + blocks.block_size(b);
  for (Index t = begin, s = 0; t < end; ++t) {
    if (!keep.mask[t]) {
      x.k.row(t).setConstant(static_cast<T>(NAN));
      x.v.row(t).setConstant(static_cast<T>(NAN));
      x.nk.row(t).setConstant(static_cast<T>(NAN));
      continue;
    }
    const Matrix<A> k = x.k.row(t).template cast<A>(), v = x.v.row(t).template cast<A>(),
                    nk = x.nk.row(t).template cast<A>();
    Matrix<A> dphi = v * gradient.transpose(), dvalue = -k * gradient, own_dphi = z;
    if (sums && !own) dphi += z;
    if (gathers) {
      dphi += dkeys.row(s);
      dvalue += dvalues.row(s);
      if (own) own_dphi += own_dkeys.row(s);
    }
    ++s;
    if (wants_v) dv.row(t) += dvalue;
    if (wants_k) dk.row(t) -= dphi;
    if (wants_k && own && sums) dnk.row(t) -= own_dphi;
    if (!wants_weights) continue;
    dmap += dphi.row(0).dot(k.row(0));
    if (own && sums) dmap += own_dphi.row(0).dot(nk.row(0));
  }

  const Operator op{Identity{}, Times{-1}, KeySum{}};
  using Op = std::remove_const_t<decltype(op)>;
  Inputs<T> in = x.inputs();
  in.key_mask = keep.mask;
  // The gradient of the values with columns apart now and then.
  Matrix<T> turned = x.dv.transpose();
  const bool turns = x.rng.chance(0.3);
  Gradients<T> gradients;
  if (wants_k) gradients.k = x.dk;
  if (wants_k && own) gradients.normalizer_k = x.dnk;
  if (wants_v) gradients.v = x.dv;
  if (wants_v && turns) gradients.v = {turned.data(), x.n, x.e, 1, x.n};
  HeadGradient<T, Op> head(in, op);
  head.set(x.dout, gradients);
  const GradientScratch<A> w("f", memory.arena, head.width(), head.sizes(), 1, 1, 0);
  typename HeadGradient<T, Op>::Gathered gathered;
  if (gathers) {
    gathered = {rows_of(memory, dkeys), rows_of(memory, dvalues), Rows<A>()};
    if (own) gathered.own_dkeys = rows_of(memory, own_dkeys);
  }
  std::vector<A> padded(static_cast<std::size_t>(detail::round_up(x.d, 16) * x.e));
  std::copy_n(gradient.data(), gradient.size(), padded.data());
  A got_dmap = 3;
  head.differentiate_keys(blocks, b, padded.data(), sums ? z.data() : nullptr,
                          wants_weights ? &got_dmap : nullptr, w, gathered);
  if (wants_v && turns) x.dv = turned.transpose();
  EXPECT_EQ(x.dk, dk.template cast<T>().eval());
  EXPECT_EQ(x.dv, dv.template cast<T>().eval());
  EXPECT_EQ(x.dnk, dnk.template cast<T>().eval());
  EXPECT_EQ(got_dmap, dmap);
}

template <class T>
class HeadGradientOf : public testing::Test {};
using Scalars = testing::Types<float, double, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(HeadGradientOf, Scalars);

TYPED_TEST(HeadGradientOf, KeySideOfABlockIsTheDefinition) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_key_side<TypeParam>(seed, seed % 2 == 0);
  }
}

TEST(WeightParts, AreAddedTheFirstGroupFirst) {
  Random rng(1);
  for (Index groups = 0; groups <= 20; ++groups) {
    const Index weights = rng.integer(1, 40);
    Memory memory(20000);
    WeightParts<float> parts("f", memory.arena, groups, weights);
    Matrix<float> sums = rng.matrix<float>(1, weights), expected = sums;
    const float* const wanted = sums.data();
    for (int round = 0; round < 2; ++round) {  // the second starts from zeros too
      const Matrix<float> values = rng.matrix<float>(groups, weights);
      Matrix<float> total = Matrix<float>::Zero(1, weights);
      parts.start(wanted);
      for (Index g = groups - 1; g >= 0; --g) {
        for (Index j = 0; j < weights; ++j) parts.part(g)[j] += values(g, j);
      }
      for (Index g = 0; g < groups; ++g) total += values.row(g);
      expected += total;
      parts.finish(sums.data());
      ASSERT_TRUE(same_bits(sums, expected)) << groups << " groups";
    }
  }
}

TEST(WeightParts, AreNoneWhereNothingIsWanted) {
  Memory memory(1000);
  WeightParts<float> parts("f", memory.arena, 3, 4), none("f", memory.arena, 3, 0);
  float sums[] = {1, 2, 3, 4};
  EXPECT_EQ(parts.part(1), nullptr);
  parts.start(nullptr);
  EXPECT_EQ(parts.part(1), nullptr);
  parts.finish(nullptr);
  parts.start(sums);
  EXPECT_NE(parts.part(1), nullptr);
  none.start(sums);
  EXPECT_EQ(none.part(2), nullptr);
  none.finish(sums);
  EXPECT_EQ(sums[0] + 10 * sums[1] + 100 * sums[2], 321);
}

TEST(GradientGroup, DoesNotDependOnTheWorkersWhereWeightsAreGathered) {
  const HeadSizes large{0, 0, 128, 0, 128}, small{0, 0, 16, 0, 16};
  Random rng(1);
  const T2R<float> map(rng.matrix<float>(3, 3));
  for (const Index workers : {1, 2, 7}) {
    const auto group = [&](const auto& op, const HeadSizes& n) {
      return detail::gradient_group<float>(op, 300, n, workers);
    };
    EXPECT_EQ(group(Operator{}, large), detail::group_blocks<float>(300, 128, 128, workers));
    EXPECT_EQ(group(Operator{}, small), detail::kGroupBlocks);
    EXPECT_EQ(group(Operator{map, Relu{}}, large), detail::kGroupBlocks);
    EXPECT_EQ(group(Operator{Relu{}, map}, large), detail::kGroupBlocks);
  }
  EXPECT_NE(detail::group_blocks<float>(300, 128, 128, 1), detail::kGroupBlocks);
  EXPECT_EQ(detail::groups_of(0, 16), 0);
  EXPECT_EQ(detail::groups_of(16, 16), 1);
  EXPECT_EQ(detail::groups_of(17, 16), 2);
}

TEST(ExpectGradients, NamesTheTensorThatDoesNotFit) {
  Head<float> x(1, true), other(2, true);
  ASSERT_NE(x.n, other.n);
  std::swap(x.k, other.k);  // other keys than queries
  std::swap(x.v, other.v);
  std::swap(x.nk, other.nk);
  std::swap(x.dk, other.dk);
  std::swap(x.dv, other.dv);
  std::swap(x.dnk, other.dnk);
  Inputs<float> in = x.inputs();
  const auto check = [&](const Gradients<float>& g) {
    return message_of<shape_error>([&] { detail::expect_gradients("f", in, g); });
  };
  Gradients<float> all{
      .q = x.dq, .k = x.dk, .v = x.dv, .normalizer_q = x.dnq, .normalizer_k = x.dnk};
  EXPECT_EQ(check(all), "no exception");
  EXPECT_EQ(check({}), "no exception");
  using Tensor = MatrixView<float> Gradients<float>::*;
  const std::pair<Tensor, const char*> tensors[] = {
      {&Gradients<float>::q, "q"},
      {&Gradients<float>::k, "k"},
      {&Gradients<float>::v, "v"},
      {&Gradients<float>::normalizer_q, "normalizer_q"},
      {&Gradients<float>::normalizer_k, "normalizer_k"}};
  for (const auto& [tensor, name] : tensors) {
    Gradients<float> wrong = all;
    (wrong.*tensor).rows += 1;
    const MatrixView<float> of = all.*tensor;
    EXPECT_EQ(check(wrong), "mhla::f: gradients." + std::string(name) + " has shape " +
                                detail::shape_text({of.rows + 1, of.cols}) + ", expected " +
                                detail::shape_text({of.rows, of.cols}));
    wrong = all;
    (wrong.*tensor).cols += 1;
    EXPECT_NE(check(wrong), "no exception") << name;
  }
  in.normalizer_q = {};  // then it has no gradient either
  EXPECT_NE(check(all), "no exception");
}

TEST(ExpectParameters, NamesTheParameterThatDoesNotFit) {
  Random rng(1);
  const auto m = MixingMatrix<float>::banded(4, 5, 1, 2);
  const Operator op{T2R<float>(rng.matrix<float>(3, 3)), Relu{}};
  const auto check = [&](const ParameterGradients<float>& parameters) {
    return message_of<shape_error>([&] { detail::expect_parameters("f", m, op, parameters); });
  };
  auto same = m, other = MixingMatrix<float>::banded(4, 5, 2, 1);
  std::vector<float> nine(9), eight(8);
  EXPECT_EQ(check({}), "no exception");
  EXPECT_EQ(check({.mixing = &same, .query_map = nine}), "no exception");
  EXPECT_EQ(check({.mixing = &other}),
            "mhla::f: parameters.mixing has shape [4, 5] and rows of up to 4, expected the shape "
            "and the band of mixing, [4, 5] and rows of up to 4");
  EXPECT_EQ(check({.query_map = eight}),
            "mhla::f: parameters.query_map has 8 elements, expected 9 (the weights of the map) or "
            "none");
  EXPECT_EQ(check({.key_map = nine}),
            "mhla::f: parameters.key_map has 9 elements, expected 0 (the weights of the map) or "
            "none");
}

}  // namespace
}  // namespace mhla::test
