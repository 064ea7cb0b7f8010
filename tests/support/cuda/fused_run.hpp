#pragma once

/// \file
/// Runs of the fused kernels, with outputs compared to the definition in double.
///
/// Bound. Let u be the unit roundoff of T and eta its least normal number: rounding changes x by at
/// most u (|x| + eta). A term phi(q) m phi(k) v of a numerator is rounded to T four times: phi(q),
/// phi(k), its summary and its mixture. The coefficient m, a sum of two numbers of T, has an error
/// of at most u^2 |m| + u eta. A term of a denominator is rounded twice and has m without error.
/// The functions exp2 and the additions of feature maps cost 2^-20. A chain of n float additions
/// has an error of gamma_n. With plus for magnitudes, to which eta is added where numbers are
/// rounded,
///
///     e_n = (1 + u)^4 (1 + 2^-20)^2 (1 + gamma_n) - 1       e_d = (1 + u)^2 (...) - 1
///     dN  = phi(q)+ . (sum_b (e_n |m| + (1 + e_n) (u^2 |m| + u eta)) S_b+ + e_n eta)
///     dZ  = e_d phi(q)+ . sum_b |m| z_b+
///
/// output_bound.hpp derives the errors of outputs from these.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/cuda/direct_problem.hpp"
#include "support/cuda/exact_phi.hpp"
#include "support/cuda/output_bound.hpp"

namespace cuda_test {

using namespace mhla::cuda;  // NOLINT

/// Sums over blocks of keys, for one pair.
template <class T, int D>
struct BlockSums {
  using Sums = std::vector<std::array<double, D>>;
  Sums s, s_plus, z, z_plus;  ///< [M D][D], and [M][D] for z

  BlockSums(const DirectProblem<T, D, D>& x, int batch, int head) {
    const double eta = std::ldexp(1.0, Format<T>::kLowest);
    const auto blocks = static_cast<std::size_t>(x.c.key_blocks.blocks());
    s.resize(blocks * D);
    z.resize(blocks);
    z_plus = z;
    s_plus.resize(blocks * D);
    for (auto& row : s_plus) row.fill(eta);
    for (int t = 0; t < x.k.tokens(); ++t) {
      const auto b = static_cast<std::size_t>(x.c.key_blocks.block_of(t));
      for (std::size_t d = 0; d < D; ++d) {
        const double key =
            exact_phi<T>(x.c.key_map, x.k.value(batch, t, head, static_cast<int>(d)));
        z[b][d] += key;
        z_plus[b][d] += std::abs(key) + eta;
        for (std::size_t e = 0; e < D; ++e) {
          const double value = x.v.value(batch, t, head, static_cast<int>(e));
          s[b * D + d][e] += key * value;
          s_plus[b * D + d][e] += (std::abs(key) + eta) * std::abs(value);
        }
      }
    }
  }
};

/// Compares the outputs of a pair.
template <class T, int D>
void compare_fused(Comparison& comparison, const DirectProblem<T, D, D>& x, int batch, int head) {
  const BlockSums<T, D> sums(x, batch, head);
  const double u = kRoundoff<T>, eta = std::ldexp(1.0, Format<T>::kLowest);
  const int blocks = x.c.key_blocks.blocks();
  const double chain = (1 + gamma(x.c.key_blocks.slots() + 3.0 * blocks + 2 * D + 12)) *
                       (1 + 0x1p-20) * (1 + 0x1p-20);
  const double e_n = std::pow(1 + u, 4) * chain - 1, e_d = std::pow(1 + u, 2) * chain - 1;
  std::vector<std::array<double, D>> mixed(D), off(D);
  int mixed_block = -1;
  std::array<double, D> z{}, z_plus{};
  std::vector<int> order(static_cast<std::size_t>(x.q.tokens()));
  for (std::size_t t = 0; t < order.size(); ++t) order[t] = static_cast<int>(t);
  const auto place = [&](int t) { return std::pair(x.c.blocks.block_of(t), t); };
  std::sort(order.begin(), order.end(), [&](int r, int t) { return place(r) < place(t); });
  for (const int t : order) {
    const int i = x.c.blocks.block_of(t);
    if (i != mixed_block) {
      mixed_block = i;
      z.fill(0);
      z_plus.fill(0);
      for (std::size_t d = 0; d < D; ++d) {
        mixed[d].fill(0);
        off[d].fill(e_n * eta);
        for (int b = 0; b < blocks; ++b) {
          const double m = x.mixing.value(i, b), weight = std::abs(m);
          const double share = e_n * weight + (1 + e_n) * (u * u * weight + u * eta);
          const auto row = static_cast<std::size_t>(b);
          z[d] += m * sums.z[row][d];
          z_plus[d] += weight * sums.z_plus[row][d];
          for (std::size_t e = 0; e < D; ++e) {
            mixed[d][e] += m * sums.s[row * D + d][e];
            off[d][e] += share * sums.s_plus[row * D + d][e];
          }
        }
      }
    }
    std::array<double, D> n{}, dn{};
    double den = 0, dz = 0;
    for (std::size_t d = 0; d < D; ++d) {
      const double q = exact_phi<T>(x.c.query_map, x.q.value(batch, t, head, static_cast<int>(d)));
      den += q * z[d];
      dz += e_d * (std::abs(q) + eta) * z_plus[d];
      for (std::size_t e = 0; e < D; ++e) {
        n[e] += q * mixed[d][e];
        dn[e] += (std::abs(q) + eta) * off[d][e];
      }
    }
    for (std::size_t e = 0; e < D; ++e) {
      const int column = static_cast<int>(e);
      comparison.compare(x.o.value(batch, t, head, column),
                         output<T>({n[e], dn[e]}, {den, dz}, x.c.normalization()), batch, t, head,
                         column);
    }
  }
}

/// \tparam Kernels  ::Kernel for kRegions regions
template <class Kernels, class T, int D, int kRegions>
struct FusedRun : DirectProblem<T, D, D> {
  using Base = DirectProblem<T, D, D>;
  using Base::Base;
  using Base::c, Base::q, Base::k, Base::v, Base::o, Base::report;

  static std::string name() { return Base::name() + ", " + std::to_string(kRegions) + " regions"; }

  bool launch(std::uint64_t schedule) {
    EXPECT_LE(std::max(c.blocks.blocks(), c.key_blocks.blocks()), kRegions);
    return this->template launch_as<typename Kernels::template Kernel<T, D, kRegions>>(schedule);
  }

  void check() const { expect_right_outputs(*this); }
  void check(Comparison& comparison, int b, int h) const {
    compare_fused<T, D>(comparison, *this, b, h);
  }
};

inline Case fused_case(const TokenBlocks& blocks, FeatureMap map, Denominator denominator,
                       std::uint64_t seed, int batch = 1, int heads = 1, int layout = 0) {
  return {.blocks = blocks,
          .query_map = map,
          .key_map = map,
          .denominator = denominator,
          .batch = batch,
          .heads = heads,
          .layout = layout,
          .seed = seed};
}

}  // namespace cuda_test
