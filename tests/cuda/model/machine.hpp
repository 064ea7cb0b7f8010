#pragma once

/// \file
/// The devices that times are predicted for, in numbers, each with its source:
///
///     [sheet]     the vendor's data sheet or white paper
///     [measured]  on an H100, by bash benchmarks/run.sh --cuda --roofline (benchmarks/cuda), or as
///                 published of copies and products on that device
///     [assumed]   not measured by us or for these kernels: the first thing to replace
///
/// The prediction is no better than these.

#include <cstdint>

#include "cuda/model/control_flow.hpp"
#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::model {

struct Machine {
  const char* name;
  Arch arch;                        ///< whose kernels it runs
  int multiprocessors;              ///< [sheet]
  double clock;                     ///< Hz under load [sm_90: measured; A100: base to boost]
  double peak_bandwidth;            ///< of device memory, bytes a second: what the floor is of
  double bandwidth;                 ///< what a large copy reaches
  double cache_bandwidth;           ///< of the second cache, bytes a second [sm_90: measured]
  double multiprocessor_bandwidth;  ///< into one multiprocessor, bytes a second [assumed]
  double cache_bytes;               ///< of the second cache [sheet]
  double wgmma;   ///< multiply-adds a clock and multiprocessor [sheet: rate of 16-bit products]
  double mma;     ///< the same by mma.sync [sm_90: measured, 0.62 of wgmma]
  double launch;  ///< seconds from a kernel to the next, empty ones [sm_90: measured]
  double early;   ///< the same if that is launched early
};

/// H200: 4.3 TB/s [measured, copy], 60 MB; what is not device memory is as on an H100, which is the
/// same chip. H100: 3.35 TB/s [sheet], 3.04 [measured], 50 MB. A100: 2.0 TB/s [sheet], 1.75
/// [assumed], 40 MB.
inline constexpr Machine kMachines[] = {
    {"H200", Arch::kSm90a, 132, 1.81e9, 4.3e12, 4.3e12, 7.4e12, 109e9, 60e6, 2048, 1260, 1.96e-6,
     0.82e-6},
    {"H100", Arch::kSm90a, 132, 1.81e9, 3.35e12, 3.04e12, 7.4e12, 109e9, 50e6, 2048, 1260, 1.96e-6,
     0.82e-6},
    {"A100", Arch::kSm80, 108, 1.41e9, 2.0e12, 1.75e12, 4.0e12, 80e9, 40e6, 0, 1024, 2.25e-6,
     2.25e-6},
};

/// Warp instructions that a multiprocessor issues a clock [sheet: four schedulers].
inline constexpr double kIssue = 4;
/// Of the second cache, what a kernel still finds of what the one before wrote last, and read it in
/// the opposite order [assumed].
inline constexpr double kKept = 1.0 / 3;

/// Clocks from an instruction to one that needs its result [assumed, from published
/// microbenchmarks]. One warp alone issues the others every kDependent clocks: an arithmetic
/// instruction takes 4, and every second one waits for the one before.
inline constexpr double kDependent = 2;
struct Latency {
  std::uint32_t operation;
  double clocks;
};
inline constexpr Latency kLatencies[] = {
    {kSharedLoad, 30}, {kMatrixLoad, 33}, {kMma, 33}, {kShuffle, 25}, {kWgmma, 60}, {kBarrier, 30},
};
/// Clocks from a block's start to its first bytes, and from its last bytes to its end [assumed].
inline constexpr double kBlock = 1500;

}  // namespace mhla::cuda::model
