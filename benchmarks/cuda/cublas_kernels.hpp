#pragma once

/// \file
/// Kernels between the products of cublas_peer.cpp. All tensors are [pairs, M, W, width].

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/forms.hpp"

namespace mhla::cuda_bench {

/// Computes to[pair, places[t], .] = from[b, t, h, .], with pair = b H + h.
void to_block_order(const Bits* from, Bits* to, const std::int32_t* places, std::int64_t pairs,
                    std::int64_t heads, std::int64_t tokens, int width, cudaStream_t stream);

/// Computes phi of every number.
/// \param size  even
void features(const Bits* x, Bits* out, std::int64_t size, cudaStream_t stream);

/// Computes phi of keys, and the sum of each block's rows.
/// \param blocks  number of blocks of all pairs
/// \param width   even
void features_and_sums(const Bits* x, Bits* out, float* sums, std::int64_t blocks, int length,
                       int width, cudaStream_t stream);

/// Computes weights[block, t, j] *= m_ii for j <= t, otherwise 0, and the sums of the weights'
/// rows.
/// \param per_pair  blocks of a pair, M
void mask(Bits* weights, float* sums, const float* diagonal, std::int64_t blocks, int per_pair,
          int length, cudaStream_t stream);

/// Computes out[block, t, .] /= features[block, t, .] . key_sums[block, .] + sums[block, t].
/// \param sums  null if there are none
void divide(Bits* out, const Bits* features, const float* key_sums, const float* sums,
            std::int64_t blocks, int length, int width, int values, cudaStream_t stream);

}  // namespace mhla::cuda_bench
