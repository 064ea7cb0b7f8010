// Allocations of a rank that fail: it throws std::bad_alloc, and the others end with an error.
//
// MHLA_ALLOCATIONS=S  fails every S-th allocation of each rank, alone and with all later ones

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <new>
#include <string>

#include "support/mpi_ranks.hpp"
#include "support/rank_share.hpp"

namespace mhla::test {
namespace {

/// Allocations of C++. Open MPI is written in C, and ends the program if its own fail.
struct {
  std::atomic<bool> armed{false}, all_later{false};
  std::atomic<long> left{0}, live{0};

  void* allocate(std::size_t bytes, std::size_t alignment) {
    if (armed) {
      const long number = left--;
      if (number == 0 || (number < 0 && all_later)) throw std::bad_alloc();
    }
    void* const memory = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
    if (memory == nullptr) throw std::bad_alloc();
    ++live;
    return memory;
  }
  void release(void* memory) {
    if (memory != nullptr) --live;
    std::free(memory);
  }
} allocations;

}  // namespace
}  // namespace mhla::test

using mhla::test::allocations;

void* operator new(std::size_t bytes) {
  return allocations.allocate(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocations.allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { allocations.release(memory); }
void operator delete(void* memory, std::size_t) noexcept { allocations.release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { allocations.release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  allocations.release(memory);
}

namespace mhla::test {
namespace {

/// Seconds: more for many ranks on few processors, fewer for many failures.
const double kTimeout = std::getenv("MHLA_ALLOCATIONS") == nullptr ? 2 : 1;

struct Failure {
  int rank;
  long number;
  bool later;
};

/// Returns "", or what is wrong on this rank.
std::string run_without_memory(const Failure& failure, bool mine, RankShare& share,
                               std::uint64_t expected) {
  MPI_Barrier(MPI_COMM_WORLD);  // others may still wait in the case before
  distributed::MpiRank rank(MPI_COMM_WORLD, kTimeout);
  MPI_Barrier(MPI_COMM_WORLD);
  allocations.left = failure.number;
  allocations.all_later = failure.later;
  try {
    allocations.armed = mine;
    share.run(rank, {});
    allocations.armed = false;
    return share.hash() == expected ? "" : "other bits";
  } catch (const std::bad_alloc& e) {
    allocations.armed = false;
    return mine ? "" : e.what();
  } catch (const communication_error& e) {
    allocations.armed = false;
    return mine && allocations.left >= 0 ? e.what() : "";
  } catch (const option_error& e) {  // of a rank without memory for its arguments
    allocations.armed = false;
    const std::string refused =
        "were refused on rank " + std::to_string(failure.rank) + " (std::bad_alloc)";
    return !mine && std::string(e.what()).find(refused) != std::string::npos ? "" : e.what();
  }
}

/// Runs with a failure, and expects results or an error, in time, without a leak. False if the rank
/// has fewer allocations.
bool fails_safely(const Failure& failure, RankShare& share, std::uint64_t expected) {
  int me = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  const bool mine = me == failure.rank;
  const auto begin = std::chrono::steady_clock::now();
  const long live = allocations.live;
  const std::string wrong = run_without_memory(failure, mine, share, expected);
  const long leaks = allocations.live - live;
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  int failed = mine && allocations.left < 0;
  const std::string where =
      " on rank " + std::to_string(me) + " without allocation " + std::to_string(failure.number) +
      (failure.later ? " and all later" : "") + " of rank " + std::to_string(failure.rank);
  EXPECT_EQ(wrong, "") << where;
  if (wrong.empty()) {
    EXPECT_EQ(leaks, 0) << where;
  }
  EXPECT_LT(time.count(), 10 * kTimeout) << where;
  MPI_Bcast(&failed, 1, MPI_INT, failure.rank, MPI_COMM_WORLD);
  return failed != 0;
}

TEST(MpiMemory, ThatFailsIsAnErrorOnAll) {
  int me = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  RankShare share(me, ranks, 4);
  MpiRanks::run([&](auto& rank) { share.run(rank, {}); });
  const std::uint64_t expected = share.hash();
  int cases = 0;
  const auto fails = [&](const Failure& failure) {
    const bool failed = fails_safely(failure, share, expected);
    cases += failed ? 1 : 0;
    return failed;
  };
  const char* const step = std::getenv("MHLA_ALLOCATIONS");
  if (step == nullptr) {
    fails({1 % ranks, 4, false});
    fails({1 % ranks, 20, false});
    fails({1 % ranks, 40, true});
    return;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    for (const bool later : {false, true}) {
      for (long number = 0; fails({rank, number, later}); number += std::atol(step)) {
      }
    }
  }
  std::cout << cases << " cases\n";
}

}  // namespace
}  // namespace mhla::test
