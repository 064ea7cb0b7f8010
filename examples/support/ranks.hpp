#pragma once

/// \file
/// The ranks of a program: the processes that mpirun started or, where there is no MPI, this one.

#include <cstdio>
#include <exception>

#ifdef EXAMPLES_MPI
#include <mhla/distributed/mpi.hpp>
#else
#include <mhla/distributed/thread_ranks.hpp>
#endif

namespace examples {

/// Seconds that a rank waits for another, which may have more to do.
inline constexpr double kPatience = 3600;

/// Returns f(rank), the status of the program, or 1 for an error, with a line that says what. Then
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

}  // namespace examples
