// Gathers repeatedly until rank 1 kills itself. Other ranks print their error.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "mhla/distributed/mpi.hpp"

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  mhla::distributed::MpiRank rank(MPI_COMM_WORLD, 3);
  const std::size_t row_bytes = 300'000;
  std::vector<std::byte> data(row_bytes * static_cast<std::size_t>(rank.size()));
  const mhla::distributed::SharedRows rows{data.data(), row_bytes};
  std::vector<mhla::Index> first;
  for (mhla::Index r = 0; r <= rank.size(); ++r) first.push_back(r);
  try {
    for (int round = 0;; ++round) {
      auto transfer = rank.all_gather({&rows, 1}, first);
      if (rank.rank() == 1 && round == 20) std::raise(SIGKILL);
      transfer.wait();
    }
  } catch (const mhla::communication_error& e) {
    std::printf("rank %d: %s\n", static_cast<int>(rank.rank()), e.what());
    std::fflush(stdout);
  }
  std::_Exit(0);  // MPI_Finalize would wait for rank 1
}
