// A rank of several that compute causal attention and its gradient, 20 times.
//
//     mpi_working_rank RANK MICROSECONDS  kills a rank so long after the start; none if RANK is -1
//
// Each rank prints a hash of its results and their time, or its error.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "mhla/core/executor.hpp"
#include "mhla/distributed/mpi.hpp"
#include "support/rank_share.hpp"

namespace {

using namespace mhla;

void work(int killed, std::chrono::microseconds moment) {
  using Clock = std::chrono::steady_clock;
  distributed::MpiRank rank(MPI_COMM_WORLD, 1);
  const int me = static_cast<int>(rank.rank());
  ThreadPool pool(2);
  test::RankShare share(me, static_cast<int>(rank.size()), 32);
  MPI_Barrier(MPI_COMM_WORLD);
  const auto begin = Clock::now();
  if (me == killed) {
    std::thread([moment] {
      std::this_thread::sleep_for(moment);
      std::raise(SIGKILL);
    }).detach();
  }
  try {
    std::uint64_t hash = 0;
    for (int round = 0; round < 20; ++round) {
      share.run(rank, {.executor = pool});
      hash = share.hash(hash);
      for (Index i = 0; i < share.q.size(); ++i) share.q.data()[i] += share.out.data()[i] / 64;
    }
    const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
    std::printf("rank %d: hash %016llx in %.0f us\n", me, static_cast<unsigned long long>(hash),
                time.count());
    while (me == killed) std::this_thread::yield();
  } catch (const communication_error& e) {
    std::printf("rank %d: %s\n", me, e.what());
  }
  std::fflush(stdout);
  if (killed >= 0) std::_Exit(0);  // MPI_Finalize would wait for the killed rank
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (argc != 3) MPI_Abort(MPI_COMM_WORLD, 2);
  work(std::atoi(argv[1]), std::chrono::microseconds(std::atol(argv[2])));
  MPI_Finalize();
  return 0;
}
