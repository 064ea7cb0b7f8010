// Tensor loads into a ring of slots, products that read them, barriers between the two: the kernel
// that is right passes and computes the product, and each planted bug is found.

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
#include "mhla/cuda/ptx/wgmma.cuh"

namespace emulator {
namespace {

namespace ptx = mhla::cuda::ptx;
using mhla::cuda::TensorMap;

enum class PipelineBug {
  kNone,
  kNoWaitForFull,       // products of bytes that are under way
  kStaleParity,         // waits for the phase before
  kNoWaitForEmpty,      // loads into a slot that is being read
  kEarlyRelease,        // gives the slot back before the products have read it
  kTooFewExpected,      // bytes
  kTooManyExpected,     // bytes
  kNoExpectation,       // arrives without bytes
  kOneArrivalTooFew,    // of the consumers
  kOneArrivalTooMany,   // of the consumers
  kNoPublish,           // of the barriers
  kNoGroupBegin,        // before products
  kAccumulatorWritten,  // while products are under way
  kNoGroupWait,         // results used at once
  kWrongColumns,        // descriptor of the first columns each time
  kWrongSlot,           // the box lies 128 bytes further on
  kBoxBeyondMemory,     // the box ends after the block's memory
};

/// C[64,64] = A[64,16 s] B[16 s,64] of one group of warps, s = 4 kTiles. B lies as [64][64 kTiles]
/// or, transposed, as [64 kTiles][64], and comes in tiles of 64 x 64.
template <int kTransposed>
struct StreamedProduct {
  struct Params {
    TensorMap b;
    const std::uint32_t* a;  // [64][32 kTiles] pairs
    float* c;                // [64][64]
    PipelineBug bug;
  };
  static constexpr int kTiles = 7;
  static constexpr int kSlots = 2;
  static constexpr int kTileBytes = 64 * 64 * 2;
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = kSlots * kTileBytes + kSlots * 16;

  struct Ring {
    std::uint32_t begin;
    std::uint32_t tile(int i) const {
      return begin + static_cast<std::uint32_t>(i % kSlots * kTileBytes);
    }
    std::uint32_t full(int i) const {
      return begin + static_cast<std::uint32_t>(kSlots * kTileBytes + i % kSlots * 16);
    }
    std::uint32_t empty(int i) const { return full(i) + 8; }
    static std::uint32_t parity(int i) { return static_cast<std::uint32_t>(i / kSlots) & 1; }
  };

  void operator()(const Params& p) const {
    const Ring ring{ptx::shared_begin()};
    const std::uint32_t thread = ptx::tid_x();
    if (thread == 0) {
      for (int i = 0; i < kSlots; ++i) {
        ptx::mbarrier_init(ring.full(i), 1);
        ptx::mbarrier_init(ring.empty(i), 4);
      }
      if (p.bug != PipelineBug::kNoPublish) ptx::fence_mbarrier_init();
    }
    ptx::bar_sync();
    if (thread >= 128) {
      if (thread == 128) produce(p, ring);
    } else {
      consume(p, ring, thread);
    }
  }

  void produce(const Params& p, const Ring& ring) const {
    for (int i = 0; i < kTiles; ++i) {
      if (p.bug != PipelineBug::kNoWaitForEmpty)
        ptx::mbarrier_wait(ring.empty(i), Ring::parity(i) ^ 1);
      std::uint32_t bytes = kTileBytes;
      if (p.bug == PipelineBug::kTooFewExpected) bytes -= 128;
      if (p.bug == PipelineBug::kTooManyExpected) bytes += 128;
      if (p.bug == PipelineBug::kNoExpectation) {
        ptx::mbarrier_arrive(ring.full(i));
      } else {
        ptx::mbarrier_arrive_expect_tx(ring.full(i), bytes);
      }
      std::uint32_t to = ring.tile(i);
      if (p.bug == PipelineBug::kWrongSlot) to += 128;
      if (p.bug == PipelineBug::kBoxBeyondMemory) to += 1024 * kSlots * 4;
      if constexpr (kTransposed != 0) {
        ptx::cp_async_bulk_tensor(to, p.b, {{0, 64 * i, 0, 0, 0}}, ring.full(i));
      } else {
        ptx::cp_async_bulk_tensor(to, p.b, {{64 * i, 0, 0, 0, 0}}, ring.full(i));
      }
    }
  }

  void consume(const Params& p, const Ring& ring, std::uint32_t thread) const {
    const std::uint32_t row = thread / 32 * 16 + thread % 32 / 4;
    const std::uint32_t pair = thread % 4;
    float c[8][4] = {};
    for (int i = 0; i < kTiles; ++i) {
      std::uint32_t a[4][4];
      for (std::uint32_t s = 0; s < 4; ++s) {
        const std::uint32_t* const at =
            p.a + row * (32 * kTiles) + static_cast<std::uint32_t>(i) * 32 + 8 * s + pair;
        a[s][0] = trial::load_word(at);
        a[s][1] = trial::load_word(at + 8 * 32 * kTiles);
        a[s][2] = trial::load_word(at + 4);
        a[s][3] = trial::load_word(at + 8 * 32 * kTiles + 4);
      }
      std::uint32_t parity = Ring::parity(i);
      if (p.bug == PipelineBug::kStaleParity) parity ^= 1;
      if (p.bug != PipelineBug::kNoWaitForFull) ptx::mbarrier_wait(ring.full(i), parity);
      if (p.bug == PipelineBug::kEarlyRelease && thread % 32 == 0)
        ptx::mbarrier_arrive(ring.empty(i));
      ptx::fence_registers(c);
      for (std::uint32_t(&step)[4] : a) ptx::fence_registers(step);
      if (p.bug != PipelineBug::kNoGroupBegin) ptx::wgmma_fence();
      for (std::uint32_t s = 0; s < 4; ++s) {
        const std::uint32_t step = p.bug == PipelineBug::kWrongColumns ? 0 : s;
        const std::uint64_t start = ring.tile(i) + step * (kTransposed != 0 ? 2048 : 32);
        const std::uint64_t b = std::uint64_t{1} << 62 | std::uint64_t{1024 >> 4} << 32 |
                                std::uint64_t{1} << 16 | start >> 4;
        ptx::wgmma_m64k16<kTransposed>(c, a[s], b, mhla::cuda::bfloat16{});
      }
      ptx::wgmma_commit_group();
      if (p.bug == PipelineBug::kAccumulatorWritten) c[1][1] += 1;
      if (p.bug != PipelineBug::kNoGroupWait) ptx::wgmma_wait_group<0>();
      ptx::fence_registers(c);
      const bool first = thread % 32 == 0;
      const bool skip = p.bug == PipelineBug::kOneArrivalTooFew && thread == 96;
      if (first && !skip && p.bug != PipelineBug::kEarlyRelease)
        ptx::mbarrier_arrive(ring.empty(i));
      if (p.bug == PipelineBug::kOneArrivalTooMany && thread == 1)
        ptx::mbarrier_arrive(ring.empty(i));
    }
    for (std::uint32_t j = 0; j < 8; ++j) {
      float* const at = p.c + row * 64 + 8 * j + 2 * pair;
      for (std::uint32_t i = 0; i < 4; ++i) {
        ptx::st_global_f32(at + i / 2 * 8 * 64 + i % 2, c[j][i]);
      }
    }
  }
};

/// A run of the kernel: what it computed, and the fault it ended with.
template <int kTransposed>
struct Trial {
  using K = StreamedProduct<kTransposed>;
  static constexpr int kDepth = 64 * K::kTiles;

  Trial(std::uint64_t seed, PipelineBug bug) : a(64 * kDepth), b(64 * kDepth), c(64 * 64) {
    for (int i = 0; i < 64; ++i) {
      for (int k = 0; k < kDepth; ++k) {
        a[static_cast<std::size_t>(i * kDepth + k)] = trial::bits(trial::number(i, k));
        const int at = kTransposed != 0 ? k * 64 + i : i * kDepth + k;
        b[static_cast<std::size_t>(at)] = trial::bits(trial::number(k, i + 3));
      }
    }
    Device device(seed);
    device.track("a", a.data(), a.bytes(), Access::kRead);
    device.track("b", b.data(), b.bytes(), Access::kRead);
    device.track("c", c.data(), c.size() * sizeof(float), Access::kWrite);
    const TensorMap map =
        tensor_map(trial::matrix_box(b, kTransposed != 0 ? 64 : std::uint64_t{kDepth}, 64));
    const typename K::Params params{map, reinterpret_cast<const std::uint32_t*>(a.data()), c.data(),
                                    bug};
    try {
      const Report report = device.launch<K>(1, params);
      EXPECT_EQ(report.bytes_read("b"), b.bytes());
      EXPECT_EQ(report.count("tensor loads"), std::uint64_t{K::kTiles});
      EXPECT_EQ(report.count("wgmma"), std::uint64_t{4 * K::kTiles});
    } catch (const Fault& found) {
      fault = found.kind;
      message = found.what();
    }
  }

  bool is_right() const {
    for (int i = 0; i < 64; ++i) {
      for (int n = 0; n < 64; ++n) {
        int sum = 0;
        for (int k = 0; k < kDepth; ++k) sum += trial::number(i, k) * trial::number(k, n + 3);
        if (c[static_cast<std::size_t>(i * 64 + n)] != static_cast<float>(sum)) return false;
      }
    }
    return true;
  }

  trial::Numbers a;
  trial::Numbers b;
  std::vector<float> c;
  std::optional<Kind> fault;
  std::string message;
};

TEST(AsyncPipeline, ComputesTheProduct) {
  for (const std::uint64_t seed : trial::kSeeds) {
    const Trial<0> by_n(seed, PipelineBug::kNone);
    EXPECT_EQ(by_n.message, "") << seed;
    EXPECT_TRUE(by_n.is_right()) << seed;
    const Trial<1> by_k(seed, PipelineBug::kNone);
    EXPECT_EQ(by_k.message, "") << seed;
    EXPECT_TRUE(by_k.is_right()) << seed;
  }
}

TEST(AsyncPipeline, FindsPlantedBugs) {
  // A bug that lets threads run on shows in what meets its consequences first.
  trial::expect_found<Trial<0>, PipelineBug>(
      {{PipelineBug::kNoWaitForFull, {Kind::kEarlyRead, Kind::kUninitialized}},
       {PipelineBug::kStaleParity, {Kind::kEarlyRead, Kind::kUninitialized, Kind::kDeadlock}},
       {PipelineBug::kNoWaitForEmpty, {Kind::kSlotInUse, Kind::kBytes}},
       {PipelineBug::kEarlyRelease, {Kind::kSlotInUse, Kind::kEarlyRead}},
       {PipelineBug::kTooFewExpected, {Kind::kBytes}},
       {PipelineBug::kTooManyExpected, {Kind::kDeadlock}},
       {PipelineBug::kNoExpectation, {Kind::kBytes, Kind::kEarlyRead, Kind::kUninitialized}},
       {PipelineBug::kOneArrivalTooFew, {Kind::kDeadlock}},
       {PipelineBug::kOneArrivalTooMany,
        {Kind::kBytes, Kind::kSlotInUse, Kind::kEarlyRead, Kind::kDeadlock}},
       {PipelineBug::kNoPublish, {Kind::kRace}},
       {PipelineBug::kNoGroupBegin, {Kind::kRegisters}},
       {PipelineBug::kAccumulatorWritten, {Kind::kRegisters}},
       {PipelineBug::kNoGroupWait, {Kind::kRegisters, Kind::kSlotInUse}},
       {PipelineBug::kWrongSlot, {Kind::kOutside}},
       {PipelineBug::kBoxBeyondMemory, {Kind::kOutside}}});
}

TEST(AsyncPipeline, WrongColumnsGiveWrongNumbers) {
  const Trial<0> run(0, PipelineBug::kWrongColumns);
  EXPECT_EQ(run.message, "");
  EXPECT_FALSE(run.is_right());
}

}  // namespace
}  // namespace emulator
