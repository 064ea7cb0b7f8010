/// \file
/// Attention over 4 M tokens that no rank holds as a whole. A token is a function of its position,
/// and each rank makes the tokens of its blocks. Ranks send one summary per block. 15 outputs are
/// checked against the definition in double, a sum to which each rank adds the terms of its keys.
///
/// Run:       mpirun -n 4 build/examples/distributed [blocks, 1024]

#include <sys/resource.h>

#include <chrono>
#include <mhla/distributed/bidirectional.hpp>
#include <mhla/distributed/mpi.hpp>
#include <mhla/distributed/ordered_sum.hpp>
#include <mhla/distributed/plan.hpp>
#include <mhla/mhla.hpp>

#include "support/number.hpp"
#include "support/random.hpp"
#include "support/ranks.hpp"

namespace distributed = mhla::distributed;
using mhla::Index;
using Exact = mhla::Matrix<double>;
constexpr Index kBlock = 4096, kWidth = 64, kRows = 15;

/// Tensors q, k, v of `count` tokens from `first` on: numbers in [-1, 1), and in v the position
/// among `all`.
mhla::Matrix<float> tokens(Index first, Index count, Index all) {
  mhla::Matrix<float> qkv(count, 3 * kWidth);
  for (Index t = 0; t < count; ++t) {
    examples::Random random(examples::Random(static_cast<std::uint64_t>(first + t)).bits());
    for (float& number : qkv.row(t)) number = static_cast<float>(2 * random.uniform() - 1);
    qkv(t, 2 * kWidth) = static_cast<float>(2 * (first + t) - all) / static_cast<float>(all);
  }
  return qkv;
}

int run(distributed::MpiRank& rank, Index blocks) {
  const auto mixing = mhla::locality(mhla::GridShape(blocks));  // each block reads all
  const auto split = distributed::even_split(blocks, rank.size());
  const auto r = static_cast<std::size_t>(rank.rank());
  const Index all = blocks * kBlock, begin = split[r] * kBlock, end = split[r + 1] * kBlock;
  const auto x = tokens(begin, end - begin, all);
  const auto q = x.leftCols(kWidth), k = x.middleCols(kWidth, kWidth), v = x.rightCols(kWidth);
  mhla::Matrix<float> out(end - begin, kWidth);
  const auto start = std::chrono::steady_clock::now();
  distributed::bidirectional(rank, mhla::inputs(q, k, v), mhla::ContiguousBlocks{kBlock}, mixing,
                             mhla::Operator{mhla::Relu{0}}, out);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  const auto plan = distributed::bidirectional_plan<float>(
      mixing.pattern(), split, split, rank.rank(), {.features = kWidth, .values = kWidth});
  Exact rows(kRows, kWidth), sums = Exact::Zero(kRows, 2 * kWidth + 1);  // of w v, of w; output
  for (Index i = 0; i < kRows; ++i) {
    const Index t = i * all / kRows;
    rows.row(i) = tokens(t, 1, all).leftCols(kWidth).cwiseMax(0).cast<double>();
    if (t < begin || t >= end) continue;
    sums.row(i).tail(kWidth) = out.row(t - begin).cast<double>();
  }
  for (Index t = begin; t < end; t += kBlock) {
    Exact w = rows * k.middleRows(t - begin, kBlock).cwiseMax(0).cast<double>().transpose();
    for (Index i = 0; i < kRows; ++i) w.row(i) *= mixing(i * blocks / kRows, t / kBlock);
    sums.leftCols(kWidth) += w * v.middleRows(t - begin, kBlock).cast<double>();
    sums.col(kWidth) += w.rowwise().sum();
  }
  Exact parts = sums.reshaped<Eigen::RowMajor>().transpose().replicate(rank.size(), 1);
  distributed::ordered_sum(rank, mhla::MatrixView<double>(parts),
                           distributed::even_split(rank.size(), rank.size()),
                           std::span(sums.data(), sums.data() + sums.size()));
  const Exact exact = sums.leftCols(kWidth).array().colwise() / sums.col(kWidth).array();
  const double error = (sums.rightCols(kWidth) - exact).cwiseAbs().maxCoeff<Eigen::PropagateNaN>();
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  std::printf("rank %zu: %td of %td tokens, %ld MiB, received %td bytes, %.1f s, error %.0e %s\n",
              r, end - begin, all, used.ru_maxrss / 1024, plan.bytes_received(1), time.count(),
              error, error < 1e-5 ? "ok" : "WRONG");
  return error < 1e-5 ? 0 : 1;
}

int main(int argc, char** argv) {
  return examples::with_ranks([&](auto& rank) {
    return run(rank, argc > 1 ? examples::number_of(argv[1], 1, 1 << 20) : 1024);
  });
}
