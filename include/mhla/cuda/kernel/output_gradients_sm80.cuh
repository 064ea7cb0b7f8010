#pragma once

/// \file
/// Turns gradients of outputs into gradients of numerators and denominators, token by token:
///
///     den_t = d_t scale + eps
///     dN_t  = scale dO_t / den_t         [E], rounded to T
///     c_t   = -(dN_t . o_t)              gradient of d_t, if there is a denominator
///
/// With Denominator::kKeySum, d_t is phi(q_t) . z~_i; a causal form adds the sum over the token's
/// own block. With Denominator::kCrossQuery, d_t is the mixed score. A token whose dO is all zero
/// gets zeros, whatever its denominator is. A token whose denominator is 0 also gets zeros: its
/// outputs, 0 or infinite, are constants.
///
/// Let outputs be normalised and gated (tile/output_norm.cuh): y = n gain silu(g), with n = o r and
/// r = 1 / sqrt(mean of o^2 + eps). Then the kernel first computes
///
///     dg_t = dy_t n_t gain silu'(g_t)
///     dO_t = r (x_t - n_t (mean of n_t x_t)),     x_t = dy_t silu(g_t) gain
///
/// where o are outputs before norm and gate. r_t is stored for the gradient of the gain.
///
/// Eight threads share each token. A thread block has 64 slots of a block of one pair.
/// Shared memory: none. Device memory: q, dO, o and the gate once, dN, c and dg once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/occupancy.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/shared_tokens.cuh"
#include "mhla/cuda/tile/output_norm.cuh"
#include "mhla/cuda/tile/split_rows.cuh"

namespace mhla::cuda {

struct OutputGradientParameters {
  ConstTokenTensor q;     ///< [B, Nq, H, D], read for kKeySum
  ConstTokenTensor dout;  ///< [B, Nq, H, E]
  ConstTokenTensor out;   ///< [B, Nq, H, E], read with a denominator or a norm
  TokenTensor dn;         ///< [B, Nq, H, E]
  float* weights;         ///< c [pairs, M, W] with a denominator
  TokenBlocks blocks;
  std::int32_t heads;
  FeatureMap map;
  Normalization normalization;
  const float* key_sums;    ///< z~ [pairs, M, D] of kKeySum
  const float* intra_sums;  ///< [pairs, M, W] of kKeySum in causal forms, or null
  const float* scores;      ///< [pairs, M, W] of kCrossQuery
  OutputNorm norm;
  TokenTensor dgate;     ///< [B, Nq, H, E] with a gate
  float* inverse_norms;  ///< r [pairs, M, W] with a norm
};

/// Derivative of g / (1 + e^-g).
MHLA_DEVICE float silu_derivative(float g) {
  const float sigmoid = ptx::rcp_approx(1 + ptx::ex2_approx(g * -1.442695041f));
  return sigmoid * (1 + g * (1 - sigmoid));
}

/// Turns dO, the gradient of outputs before a norm, into dN, given the sum of weights d.
/// Returns true if dN may be nonzero: `any` (dO is not all zero) and the denominator is not 0.
template <int E>
MHLA_DEVICE bool divide_gradients(const Normalization& by, float d, bool any, SplitRow<E>& dout) {
  const float factor = by.factor(d);
  const bool counts = any && !Normalization::infinite(factor);
  SplitRow<E>::each([&](int i, int j) { dout.x[i][j] = counts ? dout.x[i][j] * factor : 0; });
  return counts;
}

template <class T, int D, int E>
struct OutputGradientsSm80 {
  using Params = OutputGradientParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = resident_blocks(
      kThreads,
      32 + 48 * SplitRow<E>::kPieces + (std::is_same_v<T, float> ? 16 * SplitRow<D>::kPieces : 0),
      kSharedBytes);

  static constexpr unsigned grid(const Params& p, int pairs) {
    return SharedTokens<kThreads>::grid(p.blocks, pairs);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const SharedTokens<kThreads> tokens(p.blocks, p.heads);
    const std::uint32_t sharer = tokens.sharer, item = tokens.item;
    const BatchHead pair = tokens.pair;
    const std::int64_t first = std::int64_t{item} * p.blocks.slots();
    const bool key_sums = p.normalization.denominator == Denominator::kKeySum;
    const bool reads = p.norm.normed || p.normalization.denominator != Denominator::kNone;
    Queries z{};
    if (key_sums) z = Queries::load_floats(p.key_sums + std::int64_t{item} * D, sharer);
    tokens.for_each([&](std::int32_t slot, std::int32_t token) {
      const auto row = [&](const auto& x) {
        return token >= 0 && x.data != nullptr ? x.head(pair) + token * x.token_stride : nullptr;
      };
      const auto gradients = Values::template hold<T>(row(p.dout), sharer);
      const auto outputs = Values::template hold<T>(reads ? row(p.out) : nullptr, sharer);
      auto queries = Queries::template hold<T>(key_sums ? row(p.q) : nullptr, sharer);
      Values dout = Values::template of<T>(gradients);
      const Values o = Values::template of<T>(outputs);
      const bool any = any_nonzero(dout);
      if (p.norm.normed) {
        const unsigned char* const gate = p.norm.gated ? row(p.norm.gate) : nullptr;
        unsigned char* const dgate = p.norm.gated ? row(p.dgate) : nullptr;
        const float inverse = through_norm(p.norm, o, gate, dgate, sharer, dout);
        if (sharer == 0 && token >= 0) ptx::st_global_f32(p.inverse_norms + first + slot, inverse);
      }
      float d = 0;
      if (key_sums) {
        Queries::template apply_to<T>(p.map, queries, sharer);
        d = dot(Queries::template of<T>(queries), z);
        if (p.intra_sums != nullptr && token >= 0) {
          d += ptx::ld_global_nc_f32(p.intra_sums + first + slot);
        }
      } else if (p.scores != nullptr && token >= 0) {
        d = ptx::ld_global_nc_f32(p.scores + first + slot);
      }
      const bool counts = divide_gradients(p.normalization, d, any, dout);
      dout.template store<T>(row(p.dn), sharer);
      if (p.weights != nullptr) {
        const float along = dot(dout, o);
        if (sharer == 0 && slot < p.blocks.slots()) {
          ptx::st_global_f32(p.weights + first + slot, counts ? -along : 0);
        }
      }
    });
  }

 private:
  using Queries = SplitRow<D>;
  using Values = SplitRow<E>;

  /// Turns gradients of outputs into gradients of o, and computes dg. Returns r = 1 / the
  /// norm of o.
  static MHLA_DEVICE float through_norm(const OutputNorm& norm, const Values& o,
                                        const unsigned char* gate, unsigned char* dgate,
                                        std::uint32_t sharer, Values& dout) {
    const float inverse = ptx::rsqrt_approx(dot(o, o) * (1.0f / E) + norm.eps);
    const Values gain = Values::load_floats(norm.gain, sharer);
    if (norm.gated) {
      const Values g = Values::template load<T>(gate, sharer);
      Values dg;
      Values::each([&](int i, int j) {
        const float dn = dout.x[i][j] * o.x[i][j] * inverse;
        dg.x[i][j] = dout.x[i][j] != 0 ? dn * gain.x[i][j] * silu_derivative(g.x[i][j]) : 0;
        dout.x[i][j] *= silu(g.x[i][j]);
      });
      dg.template store<T>(dgate, sharer);
    }
    Values::each([&](int i, int j) { dout.x[i][j] *= gain.x[i][j]; });
    const float along = dot(o, dout) * inverse * inverse * (1.0f / E);
    Values::each(
        [&](int i, int j) { dout.x[i][j] = inverse * (dout.x[i][j] - o.x[i][j] * along); });
    return inverse;
  }
};

}  // namespace mhla::cuda
