#pragma once

/// \file
/// Runs of the quadratic kernels. output_sums.hpp has the error bounds.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/cuda/direct_problem.hpp"
#include "support/cuda/kernel_contract.hpp"
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
    std::vector<std::vector<double>> queries, keys;
    for (int t = 0; t < q.tokens(); ++t) queries.push_back(features(c.query_map, q, b, t, h));
    for (int j = 0; j < k.tokens(); ++j) keys.push_back(features(c.key_map, k, b, j, h));
    const bool crosses = c.denominator == mhla::cuda::Denominator::kCrossQuery;
    for (int t = 0; t < q.tokens(); ++t) {
      const std::vector<double>& query = queries[static_cast<std::size_t>(t)];
      const int block = c.blocks.block_of(t);
      OutputSums<T> sums(E);
      for (int j = 0; j < (Causal ? t + 1 : k.tokens()); ++j) {
        const double m = this->mixing.value(block, c.key_blocks.block_of(j));
        const Bounded p = weight<T>(query, keys[static_cast<std::size_t>(j)], m);
        crosses ? sums.add_weighted(p, v, b, j, h) : sums.add_value(p, v, b, j, h);
      }
      for (int i = 0; crosses && i < c.blocks.blocks(); ++i) {
        const Bounded s = own_sum(queries, keys, i, slot_of(t));
        const double m = this->mixing.value(block, i);
        sums.add_to_denominator(m * s.value, std::abs(m) * s.error);
      }
      sums.compare(comparison, o, b, t, h, c.normalization());
    }
  }

 private:
  using Rows = std::vector<std::vector<double>>;

  int slot_of(int token) const {
    const mhla::cuda::BlockOrigin at = c.blocks.origin(c.blocks.block_of(token));
    int slot = 0;
    while (c.blocks.token(at, slot) != token) ++slot;
    return slot;
  }

  /// Sum of the scores of the query in a slot of a block with the keys of the block of that number.
  Bounded own_sum(const Rows& queries, const Rows& keys, int block, int slot) const {
    const int query = c.blocks.token(c.blocks.origin(block), slot);
    BoundedSum sum;
    for (int j = 0; j < k.tokens(); ++j) {
      if (c.key_blocks.block_of(j) != block) continue;
      const Bounded score =
          score_of(queries[static_cast<std::size_t>(query)], keys[static_cast<std::size_t>(j)]);
      sum.add(score.value, score.error);
    }
    return sum.in_any_order();
  }
};

/// Tests of quadratic kernels.
template <class Kernels>
class QuadraticContract : public KernelContract<Kernels> {
 protected:
  template <class T, int D, int E>
  using Outputs = QuadraticRun<Kernels, T, D, E>;

  template <int D, int E>
  static void expect_right_for_types(const Case& c) {
    expect_right<Outputs<mhla::cuda::bfloat16, D, E>>(c);
    expect_right<Outputs<mhla::cuda::half, D, E>>(c);
  }
};

}  // namespace cuda_test
