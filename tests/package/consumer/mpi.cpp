// The smallest program that uses MPI: one or more ranks send each other their numbers.

#include "mhla/distributed/mpi.hpp"

#include <cstddef>
#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  bool right = true;
  {
    mhla::distributed::MpiRank rank(MPI_COMM_WORLD);
    const auto byte = static_cast<std::byte>(rank.rank());
    std::vector<std::byte> all(static_cast<std::size_t>(rank.size()));
    rank.agree({&byte, 1}, all);
    for (std::size_t r = 0; r < all.size(); ++r) right = right && all[r] == std::byte(r);
  }
  MPI_Finalize();
  std::puts(right ? "right" : "WRONG");
  return right ? 0 : 1;
}
