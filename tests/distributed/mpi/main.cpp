// The tests of this folder are one program, which mpirun starts on several ranks. All ranks run
// every test in order. The first rank prints as usual, other ranks print only failures.

#include <gtest/gtest.h>

#include <cstdio>

#include "support/message_of.hpp"
#include "support/mpi_ranks.hpp"

namespace mhla::test {
namespace {

class Failures : public testing::EmptyTestEventListener {
 public:
  explicit Failures(int rank) : rank_(rank) {}

 private:
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::printf("rank %d: %s:%d: Failure\n%s\n", rank_,
                result.file_name() ? result.file_name() : "", result.line_number(),
                result.summary());
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (!test.result()->Failed()) return;
    std::printf("rank %d: [  FAILED  ] %s.%s\n", rank_, test.test_suite_name(), test.name());
    std::fflush(stdout);
  }

  int rank_;
};

std::string said_before_mpi;

}  // namespace

const std::string& before_mpi() { return said_before_mpi; }

int run_tests(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  said_before_mpi =
      message_of<communication_error>([] { distributed::MpiRank rank(MPI_COMM_WORLD); });
  int level = 0;
  int rank = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank > 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Failures(rank));
  }
  const int failed = RUN_ALL_TESTS();
  int any_failed = 0;
  MPI_Allreduce(&failed, &any_failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return any_failed;
}

}  // namespace mhla::test

int main(int argc, char** argv) { return mhla::test::run_tests(argc, argv); }
