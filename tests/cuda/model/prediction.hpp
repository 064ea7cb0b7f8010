#pragma once

/// \file
/// Predicts the time of a case of the benchmarks on an H100:
///
///     time = launches * 6 us + (1 + exposed) * bytes / (2.85 TB/s)
///
/// The plan counts the bytes (cuda/launch/traffic.cuh). `exposed` is the overlap factor of a family
/// of kernels: work that copies do not hide, as a share of the time of the copies. The constants
/// fit the times of benchmarks/cuda/README.md. Two cases take longer than the model has for: mixing
/// of 2048 blocks waits for products and L2, and a step of 64 heads leaves multiprocessors idle.

#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "cuda/cases.hpp"
#include "mhla/cuda/launch/gradient_layout.cuh"
#include "mhla/cuda/launch/plan.cuh"

namespace mhla::cuda::model {

inline constexpr double kLaunch = 6e-6;        ///< seconds per kernel in a stream
inline constexpr double kBandwidth = 2.85e12;  ///< bytes per second of a copy by a kernel

/// Kernels that one call launches, and their overlap factor.
struct Family {
  std::string_view name;
  int launches;
  double exposed;
};
inline constexpr Family kQuadratic{"quadratic", 1, 0.2};
/// With cross-query denominators an item issues a fifth more instructions, by machine code. No time
/// is measured.
inline constexpr Family kCrossQuadratic{"quadratic", 1, 0.24};
inline constexpr Family kFused{"fused", 1, 0.5};
inline constexpr Family kThreeStage{"three-stage", 3, 0};
/// A head of 1024 tokens and (64, 64) takes 277,000 warp instructions, by machine code. The fused
/// form issues 1.86 per clock. No time is measured.
inline constexpr Family kFusedGradient{"fused", 2, 0.55};
/// For 32 tokens of wan_1300m eight warps of the kernel for queries take about 1050 instructions
/// each, and those of the kernel for keys 720, by machine code. At 1.86 per clock the kernels take
/// 245 and 168 us, and their bytes 143 and 157 us. No time is measured.
inline constexpr Family kBlockGradient{"blocks", 9, 0.21};
inline constexpr Family kStep{"step", 1, 0.22};

constexpr double seconds(const Family& family, double bytes) {
  return family.launches * kLaunch + (1 + family.exposed) * bytes / kBandwidth;
}

struct Prediction {
  Family family;
  double seconds;
};

/// A form on an H100: bfloat16, [B, N, H, D].
inline constexpr Device kH100{Arch::kSm90a, 132};
template <int D, int E>
Problem problem_of(const cuda_bench::Case& c, Denominator denominator) {
  const TokenBlocks blocks = cuda_bench::token_blocks(c.shape);
  const auto heads = static_cast<std::int32_t>(c.shape.heads);
  const auto tensor = [&]<class Byte>(int width) {
    const std::int64_t row = 2 * width, token = row * heads;
    return BasicTokenTensor<Byte>{nullptr, blocks.tokens() * token, row, token};
  };
  Problem problem{.q = tensor.template operator()<const unsigned char>(D),
                  .k = tensor.template operator()<const unsigned char>(D),
                  .v = tensor.template operator()<const unsigned char>(E),
                  .o = tensor.template operator()<unsigned char>(E),
                  .batch = static_cast<std::int32_t>(c.shape.batch),
                  .heads = heads,
                  .query_blocks = blocks,
                  .key_blocks = blocks,
                  .op = {},
                  .causal = c.form == cuda_bench::Form::kCausal};
  problem.op.denominator = denominator;
  return problem;
}
template <int D, int E>
Plan h100_plan(const cuda_bench::Case& c, Denominator denominator) {
  return plan<D, E>(problem_of<D, E>(c, denominator), kH100);
}

inline Plan h100_plan(const cuda_bench::Case& c, Denominator denominator) {
  if (c.shape.width == 64) return h100_plan<64, 64>(c, denominator);
  if (c.shape.width == 72) return h100_plan<72, 72>(c, denominator);
  return c.shape.values == 128 ? h100_plan<128, 128>(c, denominator)
                               : h100_plan<128, 256>(c, denominator);
}

inline Prediction predict(const cuda_bench::Case& c,
                          Denominator denominator = Denominator::kKeySum) {
  if (c.form == cuda_bench::Form::kStep) {
    return {kStep, seconds(kStep, cuda_bench::whole_cost(c).bytes)};
  }
  const Plan plan = h100_plan(c, denominator);
  const bool crosses = denominator == Denominator::kCrossQuery;
  const Family& family = plan.form == Form::kQuadratic ? (crosses ? kCrossQuadratic : kQuadratic)
                         : plan.form == Form::kFused   ? kFused
                                                       : kThreeStage;
  return {family, seconds(family, static_cast<double>(plan.traffic.total()))};
}

/// Predicts all gradients of a bidirectional case of (D, D) that one or two kernels compute, with
/// the sums of the mixing matrix's. L2 holds the summaries that one kernel keeps.
template <int D>
Prediction predict_gradients(const cuda_bench::Case& c) {
  GradientProblem problem{};
  problem.forward = problem_of<D, D>(c, Denominator::kKeySum);
  problem.wants = {true, true, true, true, false, false};
  const GradientPlan plan = GradientLayout<D, D, false, false>(problem, {}, nullptr, kH100).plan;
  if (plan.staged) {
    return {kBlockGradient, seconds(kBlockGradient, static_cast<double>(plan.traffic.total()))};
  }
  if (!plan.fused) throw std::invalid_argument(c.label() + ": other kernels compute gradients");
  return {kFusedGradient, seconds(kFusedGradient, static_cast<double>(plan.traffic.tensors))};
}

}  // namespace mhla::cuda::model
