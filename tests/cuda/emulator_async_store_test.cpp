// Boxes loaded, changed by threads through the generic proxy, and stored again: what tensors hold
// afterwards, and planted bugs of the order between the two proxies.

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
using mhla::cuda::BoxOrigin;
using mhla::cuda::TensorBox;
using mhla::cuda::TensorMap;

enum class StoreBug {
  kNone,
  kNoFence,
  kFenceAfterBarrier,
  kFenceOfOneThread,
  kNoBarrierBeforeStore,
  kNoWait,                // for the store to have read, before the next load
  kNoFenceBeforeLoad,     // into what threads have written
  kNoBarrierBeforeLoad,   // into what threads have read
  kNoWaitAtTheEnd,        // for the last store
  kUncommittedAtTheEnd,   // the last store
  kWriteDuringStore,      // by a thread
  kWriteAfterOthersWait,  // by a thread that is not ordered after it
  kUnwritten,             // bytes that nobody has written are stored
  kMisaligned,            // box
  kBeyondMemory,          // box
  kNoTensorMap,
  kWrongSwizzle,
  kBarrierOverwritten,
  kStoredTwice,  // by two threads
  kReadBack,     // what a box has stored
};

/// y = x with the sign of each number changed, by boxes of 8 x 2 rows of 64.
struct Negation {
  struct Params {
    TensorMap x, y;
    const void* stored;  // y
    int columns, boxes;  // 64-number steps along dimension 0, boxes along dimension 1
    StoreBug bug;
  };
  static constexpr int kThreads = 64;
  static constexpr std::uint32_t kBytes = 16 * 128;
  static constexpr int kSharedBytes = 2 * kBytes + 8;

  void operator()(const Params& p) const {
    const std::uint32_t box = ptx::shared_begin();
    const std::uint32_t barrier = box + 2 * kBytes;
    const std::uint32_t thread = ptx::thread_index();
    if (thread == 0) {
      ptx::make_barrier(barrier, 1);
      ptx::publish_barriers();
    }
    ptx::meet_block();
    if (p.bug == StoreBug::kBarrierOverwritten && thread == 3) ptx::store_shared(barrier, 0);
    if (p.bug == StoreBug::kUnwritten) {
      if (thread == 0) ptx::store_box(p.y, {{0, 0, 0, 0, 0}}, box);
      ptx::meet_block();
    }
    std::uint32_t phase = 0;
    for (int column = 0; column < p.columns; ++column) {
      for (int i = 0; i < p.boxes; ++i, phase ^= 1) step(p, {{64 * column, 8 * i}}, box, phase);
    }
    if (thread == 0) finish(p);
    ptx::meet_block();
    if (p.bug == StoreBug::kReadBack && thread == 1)
      static_cast<void>(ptx::reload_global(p.stored));
  }

  static void finish(const Params& p) {
    if (p.bug != StoreBug::kUncommittedAtTheEnd) ptx::commit_stores();
    if (p.bug != StoreBug::kNoWaitAtTheEnd) ptx::wait_stores_read<0>();
  }

  static void step(const Params& p, const BoxOrigin& at, std::uint32_t box, std::uint32_t phase) {
    const std::uint32_t thread = ptx::thread_index();
    const std::uint32_t barrier = box + 2 * kBytes;
    if (thread == 0) {
      if (p.bug != StoreBug::kNoWait) {
        ptx::commit_stores();
        ptx::wait_stores_read<0>();
      }
      ptx::arrive_and_expect(barrier, kBytes);
      std::uint32_t to = box;
      if (p.bug == StoreBug::kMisaligned) to += 512;
      if (p.bug == StoreBug::kBeyondMemory) to += kBytes + 1024;
      const TensorMap empty{};
      ptx::load_box(to, p.bug == StoreBug::kNoTensorMap ? empty : p.x, at, barrier);
    }
    ptx::wait_for(barrier, phase);
    for (std::uint32_t i = thread; i < 16 * 8; i += kThreads) {
      const std::uint32_t row = i / 8;
      const std::uint32_t piece = p.bug == StoreBug::kWrongSwizzle ? i % 8 : i % 8 ^ row % 8;
      const std::uint32_t from = box + row * 128 + piece * 16;
      ptx::Words4 w = ptx::load_shared_4(from);
      // Only the numbers of even columns of a piece change sign, so that places matter.
      for (std::uint32_t j = 0; j < 4; ++j) w.x[j] ^= i % 8 == 0 ? 0x80008000U : 0x00008000U;
      ptx::store_shared_4(from, w);
    }
    const bool fences = p.bug != StoreBug::kNoFence && p.bug != StoreBug::kFenceAfterBarrier &&
                        (p.bug != StoreBug::kFenceOfOneThread || thread == 0);
    if (fences) ptx::fence_async();
    if (p.bug != StoreBug::kNoBarrierBeforeStore) ptx::meet_block();
    if (p.bug == StoreBug::kFenceAfterBarrier) ptx::fence_async();
    if (thread == 0) ptx::store_box(p.y, at, box);
    if (p.bug == StoreBug::kStoredTwice && thread == 1) {
      ptx::store_box(p.y, at, box);
      ptx::commit_stores();
      ptx::wait_stores_read<0>();
    }
    if (p.bug == StoreBug::kWriteDuringStore && thread == 0) ptx::store_shared(box, 0);
    if (p.bug == StoreBug::kWriteAfterOthersWait) {
      if (thread == 0) {
        ptx::commit_stores();
        ptx::wait_stores_read<0>();
      }
      if (thread == 1) ptx::store_shared(box, 0);
    }
    if (p.bug == StoreBug::kNoFenceBeforeLoad && thread == 1) {
      ptx::store_shared(box + kBytes, 7);
    }
    ptx::meet_block();
    if (p.bug == StoreBug::kNoFenceBeforeLoad && thread == 0) {
      ptx::load_box(box + kBytes, p.x, at, barrier);
    }
    if (p.bug == StoreBug::kNoBarrierBeforeLoad && thread == 1) {
      static_cast<void>(ptx::load_shared(box));
    }
  }
};

/// [2][20][72] numbers, and a run of the kernel over them.
struct StoreTrial {
  static constexpr std::size_t kColumns = 72, kRows = 20, kPlanes = 2;

  StoreTrial(std::uint64_t seed, StoreBug bug)
      : x(kColumns * kRows * kPlanes), y(kColumns * kRows * kPlanes) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<std::uint16_t>(i + 1);
      y[i] = 0;
    }
    Device device(seed);
    device.track("x", x.data(), x.bytes(), Access::kRead);
    device.track("y", y.data(), y.bytes(), Access::kReadWrite);
    const Negation::Params params{tensor_map(box(x)), tensor_map(box(y)), y.data(), 2, 3, bug};
    try {
      const Report report = device.launch<Negation>({1, 1, 1}, params);
      EXPECT_EQ(report.bytes_read("x"), x.bytes()) << "outside of the tensor nothing is read";
      EXPECT_EQ(report.bytes_written("y"), y.bytes());
      EXPECT_EQ(report.count("tensor loads"), 6U);
      EXPECT_EQ(report.count("tensor stores"), 6U);
    } catch (const Fault& found) {
      fault = found.kind;
      message = found.what();
    }
  }

  static TensorBox box(trial::Numbers& tensor) {
    constexpr std::uint64_t kRow = kColumns * 2, kPlane = kRow * kRows;
    return {tensor.data(),
            {kColumns, kRows, kPlanes, 1, 1},
            {kRow, kPlane, kPlane * kPlanes, kPlane * kPlanes},
            {64, 8, 2, 1, 1}};
  }

  bool is_right() {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t column = i % kColumns % 64;
      const bool changed = column < 8 || column % 2 == 0;
      if (y[i] != (x[i] ^ (changed ? 0x8000U : 0U))) return false;
    }
    return true;
  }

  trial::Numbers x, y;
  std::optional<Kind> fault;
  std::string message;
};

TEST(AsyncStore, MovesBoxesThatReachOutOfTheTensor) {
  for (const std::uint64_t seed : trial::kSeeds) {
    StoreTrial run(seed, StoreBug::kNone);
    EXPECT_EQ(run.message, "") << seed;
    EXPECT_TRUE(run.is_right()) << seed;
  }
}

TEST(AsyncStore, FindsPlantedBugs) {
  trial::expect_found<StoreTrial, StoreBug>(
      {{StoreBug::kNoFence, {Kind::kProxy}},
       {StoreBug::kFenceAfterBarrier, {Kind::kProxy}},
       {StoreBug::kFenceOfOneThread, {Kind::kProxy}},
       {StoreBug::kNoBarrierBeforeStore, {Kind::kRace, Kind::kEarlyRead, Kind::kSlotInUse}},
       {StoreBug::kNoWait, {Kind::kSlotInUse}},
       {StoreBug::kNoFenceBeforeLoad, {Kind::kProxy}},
       {StoreBug::kNoBarrierBeforeLoad, {Kind::kSlotInUse, Kind::kEarlyRead}},
       {StoreBug::kNoWaitAtTheEnd, {Kind::kSlotInUse}},
       {StoreBug::kUncommittedAtTheEnd, {Kind::kSlotInUse}},
       {StoreBug::kWriteDuringStore, {Kind::kSlotInUse}},
       {StoreBug::kWriteAfterOthersWait, {Kind::kSlotInUse, Kind::kRace}},
       {StoreBug::kUnwritten, {Kind::kUninitialized}},
       {StoreBug::kMisaligned, {Kind::kOutside}},
       {StoreBug::kBeyondMemory, {Kind::kOutside}},
       {StoreBug::kNoTensorMap, {Kind::kOutside}},
       {StoreBug::kBarrierOverwritten, {Kind::kSlotInUse}},
       {StoreBug::kStoredTwice, {Kind::kRaceGlobal}},
       {StoreBug::kReadBack, {Kind::kRaceGlobal}}});
}

TEST(AsyncStore, WrongSwizzleGivesWrongNumbers) {
  StoreTrial run(0, StoreBug::kWrongSwizzle);
  EXPECT_EQ(run.message, "");
  EXPECT_FALSE(run.is_right());
}

/// Stores a box that the block has written.
struct Fill {
  struct Params {
    TensorMap y;
    BoxOrigin at;
  };
  static constexpr int kThreads = 32, kSharedBytes = 1024;

  void operator()(const Params& p) const {
    const std::uint32_t box = ptx::shared_begin();
    for (std::uint32_t i = ptx::thread_index(); i < 256; i += 32) {
      ptx::store_shared(box + 4 * i, 0x00010001U);
    }
    ptx::fence_async();
    ptx::meet_block();
    if (ptx::thread_index() != 0) return;
    ptx::store_box(p.y, p.at, box);
    ptx::commit_stores();
    ptx::wait_stores_read<0>();
  }
};

TEST(AsyncStore, KeepsToTrackedMemory) {
  trial::Numbers y(64 * 16);
  const TensorMap map = tensor_map(trial::matrix_box(y, 64, 8));
  const auto run = [&](std::size_t rows, Access access, BoxOrigin at) {
    Device device(1);
    device.track("y", y.data(), rows * 128, access);
    return trial::fault_of<Fill>(device, {map, at});
  };
  EXPECT_EQ(run(16, Access::kWrite, {{0, 8, 0, 0, 0}}), std::nullopt);
  EXPECT_EQ(run(15, Access::kWrite, {{0, 8, 0, 0, 0}}), Kind::kOutside);
  EXPECT_EQ(run(16, Access::kRead, {{0, 8, 0, 0, 0}}), Kind::kOutside);
  EXPECT_EQ(run(16, Access::kWrite, {{-64, 8, 0, 0, 0}}), std::nullopt) << "nothing to store";
  EXPECT_EQ(run(16, Access::kWrite, {{-62, -6, 0, 0, 0}}), std::nullopt);
  int ones = 0;
  for (std::size_t i = 0; i < y.size(); ++i) ones += y[i];
  EXPECT_EQ(ones, 8 * 64 + 2 * 2) << "the last box lies in the tensor with a corner of 2 x 2";
}

}  // namespace
}  // namespace emulator
