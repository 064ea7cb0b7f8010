#pragma once

/// \file
/// Runs of the mixing kernels.
///
/// Bounds. Let u be the unit roundoff of T and eta the error of an underflow. The sum high + low
/// has an error of at most u^2 |m| + eta, and |low| <= u |m| + eta. On sm_90a kSingle has m in one
/// part, with an error of at most u |m| + eta. The product of the two low parts is left out.
/// Products of two numbers of T are exact floats. A mixture of n summaries sums at most 3 n of
/// them, padded by zeros to strips of 64. With p = 1 or 2 parts of m:
///
///     |S~^ - S~| <= sum_b (u^p |m| + eta) |S| + (u |m| + eta) |S_low|
///                         + gamma_3n (1 + 3 u) (|m| + eta) (|S_high| + |S_low|)
///
/// before rounding. Rounding adds u |S~^| + eta, or for high + low u^2 |S~^| + 2 eta. Each z~ is a
/// sum of n products, with an error of at most gamma_(n + 1) sum |m| |z|. With few bits nothing is
/// rounded before the end.

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "emulator/async_box.hpp"
#include "emulator/device.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixing_sm80.cuh"
#include "mhla/cuda/kernel/mixing_sm90.cuh"
#include "mhla/cuda/kernel/rounded_mixing.cuh"
#include "support/cuda/pattern_memory.hpp"
#include "support/cuda/problem.hpp"

namespace cuda_test {

using mhla::cuda::Arch, mhla::cuda::MixingParameters, mhla::cuda::Precision;

struct MixingOnSm80 {
  static constexpr Arch kArch = Arch::kSm80;
  template <class T, int D, int E, Precision P>
  using Kernel = mhla::cuda::MixingSm80<T, D, E, P>;
};
/// The kernel of matrices with a pattern.
struct MixingOfPattern {
  static constexpr Arch kArch = Arch::kSm80;
  template <class T, int D, int E, Precision P>
  using Kernel = mhla::cuda::MixingSm80<T, D, E, P, true>;
};
struct MixingOnSm90 {
  static constexpr Arch kArch = Arch::kSm90a;
  template <class T, int D, int E, Precision P>
  using Kernel = mhla::cuda::MixingSm90<T, D, E, P>;
};

struct MixingCase {
  int rows, columns, pairs = 1;
  bool earlier = false;
  bool few_bits = false;  ///< summaries and m have few bits, so that sums are exact
  std::uint64_t seed = 0;
  int multiprocessors = 2;  ///< of the device, for kernels that use it
  mhla::Pattern pattern{};  ///< of m, for MixingOfPattern; without rows all coefficients

  std::string text() const {
    return std::to_string(pairs) + " times [" + std::to_string(rows) + ", " +
           std::to_string(columns) + "]" + (earlier ? ", earlier" : "") + ", seed " +
           std::to_string(seed);
  }
};

template <class Kernels, class T, int D, int E, Precision P>
struct Mixtures {
  using Kernel = typename Kernels::template Kernel<T, D, E, P>;
  static constexpr bool kPair = P == Precision::kPair;
  static constexpr bool kSm80 = Kernels::kArch == Arch::kSm80;
  static constexpr emulator::Access kBoth = emulator::Access::kReadWrite;

  explicit Mixtures(const MixingCase& given)
      : c(given),
        stride(c.columns + 3),
        mixing((c.rows - 1) * stride + c.columns),
        pattern(c.pattern),
        in_high(size(c.columns) * E),
        in_low(size(c.columns) * E),
        in_z(size(c.columns)),
        rounded_high(c.rows * mhla::cuda::RoundedMixing::stride(c.columns)),
        rounded_low(rounded_high.size()),
        high(size(c.rows) * E),
        low(size(c.rows) * E),
        z(size(c.rows)) {
    Random random(c.seed + 5);
    for (std::int64_t i = 0; i < in_high.size(); ++i) {
      const double x =
          c.few_bits ? static_cast<double>(random.integer(-3, 3)) : random.uniform(-2, 2);
      in_high[i] = from_double<T>(x);
      in_low[i] = from_double<T>(c.few_bits ? static_cast<double>(random.integer(-3, 3)) / 512
                                            : x - in_high.value(i));
    }
    for (std::int64_t i = 0; i < in_z.size(); ++i) {
      in_z[i] = static_cast<float>(c.few_bits ? static_cast<double>(random.integer(-3, 3))
                                              : random.uniform(-2, 2));
    }
    const int most = kPair || !kSm80 ? 127 : 2000;  // 11 bits have a low part
    for (int i = 0; i < c.rows; ++i) {
      for (int b = 0; b < end(i); ++b) {  // later ones are not read
        mixing[i * stride + b] =
            static_cast<float>(c.few_bits ? static_cast<double>(random.integer(-most, most)) / 1024
                                          : random.uniform(-1, 1));
        if (!has(i, b)) mixing[i * stride + b] = 0;
      }
    }
  }

  std::int64_t size(int count) const { return std::int64_t{c.pairs} * count * D; }
  int end(int i) const { return c.earlier && i < c.columns ? i : c.columns; }
  double m(int i, int b) const { return mixing.value(i * stride + b); }
  bool has(int i, int b) const { return c.pattern.rows() == 0 || c.pattern.holds(i, b); }

  MixingParameters stage(bool key_sum) {
    return {{in_high.raw(), kPair ? in_low.raw() : nullptr, key_sum ? in_z.data() : nullptr},
            {high.raw(), kPair ? low.raw() : nullptr, key_sum ? z.data() : nullptr},
            {.data = mixing.data(), .stride = stride, .strips = pattern.data()},
            c.rows,
            c.columns,
            c.earlier,
            {rounded_high.raw(), kPair ? rounded_low.raw() : nullptr}};
  }

  typename Kernel::Params params(bool key_sum) {
    if constexpr (kSm80) {
      return stage(key_sum);
    } else {
      typename Kernel::Params p{};
      mhla::cuda::TensorBox boxes[6] = {};
      EXPECT_TRUE(Kernel::prepare(stage(key_sum), c.pairs, c.multiprocessors, p, boxes));
      for (int i = 0; i < 6; ++i) {
        if (boxes[i].base != nullptr) p.maps[i] = emulator::tensor_map(boxes[i]);
      }
      return p;
    }
  }

  emulator::Report launch(bool key_sum = true) {
    const typename Kernel::Params p = params(key_sum);
    emulator::Device device(c.seed);
    device.track("m", mixing.data(), mixing.bytes(), emulator::Access::kRead);
    if (pattern.bytes() > 0) {
      device.track("pattern", pattern.data(), pattern.bytes(), emulator::Access::kRead);
    }
    device.track("in_high", in_high.raw(), in_high.bytes(), emulator::Access::kRead);
    device.track("high", high.raw(), high.bytes(), emulator::Access::kWrite);
    if (kPair) {
      device.track("in_low", in_low.raw(), in_low.bytes(), emulator::Access::kRead);
      device.track("low", low.raw(), low.bytes(), emulator::Access::kWrite);
    }
    if (key_sum) {
      device.track("in_z", in_z.data(), in_z.bytes(), emulator::Access::kRead);
      device.track("z", z.data(), z.bytes(), emulator::Access::kWrite);
    }
    bool rounded = false;
    if constexpr (!kSm80) rounded = !p.items.stays;
    if (rounded) {
      using Round = mhla::cuda::RoundedMixingSm80<T, P>;
      device.track("rounded", rounded_high.raw(), rounded_high.bytes(), kBoth);
      if (kPair) device.track("rounded_low", rounded_low.raw(), rounded_low.bytes(), kBoth);
      const MixingParameters parameters = stage(key_sum);
      device.launch<Round>(Round::grid(parameters, c.pairs), parameters);
    }
    const emulator::Report r = device.launch<Kernel>(Kernel::grid(p, c.pairs), p, rounded);
    check_bytes(r, p, key_sum);
    EXPECT_EQ(r.bank_conflicts, 0u);
    return r;
  }

  /// Returns true if the pattern has some coefficients in rows i.. and columns b..
  bool any(int i, int i_end, int b, int b_end) const {
    bool found = false;
    for (int row = i; row < i_end; ++row) {
      for (int column = b; column < b_end; ++column) found = found || has(row, column);
    }
    return found;
  }

  /// Summaries that are read. Kernels of sm_80 read them once per 64 rows, as far as these rows use
  /// them, without strips of 32 that the pattern lacks. On sm_90a they are read in whole strips of
  /// 64: once if an item has all rows, otherwise once per 128 rows.
  std::size_t summaries_read(const typename Kernel::Params& p) const {
    int read = 0;
    if constexpr (kSm80) {
      for (int row = 0; row < c.rows; row += 64) {
        const int last = std::min(row + 64, c.rows), stop = end(last - 1);
        for (int b = 0; b < stop; b += 32) {
          const int b_end = std::min(b + 32, stop);
          if (any(row, last, b, std::min(b + 32, c.columns))) read += b_end - b;
        }
      }
    } else {
      const int step = p.items.stays ? c.rows : 128;
      for (int row = 0; row < c.rows; row += step) {
        const int last = std::min(row + step, c.rows) - 1;
        read += c.earlier ? std::min((last / 64 + 1) * 64, c.columns) : c.columns;
      }
    }
    return static_cast<std::size_t>(read) * static_cast<std::size_t>(c.pairs);
  }

  void check_bytes(const emulator::Report& r, const typename Kernel::Params& p,
                   bool key_sum) const {
    const std::size_t read = summaries_read(p) * 2 * D * E;
    EXPECT_EQ(r.bytes_read("in_high"), read);
    EXPECT_EQ(r.bytes_written("high"), high.bytes());
    if (kPair) {
      EXPECT_EQ(r.bytes_read("in_low"), read);
      EXPECT_EQ(r.bytes_written("low"), low.bytes());
    }
    if (key_sum) {
      EXPECT_EQ(r.bytes_written("z"), z.bytes());
    }
  }

  void check() const {
    using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const double u = kRoundoff<T>, growth = gamma(3 * (c.columns + 64)) * (1 + 3 * u);
    const double error_of_m = !kSm80 && !kPair ? u : u * u;
    // Row b has what |m| and eta multiply in the bound.
    Rows summaries(c.columns, D * E), by_size(c.columns, D * E), by_eta(c.columns, D * E);
    for (int pair = 0; pair < c.pairs; ++pair) {
      for (int b = 0; b < c.columns; ++b) {
        for (int at = 0; at < D * E; ++at) {
          const std::int64_t from = (std::int64_t{pair} * c.columns + b) * D * E + at;
          const double x = in_high.value(from), rest = kPair ? in_low.value(from) : 0;
          const double parts = growth * (std::abs(x) + std::abs(rest));
          summaries(b, at) = x + rest;
          by_size(b, at) = error_of_m * std::abs(x + rest) + u * std::abs(rest) + parts;
          by_eta(b, at) = std::abs(x + rest) + std::abs(rest) + parts;
        }
      }
      for (int i = 0; i < c.rows; ++i) {
        Eigen::RowVectorXd row(end(i));
        for (int b = 0; b < end(i); ++b) row(b) = m(i, b);
        const Eigen::RowVectorXd s = row * summaries.topRows(end(i));
        const Eigen::RowVectorXd bound = row.cwiseAbs() * by_size.topRows(end(i)) +
                                         kUnderflow<T> * by_eta.topRows(end(i)).colwise().sum();
        for (int at = 0; at < D * E; ++at) {
          ASSERT_NO_FATAL_FAILURE(check_summary(pair, i, at, s(at), c.few_bits ? 0 : bound(at)))
              << "S~_" << i << "[" << at / E << "," << at % E << "] of pair " << pair;
        }
        for (int d = 0; d < D; ++d) {
          ASSERT_NO_FATAL_FAILURE(check_key_sum(pair, i, d))
              << "z~_" << i << "[" << d << "] of pair " << pair;
        }
      }
    }
  }

  void check_summary(int pair, int i, int at, double s, double bound) const {
    const double u = kRoundoff<T>, eta = kUnderflow<T>;
    const std::int64_t to = (std::int64_t{pair} * c.rows + i) * D * E + at;
    const double most = std::abs(s) + bound;
    ASSERT_LE(std::abs(high.value(to) - s), bound + u * most + eta);
    if (c.few_bits) {
      ASSERT_EQ(high.value(to), round_to<T>(s));
    }
    if (kPair) {
      ASSERT_LE(std::abs(high.value(to) + low.value(to) - s), bound + u * u * most + 2 * eta);
      if (c.few_bits) {
        ASSERT_EQ(low.value(to), round_to<T>(s - high.value(to)));
      }
    }
  }

  void check_key_sum(int pair, int i, int d) const {
    double s = 0, a = 0;
    for (int b = 0; b < end(i); ++b) {
      const double x = m(i, b) * in_z.value((std::int64_t{pair} * c.columns + b) * D + d);
      s += x;
      a += std::abs(x);
    }
    const double bound = c.few_bits ? 0 : gamma(c.columns + 1) * a;
    ASSERT_NEAR(z.value((std::int64_t{pair} * c.rows + i) * D + d), s, bound);
  }

  /// Root mean square error of S~, relative to that of S~.
  double relative_error() const {
    double errors = 0, sizes = 0;
    for (int i = 0; i < c.rows; ++i) {
      for (int at = 0; at < D * E; ++at) {
        double s = 0;
        for (int b = 0; b < end(i); ++b) {
          const std::int64_t from = std::int64_t{b} * D * E + at;
          s += m(i, b) * (in_high.value(from) + (kPair ? in_low.value(from) : 0));
        }
        const std::int64_t to = std::int64_t{i} * D * E + at;
        const double error = high.value(to) + (kPair ? low.value(to) : 0) - s;
        errors += error * error;
        sizes += s * s;
      }
    }
    return std::sqrt(errors / sizes);
  }

  MixingCase c;
  std::int64_t stride;
  Array<float> mixing;
  PatternMemory pattern;
  Array<T> in_high, in_low;
  Array<float> in_z;
  Array<T> rounded_high, rounded_low;
  Array<T> high, low;
  Array<float> z;
};

template <class Kernels, class T, int D, int E, Precision P = Precision::kSingle>
void expect_right_mixtures(const MixingCase& c) {
  SCOPED_TRACE(c.text());
  Mixtures<Kernels, T, D, E, P> mixtures(c);
  try {
    mixtures.launch();
  } catch (const emulator::Fault& fault) {
    FAIL() << fault.what();
  }
  mixtures.check();
}

/// Puts infinities and NaN into S_b and z_b, of another b in each 32 columns: in all of these
/// columns, or in one. Rows that do not use b must keep their bits.
template <class Kernels, class T, int D, int E, Precision P>
void expect_only_what_counts(const MixingCase& c, bool whole) {
  SCOPED_TRACE(c.text() + (whole ? ", in all columns" : ", in single columns"));
  using Own = Mixtures<Kernels, T, D, E, P>;
  constexpr double kSpecial[] = {std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity()};
  Own without(c), with(c);
  const auto is_special = [&](int at) { return whole || at % 32 == at / 32 % 32; };
  for (int at = 0; at < D * E; ++at) {
    const int group = at / 32;
    Array<T>& part = Own::kPair && group % 4 == 3 ? with.in_low : with.in_high;
    const std::int64_t from = std::int64_t{group % c.columns} * D * E + at;
    if (is_special(at)) part[from] = from_double<T>(kSpecial[group % 3]);
  }
  for (int d = 0; d < D; ++d) {
    with.in_z[d % c.columns * D + d] = static_cast<float>(kSpecial[d % 3]);
  }
  without.launch();
  with.launch();
  for (int i = 0; i < c.rows; ++i) {
    for (int at = 0; at < D * E; ++at) {
      const std::int64_t to = std::int64_t{i} * D * E + at;
      if (is_special(at) && at / 32 % c.columns < without.end(i)) {
        ASSERT_FALSE(std::isfinite(with.high.value(to))) << i << " " << at;
      } else {
        ASSERT_EQ(with.high[to].bits, without.high[to].bits) << i << " " << at;
        ASSERT_EQ(with.low[to].bits, without.low[to].bits) << i << " " << at;
      }
    }
    for (int d = 0; d < D; ++d) {
      const float z = with.z[i * D + d];
      if (d % c.columns < without.end(i)) {
        ASSERT_FALSE(std::isfinite(z)) << i << " " << d;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(z),
                  std::bit_cast<std::uint32_t>(without.z[i * D + d]))
            << i << " " << d;
      }
    }
  }
}

}  // namespace cuda_test
