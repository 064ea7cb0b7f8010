#pragma once

/// \file
/// Runs of the quadratic kernels. output_sums.hpp has the error bounds.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/cuda/direct_problem.hpp"
#include "support/cuda/output_sums.hpp"

namespace cuda_test {

/// \tparam Kernels  ::Kernel<T, D, E, Causal>, and key_reads<Kernel>(params, causal), the number of
///                  tokens that it reads per pair as keys and values
template <class Kernels, class T, int D, int E, bool Causal = false>
struct QuadraticRun : DirectProblem<T, D, E> {
  using Kernel = typename Kernels::template Kernel<T, D, E, Causal>;
  using Base = DirectProblem<T, D, E>;
  using Base::c, Base::q, Base::k, Base::v, Base::o, Base::report;

  explicit QuadraticRun(const Case& given) : Base(given, Causal) {}

  static std::string name() { return Base::name() + (Causal ? ", causal" : ""); }

  bool launch(std::uint64_t schedule) { return this->template launch_as<Kernel>(schedule); }

  void expect_traffic() {
    const auto keys =
        static_cast<std::size_t>(c.pairs()) *
        Kernels::template key_reads<Kernel>(*prepared<Kernel>(this->stage(), c), Causal);
    EXPECT_EQ(report.bytes_read("q"), q.row_bytes());
    EXPECT_EQ(report.bytes_written("o"), o.row_bytes());
    EXPECT_EQ(report.bytes_read("k"), keys * D * 2);
    EXPECT_EQ(report.bytes_read("v"), keys * E * 2);
  }

  void check() const { expect_right_outputs(*this); }

  void check(Comparison& comparison, int b, int h) const {
    std::vector<std::vector<double>> keys;
    for (int j = 0; j < k.tokens(); ++j) keys.push_back(features(c.key_map, k, b, j, h));
    for (int t = 0; t < q.tokens(); ++t) {
      const std::vector<double> query = features(c.query_map, q, b, t, h);
      OutputSums<T> sums(E);
      for (int j = 0; j < (Causal ? t + 1 : k.tokens()); ++j) {
        const double m = this->mixing.value(c.blocks.block_of(t), c.key_blocks.block_of(j));
        sums.add_value(weight<T>(query, keys[static_cast<std::size_t>(j)], m), v, b, j, h);
      }
      sums.compare(comparison, o, b, t, h, c.normalization());
    }
  }
};

}  // namespace cuda_test
