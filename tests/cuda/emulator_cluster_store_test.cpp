// Stores to the memory of other blocks of a cluster, which threads and the copy engine read there:
// the kernel that is right passes, and each planted bug is found.

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulator/async_trial.hpp"
#include "emulator/device.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"

namespace emulator {
namespace {

namespace ptx = mhla::cuda::ptx;
using mhla::cuda::TensorMap;

enum class ClusterStoreBug {
  kNone,
  kNoMeeting,       // between stores and reads
  kNoMeetingAfter,  // stores again before the others have read
  kNoReleaseAfter,  // blocks meet, but what they have read is not released to others
  kNoRelease,       // blocks meet, but their stores are not seen
  kNoAcquire,       // likewise
  kNoFence,         // before the copy engine reads
  kFenceOfBlock,    // does not count for memory of others
  kOwnAddress,      // not that of a block of the cluster
  kEndsEarly,       // while others still store to its memory
};

/// Each block stores [8][64] numbers to the next one's memory, kSteps times. There one thread hands
/// them to the copy engine, and all add them up.
struct NextTile {
  struct Params {
    TensorMap rows;  // of kBlocks kSteps tiles
    float* sums;     // [block][step][thread]
    ClusterStoreBug bug;
  };
  static constexpr std::uint32_t kBlocks = 2, kSteps = 3, kTile = 1024;
  static constexpr int kThreads = 128, kSharedBytes = 2 * kTile;
  static constexpr unsigned cluster(const Params&) { return kBlocks; }

  static int number(std::uint32_t block, std::uint32_t step, std::uint32_t word) {
    return trial::number(static_cast<int>(block + kBlocks * step), static_cast<int>(word));
  }

  void operator()(const Params& p) const {
    const std::uint32_t thread = ptx::tid_x(), rank = ptx::ctaid_x(), next = (rank + 1) % kBlocks;
    const std::uint32_t barrier = ptx::shared_begin(), tile = barrier + kTile;
    if (thread == 0) {
      ptx::mbarrier_init(barrier, kBlocks);
      ptx::mbarrier_init(barrier + 8, kBlocks);
      ptx::fence_mbarrier_init();
    }
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
    const auto meet = [&](std::uint32_t at, std::uint32_t step, bool releases, bool acquires) {
      ptx::bar_sync();
      if (thread < kBlocks) {
        const std::uint32_t there = ptx::mapa(at, thread);
        releases ? ptx::mbarrier_arrive_release_cluster(there)
                 : ptx::mbarrier_arrive_cluster(there);
      }
      acquires ? ptx::mbarrier_wait_cluster(at, step % 2) : ptx::mbarrier_wait(at, step % 2);
    };
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      const std::uint32_t to =
          p.bug == ClusterStoreBug::kOwnAddress ? tile + (2 << 24) : ptx::mapa(tile, next);
      for (std::uint32_t word = thread; word < kTile / 4; word += kThreads) {
        ptx::st_shared_cluster(to + 4 * word, trial::bits(number(rank, step, word)));
      }
      if (p.bug == ClusterStoreBug::kFenceOfBlock) ptx::fence_proxy_async();
      if (p.bug < ClusterStoreBug::kNoFence || p.bug > ClusterStoreBug::kFenceOfBlock) {
        ptx::fence_proxy_async_cluster();
      }
      if (p.bug == ClusterStoreBug::kEndsEarly && rank == 0) return;
      if (p.bug != ClusterStoreBug::kNoMeeting) {
        meet(barrier, step, p.bug != ClusterStoreBug::kNoRelease,
             p.bug != ClusterStoreBug::kNoAcquire);
      }
      read(p, tile, thread, rank * kSteps + step);
      if (p.bug != ClusterStoreBug::kNoMeetingAfter) {
        meet(barrier + 8, step, p.bug != ClusterStoreBug::kNoReleaseAfter, true);
      }
    }
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
  }

 private:
  static void read(const Params& p, std::uint32_t tile, std::uint32_t thread, std::uint32_t place) {
    if (thread == 0) {
      ptx::cp_async_bulk_tensor_store(p.rows, {{0, static_cast<std::int32_t>(8 * place), 0, 0, 0}},
                                      tile);
      ptx::cp_async_bulk_commit_group();
    }
    float sum = 0;
    for (std::uint32_t word = thread; word < kTile / 4; word += kThreads) {
      sum += trial::value(static_cast<std::uint16_t>(ptx::ld_shared(tile + 4 * word)));
    }
    ptx::st_global_f32(p.sums + place * kThreads + thread, sum);
    if (thread == 0) ptx::cp_async_bulk_wait_group_read<0>();
  }
};

struct ClusterStoreTrial {
  static constexpr std::uint32_t kTiles = NextTile::kBlocks * NextTile::kSteps;

  ClusterStoreTrial(std::uint64_t seed, ClusterStoreBug bug)
      : rows(kTiles * 512), sums(kTiles * NextTile::kThreads) {
    Device device(seed);
    device.track("rows", rows.data(), rows.bytes(), Access::kWrite);
    device.track("sums", sums.data(), 4 * sums.size(), Access::kWrite);
    try {
      report = device.launch<NextTile>(
          NextTile::kBlocks, {tensor_map(trial::matrix_box(rows, 64, 8)), sums.data(), bug});
    } catch (const Fault& f) {
      fault = f.kind;
      message = f.what();
    }
  }

  trial::Numbers rows;
  std::vector<float> sums;
  Report report;
  std::optional<Kind> fault;
  std::string message;
};

TEST(ClusterStore, OtherBlocksReadWhatIsStored) {
  for (const std::uint64_t seed : trial::kSeeds) {
    ClusterStoreTrial run(seed, ClusterStoreBug::kNone);
    ASSERT_EQ(run.message, "") << seed;
    EXPECT_EQ(run.report.bank_conflicts, 0u);
    EXPECT_EQ(run.report.count("bytes stored to other blocks"), run.rows.bytes());
    for (std::uint32_t place = 0; place < run.kTiles; ++place) {
      const std::uint32_t from = 1 - place / NextTile::kSteps, step = place % NextTile::kSteps;
      for (std::uint32_t t = 0; t < NextTile::kThreads; ++t) {
        const int sum =
            NextTile::number(from, step, t) + NextTile::number(from, step, t + NextTile::kThreads);
        EXPECT_EQ(run.sums[place * NextTile::kThreads + t], static_cast<float>(sum)) << place;
      }
      for (std::uint32_t word = 0; word < 256; ++word) {  // pieces of 16 bytes are swizzled
        const std::uint32_t row = word / 32, piece = word / 4 % 8;
        const std::uint32_t column = 8 * (piece ^ row) + 2 * (word % 4);
        EXPECT_EQ(run.rows[(8 * place + row) * 64 + column],
                  trial::bits(NextTile::number(from, step, word)));
      }
    }
  }
}

TEST(ClusterStore, FindsPlantedBugs) {
  trial::expect_found<ClusterStoreTrial, ClusterStoreBug>(
      {{ClusterStoreBug::kNoMeeting, {Kind::kRace, Kind::kUninitialized, Kind::kProxy}},
       {ClusterStoreBug::kNoReleaseAfter, {Kind::kRace}},
       {ClusterStoreBug::kNoRelease, {Kind::kRace}},
       {ClusterStoreBug::kNoAcquire, {Kind::kRace}},
       {ClusterStoreBug::kNoFence, {Kind::kProxy}},
       {ClusterStoreBug::kFenceOfBlock, {Kind::kProxy}},
       {ClusterStoreBug::kOwnAddress, {Kind::kOutside}}});
}

/// A block has to be ahead of another, which not every schedule has.
TEST(ClusterStore, FindsStoresThatComeTooEarlyOrTooLate) {
  int early = 0, late = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const ClusterStoreTrial again(seed, ClusterStoreBug::kNoMeetingAfter);
    early += again.fault == Kind::kRace || again.fault == Kind::kSlotInUse ? 1 : 0;
    const ClusterStoreTrial ended(seed, ClusterStoreBug::kEndsEarly);
    late += ended.fault == Kind::kSlotInUse ? 1 : 0;
    EXPECT_TRUE(ended.fault) << seed;  // those that do not store later wait for ever
  }
  EXPECT_GT(early, 15);
  EXPECT_GT(late, 5);
}

}  // namespace
}  // namespace emulator
