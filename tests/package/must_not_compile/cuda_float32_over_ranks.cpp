// expect: sequences over devices have kernels for bfloat16 and half, not for float32
#include "mhla/cuda/attention/share_inputs.cuh"
#include "mhla/distributed/thread_ranks.hpp"

#if defined(MHLA_CONTROL)
using Number = Eigen::half;
#else
using Number = float;
#endif

mhla::cuda::detail::PlannedShare agree(mhla::distributed::ThreadRank& rank) {
  const mhla::cuda::TokenBlocks blocks;
  return mhla::cuda::detail::agree_on_share<64, 64, false, Number>(rank, {}, blocks, blocks, {}, {},
                                                                   {}, {});
}

int main() {
  mhla::distributed::run_ranks(2, [](mhla::distributed::ThreadRank& rank) { agree(rank); });
}
