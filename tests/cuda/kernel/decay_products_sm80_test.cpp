// Tests of the gradients of decaying terms: the definition in double.
//
// Bound. A product of a number of S_b and one of dS~_i is rounded once per block from b to i in U,
// and again in V. Additions of blocks, threads and parts follow. The error is gamma_n of them all.

#include "mhla/cuda/kernel/decay_products_sm80.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "emulator/device.hpp"
#include "mhla/cuda/kernel/decay_sums.cuh"
#include "support/cuda/problem.hpp"
#include "support/cuda/summary_memory.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct DecayCase {
  int blocks, terms, pairs = 1, matrices = 1;
  bool key_sums = true;
  unsigned seed = 0;
};

/// The gradients of all terms of random summaries.
template <class T, int D, int E, Precision P>
struct TermGradients {
  using Kernel = DecayProductsSm80<T, D * E, P>;
  using Memory = SummaryMemory<T, D, E, P>;
  static constexpr float kFactor = 4;

  explicit TermGradients(const DecayCase& given)
      : c(given),
        terms(std::int64_t{c.matrices} * 2 * c.terms),
        x(std::int64_t{c.pairs} * c.blocks),
        y(std::int64_t{c.pairs} * c.blocks),
        intra(std::int64_t{c.matrices} * kIntra),
        sums(terms.size()) {
    Random random(c.seed + 5);
    x.fill(random, c.blocks);
    y.fill(random, c.blocks);
    for (std::int64_t i = 0; i < terms.size(); ++i) {
      const bool decay = i / c.terms % 2 == 1;
      terms[i] = static_cast<float>(decay ? random.uniform(0, 1) : random.uniform(-2, 2));
    }
    for (std::int64_t i = 0; i < intra.size(); ++i) {
      intra[i] = static_cast<float>(random.uniform(-9, 9));
    }
  }

  void launch(std::uint64_t schedule = 0) {
    DecayArray array{{terms.data(), c.terms}, c.terms, Divisor(c.matrices), c.matrices};
    if (c.matrices > 1) array.terms.head_stride = 2 * c.terms;
    DecayProductParameters p{
        x.array(c.key_sums), y.array(c.key_sums), D, array, c.blocks, kFactor, nullptr, 0};
    const std::int64_t count = std::int64_t{c.pairs / c.matrices} * Kernel::tiles(p);
    p.matrix_parts = count * 2 * c.terms;
    Array<float> parts(c.matrices * p.matrix_parts);
    p.parts = parts.data();
    emulator::Device device(schedule);
    device.track("terms", terms.data(), terms.bytes(), emulator::Access::kRead);
    for (Memory* memory : {&x, &y}) {
      const std::string name = memory == &x ? "x" : "y";
      device.track(name, memory->high.raw(), memory->high.bytes(), emulator::Access::kRead);
      if (Memory::kPair) {
        device.track(name + " low", memory->low.raw(), memory->low.bytes(),
                     emulator::Access::kRead);
      }
      if (c.key_sums) {
        device.track(name + " z", memory->key_sum.raw(), memory->key_sum.bytes(),
                     emulator::Access::kRead);
      }
    }
    device.track("parts", parts.data(), parts.bytes(), emulator::Access::kReadWrite);
    device.track("intra", intra.data(), intra.bytes(), emulator::Access::kRead);
    device.track("sums", sums.data(), sums.bytes(), emulator::Access::kWrite);
    const emulator::Report r = device.launch<Kernel>(Kernel::grid(p, c.pairs), p);
    EXPECT_EQ(r.bank_conflicts, 0u);
    const std::size_t groups = (static_cast<std::size_t>(c.terms) - 1) / Kernel::kTerms + 1;
    EXPECT_EQ(r.bytes_read("x"), groups * x.high.bytes() / static_cast<std::size_t>(c.blocks) *
                                     static_cast<std::size_t>(c.blocks - 1));
    EXPECT_EQ(r.bytes_written("parts"), parts.bytes());
    const DecaySumParameters s{array,       parts.data(), count, intra.data(), kIntra,
                               sums.data(), c.terms,      0,     2 * c.terms};
    device.launch<DecaySumsSm80>(DecaySumsSm80::grid(s, c.pairs), s);
  }

  void check() const {
    const double n = 4 * c.blocks + 12 + c.pairs / c.matrices * (D * E / 256.0 + 2) + 20;
    for (int m = 0; m < c.matrices; ++m) {
      for (int r = 0; r < c.terms; ++r) {
        const double a = terms.value(m * 2 * c.terms + r);
        const double decay = terms.value(m * 2 * c.terms + c.terms + r);
        double da = 0, dl = 0, a_size = 0, l_size = 0;
        for (int i = 0; i < kIntra; ++i) {
          da += intra.value(m * kIntra + i), a_size += std::abs(intra.value(m * kIntra + i));
        }
        for (int pair = m; pair < c.pairs; pair += c.matrices) {
          for (int i = 0; i < c.blocks; ++i) {
            for (int b = 0; b < i; ++b) {
              const auto [product, size] = products(pair, i, b);
              const double power = std::pow(decay, i - b),
                           slope = (i - b) * std::pow(decay, i - b - 1);
              da += power * product, a_size += power * size;
              dl += a * slope * product, l_size += std::abs(a) * slope * size;
            }
          }
        }
        ASSERT_NEAR(sums.value(m * 2 * c.terms + r), da, gamma(n) * a_size) << m << " " << r;
        ASSERT_NEAR(sums.value(m * 2 * c.terms + c.terms + r), dl, gamma(n) * l_size)
            << m << " " << r;
      }
    }
  }

  /// <S_b, dS~_i> + <z_b, dz~_i>, and the sum of magnitudes.
  std::pair<double, double> products(int pair, int i, int b) const {
    double sum = 0, size = 0;
    const auto add = [&](double product) { sum += product, size += std::abs(product); };
    const std::int64_t at_x = std::int64_t{pair} * c.blocks + b;
    const std::int64_t at_y = std::int64_t{pair} * c.blocks + i;
    const auto number = [](const Memory& memory, std::int64_t at) {
      return memory.high.value(at) + (Memory::kPair ? memory.low.value(at) : 0);
    };
    for (int k = 0; k < D * E; ++k) {
      add(static_cast<double>(kFactor) * number(x, at_x * D * E + k) * number(y, at_y * D * E + k));
    }
    for (int d = 0; c.key_sums && d < D; ++d) {
      add(x.key_sum.value(at_x * D + d) * y.key_sum.value(at_y * D + d));
    }
    return {sum, size};
  }

  static constexpr int kIntra = 150;
  DecayCase c;
  Array<float> terms;
  Memory x, y;
  Array<float> intra, sums;
};

template <class T, int D, int E, Precision P = Precision::kSingle>
void expect_right(const DecayCase& c) {
  TermGradients<T, D, E, P> gradients(c);
  try {
    gradients.launch(c.seed);
  } catch (const emulator::Fault& fault) {
    FAIL() << fault.what();
  }
  gradients.check();
}

// Blocks are loaded in groups of 4, and a thread has 4 terms.
TEST(DecayProductsSm80, AddAnyNumberOfBlocksAndTerms) {
  unsigned seed = 0;
  for (const int blocks : {1, 2, 4, 5, 19}) {
    expect_right<bfloat16, 32, 32>({.blocks = blocks, .terms = 1 + blocks % 7, .seed = seed++});
  }
  expect_right<half, 32, 32>({.blocks = 3, .terms = DecayArray::kMost, .key_sums = false});
}

TEST(DecayProductsSm80, AddThePairsOfEachMatrix) {
  for (const int matrices : {1, 2, 6}) {
    expect_right<half, 48, 48>({.blocks = 6, .terms = 2, .pairs = 6, .matrices = matrices});
  }
}

TEST(DecayProductsSm80, AddAllWidthsAndPrecisions) {
  const DecayCase c{.blocks = 6, .terms = 3, .pairs = 2};
  expect_right<bfloat16, 72, 72>(c);
  expect_right<half, 72, 72, Precision::kPair>(c);
  expect_right<bfloat16, 128, 128, Precision::kPair>(c);
}

TEST(DecayProductsSm80, WriteTheSameBitsInAnyOrder) {
  using Gradients = TermGradients<bfloat16, 72, 72, Precision::kSingle>;
  const DecayCase c{.blocks = 9, .terms = 5, .pairs = 3};
  Gradients first(c);
  first.launch(0);
  for (std::uint64_t schedule = 1; schedule < 4; ++schedule) {
    Gradients other(c);
    other.launch(schedule);
    for (std::int64_t i = 0; i < first.sums.size(); ++i) EXPECT_EQ(other.sums[i], first.sums[i]);
  }
}

}  // namespace
}  // namespace cuda_test
