#pragma once

/// \file
/// Tangents of outputs, token by token, from addends of the tangent n' of the numerator:
///
///     n'_t = sum of the addends of t / s              s: their scale
///     r_t  = phi(q_t) . z~_i
///     r'_t = phi'(q_t) q'_t . z~_i + phi(q_t) . z~'_i
///     o'_t = scale (n'_t - r'_t o_t) / (scale r_t + eps)     0 where the denominator is 0
///
/// Without denominators o'_t = scale n'_t. Eight threads share each token. A thread block has 64
/// slots of a block of one pair.
/// Shared memory: none. Device memory: addends, o, q and phi'(q) q' once, o' once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/occupancy.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/shared_tokens.cuh"
#include "mhla/cuda/tile/split_rows.cuh"

namespace mhla::cuda {

struct OutputTangentParameters {
  /// Addends of n' [B, Nq, H, E], along q, k, v and the mixing matrix, or null
  ConstTokenTensor parts[4];
  float unit;           ///< 1 / s, a power of two
  TokenTensor tangent;  ///< o' [B, Nq, H, E]
  TokenBlocks blocks;
  std::int32_t heads;
  Normalization normalization;
  // Tensors of Denominator::kKeySum:
  ConstTokenTensor out;       ///< o [B, Nq, H, E]
  ConstTokenTensor q;         ///< [B, Nq, H, D]
  ConstTokenTensor features;  ///< phi'(q) q' [B, Nq, H, D], or null
  FeatureMap map;
  const float* key_sums;          ///< z~ [pairs, M, D]
  const float* key_sum_parts[2];  ///< addends of z~' [pairs, M, D], or null
};

template <class T, int D, int E>
struct OutputTangentsSm80 {
  using Params = OutputTangentParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = resident_blocks(
      kThreads, 40 + 32 * SplitRow<D>::kPieces + 24 * SplitRow<E>::kPieces, kSharedBytes);

  static constexpr unsigned grid(const Params& p, int pairs) {
    return SharedTokens<kThreads>::grid(p.blocks, pairs);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const SharedTokens<kThreads> tokens(p.blocks, p.heads);
    const std::uint32_t sharer = tokens.sharer, item = tokens.item;
    const BatchHead pair = tokens.pair;
    const bool divides = p.normalization.denominator == Denominator::kKeySum;
    Queries z{}, dz{};
    if (divides) {
      const std::int64_t first = std::int64_t{item} * D;
      z = Queries::load_floats(p.key_sums + first, sharer);
      for (const float* const part : p.key_sum_parts) {
        if (part != nullptr) add(Queries::load_floats(part + first, sharer), dz);
      }
    }
    tokens.for_each([&](std::int32_t /*slot*/, std::int32_t token) {
      const auto row = [&](const auto& x) {
        return token >= 0 && x.data != nullptr ? x.head(pair) + token * x.token_stride : nullptr;
      };
      Values n{};
      MHLA_CUDA_UNROLL
      for (const ConstTokenTensor& part : p.parts) {
        add(Values::template load<T>(row(part), sharer), n);
      }
      float factor = p.normalization.scale;
      if (divides) {
        auto q = Queries::template hold<T>(row(p.q), sharer);
        Queries::template apply_to<T>(p.map, q, sharer);
        const Queries phi = Queries::template of<T>(q);
        const float along =
            dot(phi, dz) + dot(Queries::template load<T>(row(p.features), sharer), z);
        const Values o = Values::template load<T>(row(p.out), sharer);
        factor = p.normalization.factor(dot(phi, z));
        Values::each([&](int i, int j) { n.x[i][j] = n.x[i][j] * p.unit - along * o.x[i][j]; });
      } else {
        factor *= p.unit;
      }
      const bool constant = Normalization::infinite(factor);
      Values::each([&](int i, int j) { n.x[i][j] = constant ? 0 : factor * n.x[i][j]; });
      n.template store<T>(row(p.tangent), sharer);
    });
  }

 private:
  using Queries = SplitRow<D>;
  using Values = SplitRow<E>;

  /// y += x.
  template <int kWidth>
  static MHLA_DEVICE void add(const SplitRow<kWidth>& x, SplitRow<kWidth>& y) {
    SplitRow<kWidth>::each([&](int i, int j) { y.x[i][j] += x.x[i][j]; });
  }
};

}  // namespace mhla::cuda
