#pragma once

/// \file
/// Gradients of the terms of a decaying mixing matrix, from the parts that decay_products_sm80.cuh
/// and score_products_sm80.cuh wrote, in a fixed order:
///
///     da_r      = lambda_r P_r + sum_i dm_ii
///     dlambda_r = a_r (P_r + lambda_r Q_r)
///
/// A thread block has a term of a matrix. Thread t adds the parts t, t + 128, ... The sums of
/// threads are added in pairs.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda {

struct DecaySumParameters {
  DecayArray terms;
  const float* parts;        ///< [matrices, count, 2, R]: P and Q
  std::int64_t count;        ///< 0: gradients are 0, and the terms are not read
  const float* intra_parts;  ///< [matrices, intra_count]
  std::int64_t intra_count;
  float* sums;          ///< [2, R] of the first matrix: da, then dlambda
  std::int64_t stride;  ///< numbers from da to dlambda
  std::int64_t item_stride;
  std::int64_t head_stride;
};

struct DecaySumsSm80 {
  using Params = DecaySumParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 3 * 4 * kThreads / 32;
  static constexpr int kBlocksPerMultiprocessor = 8;
  static constexpr int kRegisters = 64;

  static constexpr unsigned grid(const Params& p, int) {
    return static_cast<unsigned>(p.terms.matrices) * static_cast<unsigned>(p.terms.count);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const auto terms = static_cast<std::uint32_t>(p.terms.count);
    const auto matrix = static_cast<std::int32_t>(ptx::ctaid_x() / terms);
    const auto r = static_cast<std::int32_t>(ptx::ctaid_x() % terms);
    const float* const parts = p.parts + matrix * p.count * (2 * p.terms.count) + r;
    const float first = over_block(parts, p.count, 2 * p.terms.count, 0);
    const float slopes = over_block(parts + p.terms.count, p.count, 2 * p.terms.count, 1);
    const float intra = over_block(p.intra_parts + matrix * p.intra_count, p.intra_count, 1, 2);
    if (ptx::tid_x() != 0) return;
    const MixingArray of = p.terms.of(matrix);
    const float weight = p.count > 0 ? ptx::ld_global_nc_f32(of.row(0) + r) : 0;
    const float decay = p.count > 0 ? ptx::ld_global_nc_f32(of.row(1) + r) : 0;
    const std::int32_t batch = p.terms.heads.quotient(matrix);
    const std::int32_t head = matrix - batch * p.terms.heads.value();
    float* const to = p.sums + batch * p.item_stride + head * p.head_stride + r;
    ptx::st_global_f32(to, decay * first + intra);
    ptx::st_global_f32(to + p.stride, weight * (first + decay * slopes));
  }

 private:
  /// Returns the sum of `count` numbers, to thread 0.
  /// \param turn  number of the call, whose shared memory no other call uses
  static MHLA_DEVICE float over_block(const float* from, std::int64_t count, std::int64_t stride,
                                      std::uint32_t turn) {
    const std::uint32_t thread = ptx::tid_x();
    const std::uint32_t shared = ptx::shared_begin() + turn * (4 * kThreads / 32);
    float sum = 0;
    MHLA_CUDA_LOOP
    for (std::int64_t n = thread; n < count; n += kThreads) {
      sum += ptx::ld_global_nc_f32(from + n * stride);
    }
    MHLA_CUDA_UNROLL
    for (std::uint32_t mask = 1; mask < 32; mask *= 2) sum += ptx::shfl_bfly(sum, mask);
    if (thread % 32 == 0) ptx::st_shared_f32(shared + thread / 32 * 4, sum);
    ptx::bar_sync();
    if (thread != 0) return 0;
    MHLA_CUDA_UNROLL
    for (std::uint32_t warp = 1; warp < kThreads / 32; ++warp) {
      sum += ptx::ld_shared_f32(shared + 4 * warp);
    }
    return sum;
  }
};

}  // namespace mhla::cuda
