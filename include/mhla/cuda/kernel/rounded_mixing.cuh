#pragma once

/// \file
/// Rounds the mixing coefficients to T, or to high + low, for mixing_sm90.cuh. Otherwise each of
/// its thread blocks would round them again:
///
///     high_ib = T(m_ib),  low_ib = T(m_ib - high_ib);  0 if row i does not use b
///
/// A thread block has a row of a matrix, a thread two columns at a time. Device memory: m once, 2
/// or 4 bytes written per coefficient.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/tile/outputs.cuh"

namespace mhla::cuda {

template <class T, Precision P>
struct RoundedMixingSm80 {
  using Params = MixingParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = 8;
  static constexpr int kRegisters = 40;

  static constexpr unsigned grid(const Params& p, int) {
    return static_cast<unsigned>(p.matrices) * static_cast<unsigned>(p.rows);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const auto rows = static_cast<std::uint32_t>(p.rows);
    const auto matrix = static_cast<std::int32_t>(ptx::ctaid_x() / rows);
    const auto row = static_cast<std::int32_t>(ptx::ctaid_x() % rows);
    const std::int64_t stride = RoundedMixing::stride(p.columns);
    const std::int32_t end = p.end(row);
    const float* const from = p.matrix(matrix).row(row);
    ptx::griddepcontrol_wait();
    ptx::griddepcontrol_launch_dependents();
    MHLA_CUDA_LOOP
    for (auto b = static_cast<std::int32_t>(2 * ptx::tid_x()); b < stride; b += 2 * kThreads) {
      const float x = b < end ? ptx::ld_global_nc_f32(from + b) : 0;
      const float y = b + 1 < end ? ptx::ld_global_nc_f32(from + b + 1) : 0;
      const Parts parts = parts_of<T>(x, y);
      const std::int64_t to = 2 * (ptx::ctaid_x() * stride + b);
      ptx::st_global(p.rounded.high + to, parts.high);
      if constexpr (P == Precision::kPair) ptx::st_global(p.rounded.low + to, parts.low);
    }
  }
};

}  // namespace mhla::cuda
