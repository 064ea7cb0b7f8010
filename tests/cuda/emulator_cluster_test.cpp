// Clusters: blocks that run together, boxes that one loads for all, arrivals at other blocks'
// barriers. The kernel that is right passes, and each planted bug is found.

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
#include "mhla/cuda/tile/cluster_ring.cuh"

namespace emulator {
namespace {

namespace ptx = mhla::cuda::ptx;
using mhla::cuda::ClusterRing, mhla::cuda::RingCursor, mhla::cuda::TensorMap;

enum class ClusterBug {
  kNone,
  kNoMeetingFirst,    // copies to blocks whose barriers are not made
  kNoMeetingLast,     // ends while others still use the block's memory
  kWaitsTwice,        // for the cluster without arriving
  kReleasesOwnAlone,  // gives slots back to its own producer alone
  kCountsOwnAlone,    // the same, and its producer waits for its own readers alone
  kNoMapa,            // gives slots back to its own producer as often as there are blocks
  kLoadsForItself,    // no other block
  kBlockBeyond,       // loads for a block that is not there
  kExpectsOwnPart,    // bytes
  kOthersMemory,      // reads that of the next block
};

/// Clusters of kBlocks blocks read rows of 64 numbers in boxes of 8 rows, kBlocks boxes in a slot,
/// of which each block loads one for all.
template <unsigned kBlocks>
struct SharedRows {
  struct Params {
    TensorMap rows;
    float* out;  // [block][step][thread]
    ClusterBug bug;
  };
  static constexpr std::uint32_t kSteps = 7, kSlots = 2, kReaders = 64, kBoxBytes = 1024;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 1024 + kSlots * kBlocks * kBoxBytes;
  static constexpr unsigned cluster(const Params&) { return kBlocks; }

  static void meet() {
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
  }

  void operator()(const Params& p) const {
    const std::uint32_t thread = ptx::tid_x(), rank = ptx::ctaid_x() % kBlocks;
    const std::uint32_t begin = ptx::shared_begin();
    const ClusterRing ring{{begin + 1024, kBlocks * kBoxBytes, begin, kSlots}, kBlocks};
    if (thread == 0) {
      p.bug == ClusterBug::kCountsOwnAlone ? ring.Ring::init_barriers(2) : ring.init_barriers(2);
      ptx::fence_mbarrier_init();
    }
    ptx::bar_sync();
    if (p.bug != ClusterBug::kNoMeetingFirst) meet();
    if (thread == kReaders) load(p, ring, rank);
    if (thread < kReaders) read(p, ring, thread);
    if (p.bug == ClusterBug::kWaitsTwice) ptx::barrier_cluster_wait();
    if (p.bug != ClusterBug::kNoMeetingLast) meet();
  }

 private:
  static void load(const Params& p, const ClusterRing& ring, std::uint32_t rank) {
    std::uint32_t blocks = (1u << kBlocks) - 1;
    if (p.bug == ClusterBug::kLoadsForItself) blocks = 1u << rank;
    if (p.bug == ClusterBug::kBlockBeyond) blocks |= 1u << kBlocks;
    const bool less = p.bug == ClusterBug::kExpectsOwnPart;
    RingCursor at;
    for (std::uint32_t step = 0; step < kSteps; ++step, at = at.after(1, kSlots)) {
      ring.producer_acquire(at, less ? kBoxBytes : ring.slot_bytes);
      const auto row = static_cast<std::int32_t>(8 * (kBlocks * step + rank));
      ptx::cp_async_bulk_tensor_multicast(ring.slot(at) + rank * kBoxBytes, p.rows,
                                          {{0, row, 0, 0, 0}}, ring.full(at),
                                          static_cast<std::uint16_t>(blocks));
    }
  }

  static void read(const Params& p, const ClusterRing& ring, std::uint32_t thread) {
    RingCursor at;
    for (std::uint32_t step = 0; step < kSteps; ++step, at = at.after(1, kSlots)) {
      ring.consumer_wait(at);
      float sum = 0;
      for (std::uint32_t i = thread / 32; i < 8 * kBlocks; i += 2) {
        const std::uint32_t from = ring.slot(at) + 128 * i + 4 * (thread % 32);
        const bool others = p.bug == ClusterBug::kOthersMemory;
        const std::uint32_t pair = ptx::ld_shared(others ? ptx::mapa(from, 1) : from);
        sum += trial::value(static_cast<std::uint16_t>(pair));
        sum += trial::value(static_cast<std::uint16_t>(pair >> 16));
      }
      ptx::st_global_f32(p.out + (ptx::ctaid_x() * kSteps + step) * kReaders + thread, sum);
      release(p.bug, ring, at, thread % 32);
    }
  }

  static void release(ClusterBug bug, const ClusterRing& ring, RingCursor at, std::uint32_t lane) {
    if (bug == ClusterBug::kReleasesOwnAlone || bug == ClusterBug::kCountsOwnAlone) {
      ring.Ring::consumer_release(at, lane);
    } else if (bug == ClusterBug::kNoMapa) {
      ptx::bar_warp_sync();
      if (lane < kBlocks) ptx::mbarrier_arrive_cluster(ring.empty(at));
    } else {
      ring.consumer_release(at, lane);
    }
  }
};

template <unsigned kBlocks>
struct ClusterTrial {
  using Kernel = SharedRows<kBlocks>;
  static constexpr std::uint32_t kGrid = 2 * kBlocks, kRows = 8 * kBlocks * Kernel::kSteps;

  ClusterTrial(std::uint64_t seed, ClusterBug bug)
      : rows(kRows * 64), out(kGrid * Kernel::kSteps * Kernel::kReaders) {
    for (std::uint32_t i = 0; i < rows.size(); ++i) {
      rows[i] = trial::bits(trial::number(static_cast<int>(i / 64), static_cast<int>(i % 64)));
    }
    Device device(seed);
    device.track("rows", rows.data(), rows.bytes(), Access::kRead);
    device.track("out", out.data(), 4 * out.size(), Access::kWrite);
    try {
      report = device.launch<Kernel>(kGrid,
                                     {tensor_map(trial::matrix_box(rows, 64, 8)), out.data(), bug});
    } catch (const Fault& f) {
      fault = f.kind;
      message = f.what();
    }
  }

  /// Sums of all rows of a step, by the columns' places: a swizzle leaves them in their rows.
  double sum(std::uint32_t block, std::uint32_t step) const {
    double all = 0;
    for (std::uint32_t t = 0; t < Kernel::kReaders; ++t) {
      all += static_cast<double>(out[(block * Kernel::kSteps + step) * Kernel::kReaders + t]);
    }
    return all;
  }

  trial::Numbers rows;
  std::vector<float> out;
  Report report;
  std::optional<Kind> fault;
  std::string message;
};

template <unsigned kBlocks>
void expect_shared_rows() {
  for (const std::uint64_t seed : trial::kSeeds) {
    ClusterTrial<kBlocks> run(seed, ClusterBug::kNone);
    ASSERT_EQ(run.message, "") << seed;
    EXPECT_EQ(run.report.bytes_read("rows"), 2 * run.rows.bytes());  // once for each cluster
    EXPECT_EQ(run.report.count("bytes of tensor loads for other blocks"),
              2 * (kBlocks - 1) * run.rows.bytes());
    for (std::uint32_t block = 0; block < run.kGrid; ++block) {
      for (std::uint32_t step = 0; step < SharedRows<kBlocks>::kSteps; ++step) {
        double sum = 0;
        for (std::uint32_t i = 0; i < 512 * kBlocks; ++i) {
          sum += static_cast<double>(trial::value(run.rows[step * 512 * kBlocks + i]));
        }
        EXPECT_EQ(run.sum(block, step), sum) << block << " " << step;
      }
    }
  }
}

TEST(Cluster, BlocksGetWhatOneLoadsForAll) {
  expect_shared_rows<1>();
  expect_shared_rows<2>();
  expect_shared_rows<4>();
}

TEST(Cluster, FindsPlantedBugs) {
  trial::expect_found<ClusterTrial<2>, ClusterBug>(
      {{ClusterBug::kNoMeetingFirst, {Kind::kUninitialized, Kind::kRace}},
       {ClusterBug::kWaitsTwice, {Kind::kDivergent}},
       {ClusterBug::kReleasesOwnAlone, {Kind::kDeadlock}},
       {ClusterBug::kCountsOwnAlone, {Kind::kSlotInUse, Kind::kBytes}},
       {ClusterBug::kNoMapa, {Kind::kSlotInUse, Kind::kBytes, Kind::kEarlyRead}},
       {ClusterBug::kLoadsForItself, {Kind::kDeadlock}},
       {ClusterBug::kBlockBeyond, {Kind::kOutside}},
       {ClusterBug::kExpectsOwnPart, {Kind::kBytes, Kind::kEarlyRead, Kind::kUninitialized}},
       {ClusterBug::kOthersMemory, {Kind::kOutside}}});
}

/// A block has to be ahead of another at the end, which not every schedule has.
TEST(Cluster, FindsBlocksThatEndTooEarly) {
  int found = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const ClusterTrial<2> run(seed, ClusterBug::kNoMeetingLast);
    if (run.fault) {
      EXPECT_EQ(*run.fault, Kind::kSlotInUse) << run.message;
      ++found;
    }
  }
  EXPECT_GT(found, 5);
}

}  // namespace
}  // namespace emulator
