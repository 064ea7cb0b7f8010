#pragma once

/// \file
/// The ranks of a program: the processes that mpirun started, or this process without MPI.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <span>
#include <vector>

#include "interrupt.hpp"
#ifdef EXAMPLES_MPI
#include <mhla/distributed/mpi.hpp>
#else
#include <mhla/distributed/thread_ranks.hpp>
#endif

namespace examples {

/// Seconds that a rank waits for another rank, which may have more work.
inline constexpr double kPatience = 3600;

/// Returns f(rank), the status of the program. For an exception prints its text and returns 1, and
/// mpirun ends the other ranks.
template <class F>
int with_ranks(F&& f) {
  int status = 1;
  try {
#ifdef EXAMPLES_MPI
    int level = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    {
      mhla::distributed::MpiRank rank(MPI_COMM_WORLD, kPatience);
      status = f(rank);
    }
    MPI_Finalize();
#else
    mhla::distributed::run_ranks(
        1, [&](auto& rank) { status = f(rank); }, kPatience);
#endif
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return status;
}

/// True if there was an interrupt on any rank; sets interrupted() on all ranks.
template <mhla::distributed::Communicator C>
bool any_interrupted(C& comm) {
  const int local = interrupt_signal;
  std::vector<int> all(static_cast<std::size_t>(comm.size()));
  comm.agree(std::as_bytes(std::span(&local, 1)), std::as_writable_bytes(std::span(all)));
  const int signal = *std::ranges::max_element(all);
  if (signal != 0) interrupt_signal = signal;
  return signal != 0;
}

}  // namespace examples
