// Outputs straight from the definition against it in double, what the kernel reads and writes, and
// that no later token enters an output of the causal form.
//
// Bound. phi(q) and phi(k) are what they are, rounded, and products of numbers of T are floats. P =
// m phi(q).phi(k) is off by D additions and a product, then by its rounding to T. Sums of P and of
// P v are off by that, and by an addition for each of 16 ceil(keys / 16) keys and for the threads
// of a row. Outputs then: output_bound.hpp.

#include "mhla/cuda/kernel/quadratic_sm80.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "emulator/device.hpp"
#include "support/cuda/output_bound.hpp"
#include "support/cuda/problem.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct Case {
  TokenBlocks queries, keys;
  FeatureMap query_map = FeatureMap::relu(), key_map = FeatureMap::relu();
  Denominator denominator = Denominator::kKeySum;
  int batch = 1, heads = 1, layout = 0;
  std::uint64_t seed = 1;

  static Case of(TokenBlocks blocks) { return {blocks, blocks}; }
  static Case run(int tokens, int width) { return of({1, 1, tokens, 1, 1, width}); }
};

template <class T, int D, int E, bool Causal>
struct Problem {
  using Kernel = QuadraticSm80<T, D, E, Causal>;
  Case c;
  int rows, columns, stride, pairs;
  Tensor<T> q, k, v, o;
  Array<float> mixing;
  DirectParameters params;
  emulator::Report report;

  /// Coefficients of later blocks are NaN in the causal form.
  explicit Problem(const Case& given)
      : c(given),
        rows(c.queries.blocks()),
        columns(c.keys.blocks()),
        stride(columns + 3),
        pairs(c.batch * c.heads),
        q(tensor(c.queries.tokens(), D, 0)),
        k(tensor(c.keys.tokens(), D, 1)),
        v(tensor(c.keys.tokens(), E, 2)),
        o(tensor(c.queries.tokens(), E, 1)),
        mixing(std::int64_t{rows} * stride) {
    Random rng(c.seed);
    const bool positive = c.denominator != Denominator::kNone;  // well-conditioned then
    for (Tensor<T>* x : {&q, &k}) {
      x->fill([&] { return positive ? rng.uniform(0.1, 2) : rng.normal(); });
    }
    v.fill([&] { return rng.normal(); });
    for (int i = 0; i < rows; ++i) {
      for (int b = 0; b < (Causal ? i + 1 : columns); ++b) {
        mixing[i * stride + b] = static_cast<float>(rng.uniform(0.1, 1));
      }
    }
    params = {q.input(),
              k.input(),
              v.input(),
              o.output(),
              c.queries,
              c.keys,
              c.heads,
              c.query_map,
              c.key_map,
              {c.denominator, 0.75f, 1e-3f},
              {mixing.data(), stride}};
  }

  Tensor<T> tensor(int tokens, int width, int turn) const {
    return {c.batch, tokens, c.heads, width,
            Layout::any((c.layout + turn) % 3, tokens, c.heads, width)};
  }

  void launch() {
    using emulator::Access;
    emulator::Device device(c.seed % 7);
    device.track("q", q.raw(), q.bytes(), Access::kRead);
    device.track("k", k.raw(), k.bytes(), Access::kRead);
    device.track("v", v.raw(), v.bytes(), Access::kRead);
    device.track("o", o.raw(), o.bytes(), Access::kWrite);
    device.track("m", mixing.raw(), mixing.bytes(), Access::kRead);
    const Grid grid = Kernel::grid(params, pairs);
    report = device.launch<Kernel>({grid.x, grid.y, grid.z}, params);
  }

  /// Features of all tokens of a pair.
  static std::vector<double> features(const Tensor<T>& x, const FeatureMap& map, int b, int h) {
    std::vector<double> phi;
    for (int t = 0; t < x.tokens(); ++t) {
      for (int d = 0; d < D; ++d) phi.push_back(rounded_phi(map, x.at(b, t, h, d)));
    }
    return phi;
  }

  void compare(Comparison& comparison, int b, int h) const {
    const std::vector<double> phi_q = features(q, c.query_map, b, h);
    const std::vector<double> phi_k = features(k, c.key_map, b, h);
    for (int t = 0; t < q.tokens(); ++t) {
      const int keys = Causal ? t + 1 : k.tokens();
      const double chain = (keys + 15) / 16 * 16 + 2;
      std::vector<Bounded> weights;
      BoundedSum d;
      for (int s = 0; s < keys; ++s) {
        BoundedSum score;
        for (int j = 0; j < D; ++j) {
          score.add(phi_q[static_cast<std::size_t>(t * D + j)] *
                    phi_k[static_cast<std::size_t>(s * D + j)]);
        }
        const double m = mixing.value(c.queries.block_of(t) * stride + c.keys.block_of(s));
        const Bounded exact = score.after(D + 1);
        weights.push_back(then_rounded<T>({m * exact.value, m * exact.error}));
        d.add(weights.back().value, weights.back().error);
      }
      for (int e = 0; e < E; ++e) {
        BoundedSum n;
        for (int s = 0; s < keys; ++s) {
          const Bounded& weight = weights[static_cast<std::size_t>(s)];
          const double value = v.value(b, s, h, e);
          n.add(weight.value * value, weight.error * std::abs(value));
        }
        comparison.compare(o.value(b, t, h, e),
                           output<T>(n.after(chain), d.after(chain), params.normalization), b, t, h,
                           e);
      }
    }
  }

  double compare() const {
    Comparison comparison(std::to_string(D) + " x " + std::to_string(E) + " of " +
                          Format<T>::kName + (Causal ? ", causal" : "") + ", seed " +
                          std::to_string(c.seed));
    for (int b = 0; b < c.batch; ++b) {
      for (int h = 0; h < c.heads; ++h) compare(comparison, b, h);
    }
    EXPECT_TRUE(o.padding_is_untouched());
    return comparison.worst();
  }

  /// Q and O once, K and V once for 128 queries, up to their last if causal.
  void expect_few_bytes() const {
    std::size_t keys = 0;
    for (int first = 0; first < q.tokens(); first += 128) {
      keys += static_cast<std::size_t>(Causal ? std::min(first + 128, k.tokens()) : k.tokens());
    }
    keys *= static_cast<std::size_t>(pairs);
    EXPECT_EQ(report.bytes_read("q"), q.row_bytes());
    EXPECT_EQ(report.bytes_written("o"), o.row_bytes());
    EXPECT_EQ(report.bytes_read("k"), keys * D * 2);
    EXPECT_EQ(report.bytes_read("v"), keys * E * 2);
  }
};

template <class T, int D, int E, bool Causal>
double expect_right(const Case& c) {
  Problem<T, D, E, Causal> x(c);
  x.launch();
  x.expect_few_bytes();
  return x.compare();
}

template <int D, int E, bool Causal>
void expect_right_for_types(const Case& c) {
  const double worst =
      std::max(expect_right<bfloat16, D, E, Causal>(c), expect_right<half, D, E, Causal>(c));
  std::cout << D << " x " << E << ": worst error " << worst << " of the bound\n";
}

TEST(QuadraticSm80, GivesOutputsOfEveryWidth) {
  Case c = Case::run(140, 33);
  c.heads = 2;
  c.query_map = FeatureMap::relu(0.5f);
  c.key_map = FeatureMap::relu(0.25f);
  expect_right_for_types<64, 64, false>(c);
  c.layout = 1;
  expect_right_for_types<72, 72, false>(c);
  c.layout = 2;
  c.heads = 1;
  expect_right_for_types<128, 128, false>(c);
  expect_right_for_types<128, 256, false>(c);
}

TEST(QuadraticSm80, GivesCausalOutputsOfEveryWidth) {
  Case c = Case::run(150, 33);
  c.seed = 2;
  expect_right_for_types<64, 64, true>(c);
  c.layout = 1;
  expect_right_for_types<72, 72, true>(c);
  c.layout = 2;
  expect_right_for_types<128, 128, true>(c);
  c.denominator = Denominator::kNone;
  c.query_map = FeatureMap::elu_plus_one();
  c.key_map = FeatureMap::identity();
  expect_right_for_types<128, 256, true>(c);
}

TEST(QuadraticSm80, GivesOutputsOfBlocksOfImagesAndVideos) {
  Case image = Case::of({1, 9, 10, 1, 4, 4});
  image.query_map = FeatureMap::identity();
  image.key_map = FeatureMap::elu_plus_one();
  image.denominator = Denominator::kNone;
  image.batch = 2;
  Case video = Case::of({3, 5, 7, 2, 3, 4});
  video.query_map = FeatureMap::elu_plus_one();
  for (Case c : {image, video}) {
    c.seed = 3;
    expect_right_for_types<64, 64, false>(c);
    expect_right_for_types<72, 72, false>(c);
  }
}

TEST(QuadraticSm80, TakesQueriesAndKeysOfDifferentSequences) {
  for (const auto& [queries, keys] : {std::pair{1, 130}, {130, 1}, {17, 65}, {257, 63}}) {
    Case c{{1, 1, queries, 1, 1, 20}, {1, 1, keys, 1, 1, 7}};
    c.seed = static_cast<std::uint64_t>(queries);
    expect_right<half, 64, 64, false>(c);
  }
}

TEST(QuadraticSm80, TakesMixingMatricesThatSharedMemoryDoesNotHold) {
  for (const int tokens : {64, 65, 90}) {  // blocks of one token: 64 x 65 numbers, 65 x 65, 90 x 91
    expect_right<half, 64, 64, false>(Case::run(tokens, 1));
    expect_right<bfloat16, 64, 64, true>(Case::run(tokens, 1));
  }
}

TEST(QuadraticSm80, TakesBlocksOfAnyLength) {
  std::uint64_t seed = 20;
  for (const int width : {1, 2, 16, 49, 64, 128, 200, 300}) {
    for (const int tokens : {1, 16, 100, 300}) {
      if (tokens > 150 * width) continue;
      Case c = Case::run(tokens, width);
      c.seed = ++seed;
      expect_right<half, 64, 64, true>(c);
      if (tokens == 100) expect_right<bfloat16, 64, 64, false>(c);
    }
  }
}

TEST(QuadraticSm80, SharedMemoryHasNoConflictsWhereBlocksAreLong) {
  Problem<bfloat16, 64, 64, false> all(Case::run(256, 16));
  Problem<half, 128, 128, true> causal(Case::run(128, 64));
  Problem<half, 72, 72, false> odd(Case::run(64, 32));
  all.launch();
  causal.launch();
  odd.launch();
  EXPECT_EQ(all.report.bank_conflicts, 0u);
  EXPECT_EQ(causal.report.bank_conflicts, 0u);
  EXPECT_EQ(odd.report.bank_conflicts, 0u);
}

TEST(QuadraticSm80, LaterTokensNeverEnterWhateverTheyAre) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const int token : {0, 7, 16, 63, 64, 100, 127, 128, 139}) {
    Case c = Case::run(140, 50);
    c.seed = static_cast<std::uint64_t>(token) + 1;
    using X = Problem<half, 64, 64, true>;
    X clean(c), spoilt(c);
    const int column = (37 * token) % 64;
    spoilt.v.at(0, token, 0, column) = from_double<half>(token % 2 == 0 ? kInfinity : -kInfinity);
    spoilt.v.at(0, token, 0, (column + 1) % 64) = half{0x7FFF};
    for (X* x : {&clean, &spoilt}) x->launch();
    Comparison comparison("token " + std::to_string(token));
    spoilt.compare(comparison, 0, 0);
    for (int t = 0; t < 140; ++t) {
      EXPECT_EQ(std::isfinite(spoilt.o.value(0, t, 0, column)), t < token) << token << " " << t;
    }
    for (int d = 0; d < 64; ++d) spoilt.k.at(0, token, 0, d) = half{0x7FFF};
    spoilt.launch();
    for (int t = 0; t < 140; ++t) {
      const double o = spoilt.o.value(0, t, 0, (column + 9) % 64);
      if (t >= token) {
        EXPECT_FALSE(std::isfinite(o)) << token << " " << t;
      } else if (t < token / 16 * 16) {
        EXPECT_EQ(o, clean.o.value(0, t, 0, (column + 9) % 64)) << token << " " << t;
      } else {
        EXPECT_TRUE(std::isfinite(o)) << token << " " << t;
      }
    }
  }
}

}  // namespace
}  // namespace cuda_test
