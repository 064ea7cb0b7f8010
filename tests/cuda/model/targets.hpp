#pragma once

/// \file
/// What the project aims at, and how many instructions kernels may issue.

#include <string_view>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::model {

/// Microseconds of a case (benchmarks/cuda/cases.hpp) on a machine.
struct Target {
  std::string_view machine, label;
  double good, ambitious;
};
inline constexpr Target kTargets[] = {
    {"H200", "wan_1300m", 170, 115},         {"H200", "dit_s_256_b256", 70, 58},
    {"H200", "dit_s_256_b64", 22, 17},       {"H200", "dit_s_256_b1", 6, 3.5},
    {"H200", "dit_s_512_b64", 75, 56},       {"H200", "dit_xl_512_b32", 120, 90},
    {"H200", "n4096_m64_b8", 90, 64},        {"H200", "t2048_h16_d64_b16", 160, 92},
    {"H200", "t2048_h4_e256_b16", 185, 150}, {"H200", "t8192_h96_w64", 640, 520},
    {"H200", "t8192_h96_w256", 380, 310},    {"H200", "t8192_h16_w64", 125, 95},
    {"H200", "t8192_h16_w256", 75, 52},      {"H200", "t32768_h16_w64", 480, 380},
    {"H200", "t131072_h16_d64", 900, 620},   {"H200", "step_h4096", 90, 72},
    {"A100", "wan_1300m", 340, 285},
};

/// For how long kernels of an architecture issue instructions, over the time of their memory (or of
/// the gap before a launch, if that is longer), in the case where that is most. More is a breach,
/// and so is far less: then the line is to be made strict again. Above 1 instructions hold the
/// memory up, and the line says why; a kernel without a line may have 1.
struct Limit {
  std::string_view kernel;  ///< its template
  Arch arch;                ///< of the device
  double most;
  const char* why = "";
};
inline constexpr double kSlack = 0.85;  ///< of `most`, from where on it is strict
inline constexpr Limit kLimits[] = {
    {"CausalReadOutSm80", Arch::kSm80, 0.87},
    {"CausalReadOutSm90", Arch::kSm90a, 0.40},
    {"FusedCausalSm90", Arch::kSm90a, 0.99},
    {"FusedSm80", Arch::kSm80, 0.79},
    {"FusedSm90", Arch::kSm90a, 0.61},
    {"MixingSm80", Arch::kSm80, 2.70,
     "each of a row's column tiles loads, splits and stores the coefficients for itself"},
    {"MixingSm90", Arch::kSm90a, 0.58},
    {"QuadraticSm80", Arch::kSm80, 1.00},
    {"QuadraticSm90", Arch::kSm90a, 0.70},
    {"ReadOutSm80", Arch::kSm80, 0.44},
    {"ReadOutSm90", Arch::kSm90a, 0.36},
    {"RoundedMixingSm80", Arch::kSm90a, 0.70},
    {"SplitQuadraticSm80", Arch::kSm80, 0.62},
    {"SplitQuadraticSm80", Arch::kSm90a, 0.56},
    {"StreamingStepSm80", Arch::kSm80, 0.51},
    {"StreamingStepSm80", Arch::kSm90a, 0.49},
    {"SummarySm80", Arch::kSm80, 0.56},
    {"SummarySm90", Arch::kSm90a, 0.32},
};

}  // namespace mhla::cuda::model
