#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "contract/communicator.hpp"
#include "mhla/distributed/mpi.hpp"
#include "support/message_of.hpp"
#include "support/mpi_ranks.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, CommunicatorContract, MpiRanks);

namespace {

using distributed::MpiRank;

TEST(MpiRank, NeedsMpi) {
  EXPECT_EQ(before_mpi(),
            "mhla::distributed: an MpiRank is between MPI_Init_thread and MPI_Finalize");
}

TEST(MpiRank, IsTheProcessOfTheCommunicator) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MpiRanks::run(
      [&](MpiRank& over_mpi) {
        EXPECT_EQ(over_mpi.rank(), rank);
        EXPECT_EQ(over_mpi.size(), size);
        EXPECT_EQ(over_mpi.timeout(), 7.5);
      },
      7.5);
}

// Messages that other code sends over the same communicator are not taken for records.
TEST(MpiRank, ItsMessagesMeetNoOthers) {
  MpiRanks::run([](MpiRank& rank) {
    const int to = static_cast<int>((rank.rank() + 1) % rank.size());
    char mail = 'm', received = 0;
    MPI_Request request;
    MPI_Isend(&mail, 1, MPI_CHAR, to, 0, MPI_COMM_WORLD, &request);
    const auto byte = static_cast<std::byte>(rank.rank());
    std::vector<std::byte> records(static_cast<std::size_t>(rank.size()));
    rank.agree({&byte, 1}, records);
    for (std::size_t r = 0; r < records.size(); ++r) EXPECT_EQ(records[r], std::byte(r));
    MPI_Recv(&received, 1, MPI_CHAR, MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    EXPECT_EQ(received, 'm');
  });
}

TEST(MpiRank, IsNotMadeWithoutTheOthers) {
  MPI_Comm half_made;  // its copy never ends
  MPI_Comm_dup(MPI_COMM_WORLD, &half_made);
  int rank = 0, size = 0;
  MPI_Comm_rank(half_made, &rank);
  MPI_Comm_size(half_made, &size);
  if (rank == 0 || size == 1) return;
  EXPECT_EQ(message_of<communication_error>([&] { MpiRank(half_made, 0.5); }),
            "mhla::distributed: not all ranks made an MpiRank within 0.500000 s");
}

TEST(MpiRank, TellsWhatMpiSaysWhateverTheCommunicatorDoesWithErrors) {
  MPI_Comm fatal;
  MPI_Comm_dup(MPI_COMM_WORLD, &fatal);
  MPI_Comm_set_errhandler(fatal, MPI_ERRORS_ARE_FATAL);
  MpiRank rank(fatal);
  MPI_Comm_free(&fatal);
  const distributed::PeerRows to{rank.size(), 0, 0};
  const std::string said = message_of<communication_error>([&] {
    rank.exchange({}, {&to, 1}, {}).wait();
  });
  EXPECT_TRUE(said.starts_with("mhla::distributed: MPI_Isend: ")) << said;
  EXPECT_NE(said.find("rank"), std::string::npos) << said;
}

}  // namespace
}  // namespace mhla::test
