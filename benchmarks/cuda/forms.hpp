#pragma once

/// \file
/// The library's forms on device tensors, as plain functions. nvcc compiles forms.cu once for each
/// (D, E). The C++ compiler compiles all else.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"

namespace mhla::cuda_bench {

/// A number of type bfloat16.
using Bits = std::uint16_t;

/// One call on dense [B, N, H, .] tensors of the device.
struct Call {
  std::int64_t batch, heads;
  int width, values;
  cuda::TokenBlocks blocks;
  bool causal;
  cuda::Operator op;
  const Bits* q;        ///< [B, N, H, D]
  const Bits* k;        ///< [B, N, H, D]
  const Bits* v;        ///< [B, N, H, E]
  const float* mixing;  ///< [M, M]
  Bits* o;              ///< [B, N, H, E]
  void* workspace;
  std::size_t workspace_bytes;
};

/// Properties of a cuda::Plan that the benchmarks print.
struct Planned {
  const char* form;  ///< name of the form
  const char* reason;
  const char* kernels;  ///< architecture of its kernels
  std::size_t workspace_bytes;
};

/// Runs cuda::bidirectional or cuda::causal.
template <int D, int E>
struct Forms {
  static Planned plan(const Call& call, const cuda::Device& device);
  static void run(const Call& call, const cuda::Device& device, cudaStream_t stream);
};

/// Calls f(Forms<D, E>{}) for the given widths.
template <class F>
auto with_widths(int width, int values, F&& f) {
  if (width == 64 && values == 64) return f(Forms<64, 64>{});
  if (width == 72 && values == 72) return f(Forms<72, 72>{});
  if (width == 128 && values == 128) return f(Forms<128, 128>{});
  if (width == 128 && values == 256) return f(Forms<128, 256>{});
  throw std::invalid_argument("no kernels of these widths");
}

inline Planned planned(const Call& call, const cuda::Device& device) {
  return with_widths(call.width, call.values,
                     [&](auto forms) { return decltype(forms)::plan(call, device); });
}

inline void run(const Call& call, const cuda::Device& device, cudaStream_t stream) {
  with_widths(call.width, call.values,
              [&](auto forms) { decltype(forms)::run(call, device, stream); });
}

}  // namespace mhla::cuda_bench
