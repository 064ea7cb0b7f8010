// Gathers uneven shares, and prints how many bytes each rank sends to each other.

#include <cstddef>
#include <cstdio>
#include <vector>

#include "mhla/distributed/mpi.hpp"

using mhla::Index;

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  {
    mhla::distributed::MpiRank rank(MPI_COMM_WORLD);
    const auto r = static_cast<std::size_t>(rank.rank());
    std::vector<Index> first{0};
    for (Index peer = 0; peer < rank.size(); ++peer) first.push_back(first.back() + 5 + 9 * peer);
    const std::size_t row_bytes = 1'000'000;
    std::vector<std::byte> data(static_cast<std::size_t>(first.back()) * row_bytes);
    const mhla::distributed::SharedRows rows{data.data(), row_bytes};
    rank.all_gather({&rows, 1}, first).wait();
    for (Index peer = 0; peer < rank.size(); ++peer) {
      const std::size_t bytes = static_cast<std::size_t>(first[r + 1] - first[r]) * row_bytes;
      if (peer != rank.rank()) {
        std::printf("rank %td to rank %td: %zu bytes\n", rank.rank(), peer, bytes);
      }
    }
  }
  MPI_Finalize();
}
