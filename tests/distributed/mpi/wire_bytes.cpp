// Runs attention over two ranks, and prints the bytes that each rank sends according to the plans.

#include <cstdio>

#include "mhla/attention/operator.hpp"
#include "mhla/distributed/bidirectional.hpp"
#include "mhla/distributed/causal.hpp"
#include "mhla/distributed/mpi.hpp"
#include "mhla/distributed/plan.hpp"
#include "mhla/policy/locality.hpp"

namespace {

using namespace mhla;

constexpr Index kBlocks = 160, kBlockLength = 8, kHeads = 8, kWidth = 64;

void run(distributed::MpiRank& rank) {
  const auto split = distributed::even_split(kBlocks + 1, 2);  // 81 blocks, and 80
  const auto r = static_cast<std::size_t>(rank.rank());
  const Index tokens = (split[r + 1] - split[r]) * kBlockLength;
  Tensor<float> q({1, tokens, kHeads, kWidth}), out = q;
  q.data().assign(q.data().size(), 0.5F);
  const ContiguousBlocks blocks{kBlockLength};
  const Operator<> op;
  const MixingMatrix<float> mixing = locality<float>(kBlocks + 1);
  const distributed::HeadWidths head{.features = kWidth, .values = kWidth};
  Tensor<float> dq(q), dk(q), dv(q);

  distributed::bidirectional(rank, inputs(q, q, q), blocks, mixing, op, out.view());
  distributed::causal(rank, inputs(q, q, q), blocks, mixing, op, out.view());
  distributed::bidirectional_gradient(rank, inputs(q, q, q), blocks, mixing, op, out,
                                      {.q = dq, .k = dk, .v = dv});

  const auto both =
      distributed::bidirectional_plan<float>(mixing.pattern(), split, split, rank.rank(), head);
  const auto causal = distributed::causal_plan<float>(mixing.pattern(), split, rank.rank(), head);
  const Index bytes = 2 * both.bytes_sent(kHeads) + causal.bytes_sent(kHeads) +
                      kHeads * both.gradients_sent * both.block_bytes;
  std::printf("rank %d to rank %d: %lld bytes\n", static_cast<int>(rank.rank()),
              static_cast<int>(1 - rank.rank()), static_cast<long long>(bytes));
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  {
    mhla::distributed::MpiRank rank(MPI_COMM_WORLD);
    run(rank);
  }
  MPI_Finalize();
}
