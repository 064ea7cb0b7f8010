#pragma once

/// \file
/// What the device computes (Operator), and on what (Problem).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// The choices that make one member of the family; the same as mhla::Operator, as numbers.
struct Operator {
  FeatureMap query_map = FeatureMap::relu();
  FeatureMap key_map = FeatureMap::relu();
  Denominator denominator = Denominator::kKeySum;
  float eps = 0;    ///< added to the denominator
  float scale = 1;  ///< multiplies phi(q), in numerator and denominator
  Precision summaries = Precision::kSingle;
  float norm_eps = 1e-6f;  ///< of the norm of outputs, where there is a gain

  bool operator==(const Operator&) const = default;
};

/// One call: the tensors of a batch, its blocks and what is computed.
struct Problem {
  ConstTokenTensor q;  ///< [B, Nq, H, D]
  ConstTokenTensor k;  ///< [B, Nk, H, D]
  ConstTokenTensor v;  ///< [B, Nk, H, E]
  TokenTensor o;       ///< [B, Nq, H, E]
  std::int32_t batch;
  std::int32_t heads;
  TokenBlocks query_blocks;
  TokenBlocks key_blocks;
  Operator op;
  OutputNorm norm{};
  bool rotary = false;  ///< phi(q) and phi(k) turn, in numerators alone
  RotaryAngles query_angles{};
  RotaryAngles key_angles{};
  bool causal;  ///< a token reads itself and earlier ones; query_blocks are key_blocks then, and
                ///< runs

  constexpr std::int32_t pairs() const { return batch * heads; }
  constexpr Normalization normalization() const { return {op.denominator, op.scale, op.eps}; }
};

/// So many heads of so many batch items.
struct HeadGroup {
  std::int32_t batch;
  std::int32_t heads;
};

/// The part of a problem from a head on, as far as there is so much.
constexpr Problem part_of(const Problem& problem, BatchHead first, HeadGroup size) {
  const auto least = [](std::int32_t a, std::int32_t b) { return a < b ? a : b; };
  Problem part = problem;
  part.q.data = problem.q.head(first);
  part.k.data = problem.k.head(first);
  part.v.data = problem.v.head(first);
  part.o.data = problem.o.head(first);
  if (problem.norm.gated) part.norm.gate.data = problem.norm.gate.head(first);
  part.batch = least(size.batch, problem.batch - first.batch);
  part.heads = least(size.heads, problem.heads - first.head);
  return part;
}

/// The problem with so many key blocks, of which only their number counts.
constexpr Problem with_key_blocks(const Problem& problem, std::int32_t blocks) {
  Problem other = problem;
  other.key_blocks = TokenBlocks(1, 1, blocks, 1, 1, 1);
  return other;
}

/// Calls visit(part) for all heads in such groups.
template <class Visit>
constexpr void for_parts(const Problem& problem, HeadGroup group, const Visit& visit) {
  for (std::int32_t batch = 0; batch < problem.batch; batch += group.batch) {
    for (std::int32_t head = 0; head < problem.heads; head += group.heads) {
      visit(part_of(problem, {batch, head}, group));
    }
  }
}

/// The device a plan is for: device.cuh asks for the current one.
struct Device {
  Arch arch;  ///< of the code that the program has for it
  std::int32_t multiprocessors;
  /// What the bits of outputs depend on besides, which ranks compare; a plan does not.
  std::int32_t capability = 0;  ///< of computing, such as 90
  std::int32_t toolkit = 0;     ///< version of CUDA that made the kernels, such as 12080
  /// Shared memory that a thread block may have, in bytes. The plan takes kernels that fit.
  std::int32_t shared_bytes = shared_limit(arch);

  /// The instruction set of the kernels that calls take: those of sm_90a where they fit.
  constexpr Arch kernels() const {
    return shared_bytes < shared_limit(Arch::kSm90a) ? Arch::kSm80 : arch;
  }
};

/// The device with kernels of another instruction set. Those of sm_80 run on every device: with
/// them an H100 tests what other devices run. Calls for sm_90a are refused where the program has no
/// such code.
constexpr Device with_arch(Device device, Arch arch) {
  device.arch = arch;
  return device;
}

/// The device with less shared memory per thread block: with kLeastShared an A100 or H100 tests
/// what RTX devices run.
constexpr Device with_shared_bytes(Device device, std::int32_t bytes) {
  device.shared_bytes = bytes;
  return device;
}

}  // namespace mhla::cuda
