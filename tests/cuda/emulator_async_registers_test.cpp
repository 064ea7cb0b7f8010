// Registers that groups of warps give and take, and barriers alone.

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "emulator/async_trial.hpp"
#include "emulator/device.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"

namespace emulator {
namespace {

namespace ptx = mhla::cuda::ptx;

/// One group gives, two take, of the 168 that each of 384 threads begins with.
template <int kGiven, int kTaken>
struct Trade {
  struct Params {
    bool one_warp;        // gives alone
    bool taken_first;     // the giver waits for the takers
    bool exchange_roles;  // gives what it has not
  };
  static constexpr int kThreads = 384, kSharedBytes = 0;

  void operator()(const Params& p) const {
    const std::uint32_t group = ptx::tid_x() / 128;
    if (group == 0) {
      if (p.one_warp && ptx::tid_x() >= 32) return;
      if (p.taken_first) ptx::bar_sync();
      if (p.exchange_roles) {
        ptx::setmaxnreg_inc<kGiven>();
      } else {
        ptx::setmaxnreg_dec<kGiven>();
      }
    } else {
      ptx::setmaxnreg_inc<kTaken>();
      if (p.taken_first) ptx::bar_sync();
    }
  }
};

template <class K>
void expect_fault(std::optional<Kind> kind, const typename K::Params& params) {
  for (const std::uint64_t seed : trial::kSeeds) {
    Device device(seed);
    EXPECT_EQ(trial::fault_of<K>(device, params), kind) << seed;
  }
}

TEST(AsyncRegisters, OnlyWhatIsThereCanBeTaken) {
  expect_fault<Trade<24, 240>>(std::nullopt, {});
  expect_fault<Trade<40, 232>>(std::nullopt, {});
  expect_fault<Trade<40, 240>>(Kind::kDeadlock, {});
  expect_fault<Trade<24, 240>>(Kind::kDeadlock, {false, true, false});
  expect_fault<Trade<24, 240>>(Kind::kDivergent, {true, false, false});
  expect_fault<Trade<24, 240>>(Kind::kRegisters, {false, false, true});
  expect_fault<Trade<176, 168>>(Kind::kRegisters, {});
}

enum class RegisterBug {
  kNone,
  kNoBarrier,      // before the number is read
  kOwnArrivalToo,  // the reader arrives instead of one writer
  kOldPhase,
  kNoPublish,
  kMisaligned,
  kNoArrivals,
  kParity,
  kNotMade,
};

/// Threads write a number in turn, each after the phase in which the one before arrived.
struct Turns {
  struct Params {
    RegisterBug bug;
  };
  static constexpr int kThreads = 32, kSharedBytes = 64;

  void operator()(const Params& p) const {
    const std::uint32_t thread = ptx::tid_x();
    const std::uint32_t number = ptx::shared_begin();
    const std::uint32_t barrier = number + (p.bug == RegisterBug::kMisaligned ? 4 : 8);
    if (thread == 0 && p.bug != RegisterBug::kNotMade) {
      ptx::mbarrier_init(barrier, p.bug == RegisterBug::kNoArrivals ? 0 : 1);
      if (p.bug != RegisterBug::kNoPublish) ptx::fence_mbarrier_init();
      ptx::st_shared(number, 0);
    }
    ptx::bar_sync();
    for (std::uint32_t turn = 0; turn < 32; ++turn) {
      if (turn == thread) {
        ptx::st_shared(number, ptx::ld_shared(number) + 1);
        ptx::mbarrier_arrive(barrier);
      }
      ptx::mbarrier_wait(barrier, (turn & 1) + (p.bug == RegisterBug::kParity ? 2 : 0));
      // All have passed before the next phase can end.
      ptx::bar_warp_sync();
    }
  }
};

TEST(AsyncBarrier, PassesNumbersFromThreadToThread) {
  expect_fault<Turns>(std::nullopt, {RegisterBug::kNone});
  expect_fault<Turns>(Kind::kRace, {RegisterBug::kNoPublish});
  expect_fault<Turns>(Kind::kOutside, {RegisterBug::kMisaligned});
  expect_fault<Turns>(Kind::kBytes, {RegisterBug::kNoArrivals});
  expect_fault<Turns>(Kind::kBytes, {RegisterBug::kParity});
  expect_fault<Turns>(Kind::kUninitialized, {RegisterBug::kNotMade});
}

/// One thread waits for the numbers of all others.
struct Gather {
  struct Params {
    RegisterBug bug;
  };
  static constexpr int kThreads = 64, kSharedBytes = 512;

  void operator()(const Params& p) const {
    const std::uint32_t thread = ptx::tid_x();
    const std::uint32_t numbers = ptx::shared_begin();
    const std::uint32_t barrier = numbers + 256;
    if (thread == 0) {
      ptx::mbarrier_init(barrier, 63);
      ptx::fence_mbarrier_init();
    }
    ptx::bar_sync();
    for (std::uint32_t round = 0; round < 3; ++round) {
      if (thread != 0) {
        ptx::st_shared(numbers + 4 * thread, thread);
        if (p.bug != RegisterBug::kOwnArrivalToo || thread != 40) ptx::mbarrier_arrive(barrier);
      } else {
        if (p.bug == RegisterBug::kOwnArrivalToo) ptx::mbarrier_arrive(barrier);
        const std::uint32_t parity = p.bug == RegisterBug::kOldPhase ? 1 : round & 1;
        if (p.bug != RegisterBug::kNoBarrier) ptx::mbarrier_wait(barrier, parity);
        for (std::uint32_t i = 1; i < 64; ++i) {
          if (ptx::ld_shared(numbers + 4 * i) != i) ptx::st_shared(1 << 30, 0);
        }
      }
      ptx::bar_sync();
    }
  }
};

TEST(AsyncBarrier, OrdersWhatCameBeforeTheArrivals) {
  expect_fault<Gather>(std::nullopt, {RegisterBug::kNone});
  for (const RegisterBug bug :
       {RegisterBug::kNoBarrier, RegisterBug::kOwnArrivalToo, RegisterBug::kOldPhase}) {
    for (const std::uint64_t seed : trial::kSeeds) {
      Device device(seed);
      const auto fault = trial::fault_of<Gather>(device, {bug});
      EXPECT_TRUE(fault == Kind::kRace || fault == Kind::kUninitialized) << seed;
    }
  }
}

}  // namespace
}  // namespace emulator
