// Tensor stores from a tile that threads write and write again: the kernel that is right stores
// what lies in the tensor and nothing else, and each planted bug is found.

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>

#include "emulator/async_trial.hpp"
#include "emulator/device.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"

namespace emulator {
namespace {

namespace ptx = mhla::cuda::ptx;
using mhla::cuda::TensorMap;

enum class StoreBug {
  kNone,
  kNoFence,         // between the writes and the store
  kFenceOfOne,      // of the thread that stores alone
  kNoMeeting,       // of the writers before the store
  kNoWait,          // before the tile is written again
  kWaitOfAnother,   // thread than the one that stores
  kNoMeetingAfter,  // the others write when the thread still waits
  kNoCommit,        // what is waited for is no group
  kNoLastWait,      // the thread ends before its stores have read
  kUnwrittenRow,    // a row of the box that nobody wrote
  kTwice,           // two stores to the same place
  kReadBack,        // wait_group.read does not wait for device memory
  kWrongPlace,      // the tile lies 128 bytes further on
  kNoPolicy,        // a policy that is none
};

/// Stores kTiles tiles [16][64] one below the other to a tensor [40][80], from column 32 on.
struct TileStore {
  struct Params {
    TensorMap to;
    const float* read_back;  // a number of the tensor
    StoreBug bug;
  };
  static constexpr int kThreads = 32;
  static constexpr int kTiles = 3, kRows = 40, kColumns = 80, kFirst = 32;
  static constexpr int kSharedBytes = 4096;

  static std::uint32_t pair(int row, int column) {
    return trial::bits(trial::number(row, column)) |
           std::uint32_t{trial::bits(trial::number(row, column + 1))} << 16;
  }

  void operator()(const Params& p) const {
    const std::uint32_t lane = ptx::tid_x(), begin = ptx::shared_begin();
    for (int i = 0; i < kTiles; ++i) {
      const bool first = i == 0;
      const int rows = p.bug == StoreBug::kUnwrittenRow && first ? 15 : 16;
      for (int row = 0; row < rows; ++row) {
        const std::uint32_t piece = (lane / 4) ^ static_cast<std::uint32_t>(row % 8);
        ptx::st_shared(begin + static_cast<std::uint32_t>(row) * 128 + piece * 16 + lane % 4 * 4,
                       pair(16 * i + row, static_cast<int>(2 * lane)));
      }
      const bool fences = p.bug == StoreBug::kFenceOfOne ? lane == 0 : p.bug != StoreBug::kNoFence;
      if (fences) ptx::fence_proxy_async();
      if (p.bug != StoreBug::kNoMeeting) ptx::bar_warp_sync();
      if (lane == 0) {
        const std::uint32_t from = begin + (p.bug == StoreBug::kWrongPlace ? 128 : 0);
        const int row = p.bug == StoreBug::kTwice ? 0 : 16 * i;
        ptx::cp_async_bulk_tensor_store(
            p.to, {{kFirst, row, 0, 0, 0}}, from,
            p.bug == StoreBug::kNoPolicy ? 1 : ptx::createpolicy_evict_first());
        if (p.bug != StoreBug::kNoCommit) ptx::cp_async_bulk_commit_group();
      }
      const bool waits = p.bug != StoreBug::kNoWait && (p.bug != StoreBug::kNoLastWait || i < 2);
      if (waits && lane == (p.bug == StoreBug::kWaitOfAnother ? 1 : 0)) {
        ptx::cp_async_bulk_wait_group_read<0>();
      }
      if (p.bug == StoreBug::kReadBack && lane == 0) ptx::ld_global_f32(p.read_back);
      if (p.bug != StoreBug::kNoMeetingAfter) ptx::bar_warp_sync();
    }
  }
};

/// A run of the kernel: what it stored, and the fault it ended with.
struct StoreTrial {
  StoreTrial(std::uint64_t seed, StoreBug bug)
      : numbers(std::size_t{TileStore::kRows} * TileStore::kColumns) {
    Device device(seed);
    device.track("to", numbers.data(), numbers.bytes(), Access::kReadWrite);
    const TensorMap map = tensor_map(trial::matrix_box(numbers, TileStore::kColumns, 16));
    const auto* const first = reinterpret_cast<const float*>(&numbers[TileStore::kFirst]);
    try {
      const Report report = device.launch<TileStore>(1, {map, first, bug});
      EXPECT_EQ(report.bytes_written("to"), 2u * TileStore::kRows * 48);
      EXPECT_EQ(report.count("tensor stores"), std::uint64_t{TileStore::kTiles});
    } catch (const Fault& found) {
      fault = found.kind;
      message = found.what();
    }
  }

  trial::Numbers numbers;
  std::optional<Kind> fault;
  std::string message;
};

TEST(AsyncStore, WritesWhatLiesInTheTensor) {
  for (const std::uint64_t seed : trial::kSeeds) {
    StoreTrial run(seed, StoreBug::kNone);
    ASSERT_EQ(run.message, "") << seed;
    for (int row = 0; row < TileStore::kRows; ++row) {
      for (int column = 0; column < TileStore::kColumns; ++column) {
        const int from = column - TileStore::kFirst;
        const std::uint16_t wanted = from < 0 ? 0 : trial::bits(trial::number(row, from));
        const auto at = static_cast<std::size_t>(row * TileStore::kColumns + column);
        ASSERT_EQ(run.numbers[at], wanted) << row << " " << column;
      }
    }
  }
}

TEST(AsyncStore, FindsPlantedBugs) {
  trial::expect_found<StoreTrial, StoreBug>(
      {{StoreBug::kNoFence, {Kind::kProxy}},
       {StoreBug::kFenceOfOne, {Kind::kProxy}},
       {StoreBug::kNoMeeting, {Kind::kRace, Kind::kUninitialized, Kind::kProxy, Kind::kSlotInUse}},
       {StoreBug::kNoWait, {Kind::kSlotInUse}},
       {StoreBug::kWaitOfAnother, {Kind::kSlotInUse}},
       {StoreBug::kNoMeetingAfter, {Kind::kSlotInUse, Kind::kRace}},
       {StoreBug::kNoCommit, {Kind::kSlotInUse}},
       {StoreBug::kNoLastWait, {Kind::kSlotInUse}},
       {StoreBug::kUnwrittenRow, {Kind::kUninitialized}},
       {StoreBug::kTwice, {Kind::kRaceGlobal}},
       {StoreBug::kReadBack, {Kind::kRaceGlobal}},
       {StoreBug::kWrongPlace, {Kind::kOutside}},
       {StoreBug::kNoPolicy, {Kind::kOutside}}});
}

}  // namespace
}  // namespace emulator
