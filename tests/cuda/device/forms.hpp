#pragma once

/// \file
/// Plain functions that call the library's forms on device memory. nvcc compiles forms.cu, once per
/// (D, E) and type; the C++ compiler compiles the tests.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "mhla/cuda/launch/problem.cuh"

namespace device_test {

/// A call of cuda::bidirectional or cuda::causal; tensors with strides in bytes.
struct FormCall {
  bool causal;
  std::int32_t batch, heads;
  mhla::cuda::TokenBlocks query_blocks, key_blocks;
  mhla::cuda::Operator op;
  mhla::cuda::ConstTokenTensor q, k, v;
  mhla::cuda::TokenTensor o;
  const float* mixing;  ///< [Mq, Mk] each
  void* workspace;
  std::size_t workspace_bytes;
  mhla::cuda::Device device;
  const float* gain = nullptr;          ///< [E]
  mhla::cuda::ConstTokenTensor gate{};  ///< [B, Nq, H, E]
  const float* query_angles = nullptr;  ///< [Nq, D], only for RotaryForms
  const float* key_angles = nullptr;    ///< [Nk, D], only for RotaryForms
  std::int64_t head_stride = 0;         ///< of mixing matrices, and of their gradients
  std::int64_t item_stride = 0;
  std::int32_t query_prefix = 0, key_prefix = 0;  ///< tokens before the blocks
  const std::uint32_t* pattern = nullptr;         ///< of mixing matrices, on the device
  bool own_maps = false;                          ///< those of cuda_test::CallShape
  const bool* query_mask = nullptr;               ///< [B, Nq], on the device
  const bool* key_mask = nullptr;                 ///< [B, Nk], on the device
  const std::int32_t* offsets = nullptr;          ///< of the items, packed into one, on the device

  std::int64_t queries() const { return query_prefix + query_blocks.tokens(); }
  std::int64_t keys() const { return key_prefix + key_blocks.tokens(); }
  /// Batch items and tokens of tensors. Packed tensors have one item.
  std::int64_t items() const { return offsets == nullptr ? batch : 1; }
  std::int64_t query_rows() const { return offsets == nullptr ? queries() : batch * queries(); }
  std::int64_t key_rows() const { return offsets == nullptr ? keys() : batch * keys(); }
  /// Rows and columns of a mixing matrix.
  std::int64_t rows() const { return (query_prefix > 0 ? 1 : 0) + query_blocks.blocks(); }
  std::int64_t columns() const { return (key_prefix > 0 ? 1 : 0) + key_blocks.blocks(); }
};

/// Streams that take one token after another; tensors [B, 1, H, .].
struct StreamCall {
  std::int32_t batch, heads;
  std::int64_t block_length, blocks;  ///< W, M
  mhla::cuda::Operator op;
  mhla::cuda::ConstTokenTensor q, k, v;
  mhla::cuda::TokenTensor o;
  const float* mixing;  ///< [M, M], or decaying terms [2, R]
  void* state;
  std::size_t state_bytes;
  const std::int32_t* sequence_of = nullptr;  ///< the items of a step, on the device
  bool own_maps = false;
};

/// The parts of a cuda::Plan that tests compare.
struct FormPlan {
  const char* form;  ///< its name; "split keys" for that kernel of the quadratic form
  std::size_t workspace_bytes;
};

/// The functions of the library for these widths and this type. T is cuda::bfloat16 or cuda::half,
/// or float, whose forms have no streams.
template <class T, int D, int E>
struct Forms {
  static FormPlan plan(const FormCall& call);
  static void run(const FormCall& call, cudaStream_t stream);
  static std::size_t state_bytes(const StreamCall& call);
  static void start(const StreamCall& call, cudaStream_t stream);
  static void start(const StreamCall& call, std::int64_t sequence, cudaStream_t stream);
  static void step(const StreamCall& call, cudaStream_t stream);
  /// Prefills of `tokens` tokens, with tensors [B, tokens, H, .], after `seen` tokens.
  static std::size_t prefill_bytes(const StreamCall& call, std::int64_t seen, std::int64_t tokens);
  static void prefill(const StreamCall& call, std::int64_t seen, std::int64_t tokens,
                      void* workspace, std::size_t workspace_bytes, cudaStream_t stream);
};

/// The forms with a rotary embedding, of D = 64 and 128: rotary_forms.cu.
template <class T, int D, int E>
struct RotaryForms {
  static FormPlan plan(const FormCall& call);
  static void run(const FormCall& call, cudaStream_t stream);
};

/// Returns cuda::current_device().
mhla::cuda::Device current_device();

}  // namespace device_test
