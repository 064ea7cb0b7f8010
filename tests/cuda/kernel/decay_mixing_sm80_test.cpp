// Tests of mixtures by decaying terms: the definition in double, bytes moved, and memory that must
// stay untouched.
//
// Bound. S_b enters S~_i through a product by lambda per block from b to i, fused with an addition,
// and one product by a_r lambda_r, which is rounded itself. It then takes part in R sums:
//
//     |S~^ - S~| <= gamma_(i - b + R + 2) sum_r sum_b |a_r| lambda_r^(i-b) |S_b|
//
// before rounding. S = high + low adds one rounding. Rounding to T adds u |S~^| + eta, or for high
// + low u^2 |S~^| + 2 eta.

#include "mhla/cuda/kernel/decay_mixing_sm80.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "emulator/device.hpp"
#include "mhla/cuda/kernel/intra_weights.cuh"
#include "support/cuda/problem.hpp"
#include "support/cuda/summary_memory.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct DecayCase {
  int blocks, terms, pairs = 1, matrices = 1;
  bool later = false, summaries = true, key_sums = true;
  unsigned seed = 0;

  std::string text() const {
    return std::to_string(blocks) + " blocks, " + std::to_string(terms) + " terms, " +
           std::to_string(pairs) + " pairs" + (later ? ", later" : "");
  }
};

template <class T, int D, int E, Precision P>
struct DecayMixtures {
  using Kernel = DecayMixingSm80<T, D, E, P>;
  using Memory = SummaryMemory<T, D, E, P>;

  explicit DecayMixtures(const DecayCase& given)
      : c(given),
        terms(c.matrices * stride()),
        in(std::int64_t{c.pairs} * c.blocks),
        out(std::int64_t{c.pairs} * c.blocks) {
    Random random(c.seed + 5);
    in.fill(random, c.blocks);
    for (int m = 0; m < c.matrices; ++m) {
      for (int r = 0; r < c.terms; ++r) {
        terms[m * stride() + r] = static_cast<float>(random.uniform(-2, 2));
        // The first two decays are those of causal linear attention and of no earlier block.
        terms[m * stride() + row() + r] =
            r < 2 ? static_cast<float>(1 - r) : static_cast<float>(random.uniform(0.2, 1));
      }
    }
  }

  std::int64_t row() const { return c.terms + 1; }
  std::int64_t stride() const { return 2 * row(); }
  DecayArray array() const {
    MixingArray all{terms.data(), row()};
    if (c.matrices > 1) all.head_stride = stride();
    return {all, c.terms, Divisor(c.matrices), c.matrices};
  }

  emulator::Report launch(std::uint64_t schedule = 0) {
    DecayMixingParameters p{in.array(c.key_sums), out.array(c.key_sums), array(), c.blocks,
                            c.later};
    if (!c.summaries) p.in.high = nullptr;
    emulator::Device device(schedule);
    device.track("terms", terms.data(), terms.bytes(), emulator::Access::kRead);
    track(device, "in", in, emulator::Access::kRead);
    track(device, "out", out, emulator::Access::kWrite);
    const emulator::Report r = device.launch<Kernel>(Kernel::grid(p, c.pairs), p);
    EXPECT_EQ(r.bank_conflicts, 0u);
    // Nothing reads the summaries of the last block.
    const auto read = [this](std::size_t bytes) {
      return bytes / static_cast<std::size_t>(c.blocks) * static_cast<std::size_t>(c.blocks - 1);
    };
    if (c.summaries) {
      EXPECT_EQ(r.bytes_read("in high"), read(in.high.bytes()));
      EXPECT_EQ(r.bytes_written("out high"), out.high.bytes());
    }
    if (c.key_sums) {
      EXPECT_EQ(r.bytes_read("in z"), read(in.key_sum.bytes()));
      EXPECT_EQ(r.bytes_written("out z"), out.key_sum.bytes());
    }
    return r;
  }

  void track(emulator::Device& device, const std::string& name, Memory& memory,
             emulator::Access access) {
    if (c.summaries) {
      device.track(name + " high", memory.high.raw(), memory.high.bytes(), access);
      if (Memory::kPair) device.track(name + " low", memory.low.raw(), memory.low.bytes(), access);
    }
    if (c.key_sums) {
      device.track(name + " z", memory.key_sum.raw(), memory.key_sum.bytes(), access);
    }
  }

  /// A mixture and the bound of its error.
  struct Mixture {
    double value = 0, bound = 0;
  };
  /// \param number  number(b): of block b
  template <class Number>
  Mixture mixture(int pair, int i, const Number& number) const {
    const std::int64_t first = c.matrices > 1 ? pair % c.matrices * stride() : 0;
    Mixture mixture;
    for (int b = 0; b < c.blocks; ++b) {
      const int distance = c.later ? b - i : i - b;
      if (distance <= 0) continue;
      for (int r = 0; r < c.terms; ++r) {
        const double m =
            terms.value(first + r) * std::pow(terms.value(first + row() + r), distance);
        mixture.value += m * number(b);
        mixture.bound += gamma(distance + c.terms + 3) * std::abs(m * number(b));
      }
    }
    return mixture;
  }

  void check() const {
    const double u = kRoundoff<T>, eta = kUnderflow<T>;
    for (int pair = 0; pair < c.pairs; ++pair) {
      for (int i = 0; i < c.blocks; ++i) {
        const auto at = [&](int b, std::int64_t size) {
          return (std::int64_t{pair} * c.blocks + b) * size;
        };
        for (int n = 0; c.summaries && n < D * E; ++n) {
          const Mixture s = mixture(pair, i, [&](int b) {
            const std::int64_t from = at(b, D * E) + n;
            return in.high.value(from) + (Memory::kPair ? in.low.value(from) : 0);
          });
          const double most = std::abs(s.value) + s.bound, high = out.high.value(at(i, D * E) + n);
          ASSERT_NEAR(high, s.value, s.bound + u * most + eta) << pair << " " << i << " " << n;
          if (!Memory::kPair) continue;
          ASSERT_NEAR(high + out.low.value(at(i, D * E) + n), s.value,
                      s.bound + u * u * most + 2 * eta)
              << pair << " " << i << " " << n;
        }
        for (int d = 0; c.key_sums && d < D; ++d) {
          const Mixture z = mixture(pair, i, [&](int b) { return in.key_sum.value(at(b, D) + d); });
          ASSERT_NEAR(out.key_sum.value(at(i, D) + d), z.value, z.bound) << pair << " " << i;
        }
      }
    }
  }

  DecayCase c;
  Array<float> terms;
  Memory in, out;
};

template <class T, int D, int E, Precision P = Precision::kSingle>
void expect_right(const DecayCase& c) {
  SCOPED_TRACE(c.text());
  DecayMixtures<T, D, E, P> mixtures(c);
  try {
    mixtures.launch(c.seed);
  } catch (const emulator::Fault& fault) {
    FAIL() << fault.what();
  }
  mixtures.check();
}

// Blocks are loaded in groups of 8.
TEST(DecayMixingSm80, MixesAnyNumberOfBlocksAndTerms) {
  unsigned seed = 0;
  for (const int blocks : {1, 2, 7, 8, 9, 17, 70}) {
    expect_right<bfloat16, 64, 64>({.blocks = blocks, .terms = 1 + blocks % 5, .seed = seed++});
  }
  expect_right<half, 64, 64>({.blocks = 11, .terms = DecayArray::kMost});
}

TEST(DecayMixingSm80, MixesLaterBlocks) {
  for (const int blocks : {1, 8, 19}) {
    expect_right<bfloat16, 64, 64>({.blocks = blocks, .terms = 3, .later = true});
  }
}

TEST(DecayMixingSm80, MixesAllWidthsAndPrecisions) {
  const DecayCase c{.blocks = 10, .terms = 3, .pairs = 2};
  expect_right<bfloat16, 72, 72>(c);
  expect_right<half, 48, 96, Precision::kPair>(c);
  expect_right<bfloat16, 128, 256>(c);
  expect_right<bfloat16, 64, 64, Precision::kPair>(c);
}

TEST(DecayMixingSm80, GivesEachPairTheTermsOfItsMatrix) {
  expect_right<half, 64, 64>({.blocks = 9, .terms = 4, .pairs = 6, .matrices = 3});
}

TEST(DecayMixingSm80, MixesSummariesOrKeySumsAlone) {
  expect_right<half, 72, 72>({.blocks = 9, .terms = 3, .pairs = 2, .key_sums = false});
  expect_right<half, 72, 72>({.blocks = 9, .terms = 3, .pairs = 2, .summaries = false});
}

TEST(DecayMixingSm80, WritesTheSameBitsInAnyOrder) {
  using Mixtures = DecayMixtures<bfloat16, 72, 72, Precision::kPair>;
  const DecayCase c{.blocks = 20, .terms = 4, .pairs = 2};
  Mixtures first(c);
  first.launch(0);
  for (std::uint64_t schedule = 1; schedule < 4; ++schedule) {
    Mixtures other(c);
    other.launch(schedule);
    EXPECT_TRUE(other.out.is_as(first.out)) << schedule;
  }
}

TEST(DecayMixingSm80, KeepsWhatIsNotANumberOutOfEarlierMixtures) {
  using Mixtures = DecayMixtures<bfloat16, 64, 64, Precision::kSingle>;
  const DecayCase c{.blocks = 12, .terms = 3};
  Mixtures without(c), with(c);
  with.in.high[3 * 4096 + 77] = bfloat16{0x7FC0};
  with.in.key_sum[3 * 64 + 5] = std::numeric_limits<float>::infinity();
  without.launch();
  with.launch();
  for (int i = 0; i < 12; ++i) {
    for (int n = 0; n < 4096; ++n) {
      const std::int64_t at = i * 4096 + n;
      if (i > 3 && n == 77) {
        ASSERT_TRUE(std::isnan(with.out.high.value(at)));
      } else {
        ASSERT_EQ(with.out.high[at].bits, without.out.high[at].bits) << i << " " << n;
      }
    }
    ASSERT_EQ(std::isfinite(with.out.key_sum[i * 64 + 5]), i <= 3) << i;
  }
}

TEST(IntraWeights, AreSumsOfWeightsAndServeAllRows) {
  for (const int matrices : {1, 3}) {
    const DecayMixtures<bfloat16, 32, 32, Precision::kSingle> x(
        {.blocks = 1, .terms = 5, .matrices = matrices});
    Array<float> weights(matrices);
    const IntraWeightParameters p{x.array(), weights.data()};
    emulator::Device device(0);
    device.track("terms", x.terms.data(), x.terms.bytes(), emulator::Access::kRead);
    device.track("weights", weights.data(), weights.bytes(), emulator::Access::kWrite);
    device.launch<IntraWeightsSm80>(IntraWeightsSm80::grid(p, 1), p);
    const MixingArray m = intra_mixing(
        weights.data(), matrices > 1 ? Matrices::kPerHead : Matrices::kShared, matrices);
    for (int h = 0; h < matrices; ++h) {
      float sum = 0;
      for (int r = 0; r < 5; ++r) sum += x.terms[h * x.stride() + r];
      for (const int i : {0, 1, 1000000}) {
        EXPECT_EQ(*(m.of({0, h}).row(i) + m.diagonal(i)), sum) << h << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace cuda_test
