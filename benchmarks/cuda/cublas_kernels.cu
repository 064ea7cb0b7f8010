#include <cuda_bf16.h>

#include "cuda/cublas_kernels.hpp"
#include "mhla/cuda/launch/error.cuh"

namespace mhla::cuda_bench {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

using Pair = __nv_bfloat162;

__device__ std::int64_t thread_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ std::int64_t warp_index() { return thread_index() / 32; }
__device__ int lane() { return static_cast<int>(threadIdx.x % 32); }

__device__ float phi(float x) { return fmaxf(x, 0.0f) + 1e-6f; }

__device__ float sum_of_warp(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}

/// One thread per 8 numbers of a row.
__global__ void to_block_order_kernel(const uint4* from, uint4* to, const std::int32_t* places,
                                      std::int64_t pairs, std::int64_t heads, std::int64_t tokens,
                                      int pieces) {
  const std::int64_t i = thread_index();
  if (i >= pairs * tokens * pieces) return;
  const std::int64_t piece = i % pieces, h = i / pieces % heads;
  const std::int64_t t = i / pieces / heads % tokens, b = i / pieces / heads / tokens;
  to[((b * heads + h) * tokens + places[t]) * pieces + piece] = from[i];
}

__global__ void features_kernel(const Pair* x, Pair* out, std::int64_t size) {
  const std::int64_t i = thread_index();
  if (i >= size) return;
  const float2 value = __bfloat1622float2(x[i]);
  out[i] = __floats2bfloat162_rn(phi(value.x), phi(value.y));
}

/// One thread per two columns of a block.
__global__ void features_and_sums_kernel(const Pair* x, Pair* out, float2* sums,
                                         std::int64_t blocks, int length, int columns) {
  const std::int64_t i = thread_index();
  if (i >= blocks * columns) return;
  const std::int64_t begin = i / columns * length * columns + i % columns;
  float2 sum{0, 0};
  for (int t = 0; t < length; ++t) {
    const std::int64_t place = begin + static_cast<std::int64_t>(t) * columns;
    const float2 value = __bfloat1622float2(x[place]);
    const Pair feature = __floats2bfloat162_rn(phi(value.x), phi(value.y));
    const float2 rounded = __bfloat1622float2(feature);
    out[place] = feature;
    sum.x += rounded.x;
    sum.y += rounded.y;
  }
  sums[i] = sum;
}

/// One warp per row.
__global__ void mask_kernel(__nv_bfloat16* weights, float* sums, const float* diagonal,
                            std::int64_t rows, int per_pair, int length) {
  const std::int64_t row = warp_index();
  if (row >= rows) return;
  const int t = static_cast<int>(row % length);
  const float m = diagonal[row / length % per_pair];
  float sum = 0;
  for (int j = lane(); j < length; j += 32) {
    __nv_bfloat16& weight = weights[row * length + j];
    const float masked = j <= t ? m * __bfloat162float(weight) : 0.0f;
    weight = __float2bfloat16_rn(masked);
    sum += masked;
  }
  sum = sum_of_warp(sum);
  if (lane() == 0) sums[row] = sum;
}

/// One warp per row.
__global__ void divide_kernel(Pair* out, const Pair* features, const float2* key_sums,
                              const float* sums, std::int64_t rows, int length, int columns,
                              int value_columns) {
  const std::int64_t row = warp_index();
  if (row >= rows) return;
  const Pair* const q = features + row * columns;
  const float2* const z = key_sums + row / length * columns;
  float sum = 0;
  for (int d = lane(); d < columns; d += 32) {
    const float2 feature = __bfloat1622float2(q[d]), key_sum = z[d];
    sum += feature.x * key_sum.x + feature.y * key_sum.y;
  }
  sum = sum_of_warp(sum) + (sums != nullptr ? sums[row] : 0.0f);
  const float factor = 1 / sum;
  for (int e = lane(); e < value_columns; e += 32) {
    Pair& pair = out[row * value_columns + e];
    const float2 value = __bfloat1622float2(pair);
    pair = __floats2bfloat162_rn(value.x * factor, value.y * factor);
  }
}

unsigned thread_blocks(std::int64_t items, int of_one) {
  return static_cast<unsigned>((items + of_one - 1) / of_one);
}

const Pair* pairs_of(const Bits* x) { return reinterpret_cast<const Pair*>(x); }
Pair* pairs_of(Bits* x) { return reinterpret_cast<Pair*>(x); }

void expect_launched(const char* kernel) { cuda::expect_success(cudaGetLastError(), kernel); }

}  // namespace

void to_block_order(const Bits* from, Bits* to, const std::int32_t* places, std::int64_t pairs,
                    std::int64_t heads, std::int64_t tokens, int width, cudaStream_t stream) {
  const int pieces = width / 8;
  to_block_order_kernel<<<thread_blocks(pairs * tokens * pieces, kThreads), kThreads, 0, stream>>>(
      reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(to), places, pairs, heads,
      tokens, pieces);
  expect_launched("to_block_order");
}

void features(const Bits* x, Bits* out, std::int64_t size, cudaStream_t stream) {
  features_kernel<<<thread_blocks(size / 2, kThreads), kThreads, 0, stream>>>(
      pairs_of(x), pairs_of(out), size / 2);
  expect_launched("features");
}

void features_and_sums(const Bits* x, Bits* out, float* sums, std::int64_t blocks, int length,
                       int width, cudaStream_t stream) {
  const int columns = width / 2;
  features_and_sums_kernel<<<thread_blocks(blocks * columns, kThreads), kThreads, 0, stream>>>(
      pairs_of(x), pairs_of(out), reinterpret_cast<float2*>(sums), blocks, length, columns);
  expect_launched("features_and_sums");
}

void mask(Bits* weights, float* sums, const float* diagonal, std::int64_t blocks, int per_pair,
          int length, cudaStream_t stream) {
  const std::int64_t rows = blocks * length;
  mask_kernel<<<thread_blocks(rows, kWarps), kThreads, 0, stream>>>(
      reinterpret_cast<__nv_bfloat16*>(weights), sums, diagonal, rows, per_pair, length);
  expect_launched("mask");
}

void divide(Bits* out, const Bits* features, const float* key_sums, const float* sums,
            std::int64_t blocks, int length, int width, int values, cudaStream_t stream) {
  const std::int64_t rows = blocks * length;
  divide_kernel<<<thread_blocks(rows, kWarps), kThreads, 0, stream>>>(
      pairs_of(out), pairs_of(features), reinterpret_cast<const float2*>(key_sums), sums, rows,
      length, width / 2, values / 2);
  expect_launched("divide");
}

}  // namespace mhla::cuda_bench
