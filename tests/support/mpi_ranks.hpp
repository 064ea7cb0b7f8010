#pragma once

/// \file
/// Ranks of a test: the processes that mpirun started.

#include <string>

#include "mhla/distributed/mpi.hpp"

namespace mhla::test {

/// Message of an MpiRank created before main() initialised MPI.
const std::string& before_mpi();

struct MpiRanks {
  /// Timeout in seconds, for tests in which a rank does not answer.
  static constexpr double kImpatience = 1;

  /// Calls f(rank) on this rank. A barrier comes first, since a rank may have failed a test early.
  static void run(auto&& f, double timeout = 60) {
    MPI_Barrier(MPI_COMM_WORLD);
    distributed::MpiRank rank(MPI_COMM_WORLD, timeout);
    f(rank);
  }
};

}  // namespace mhla::test
