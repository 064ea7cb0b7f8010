#pragma once

/// \file
/// The operator written with cuBLAS: strided batched products for summaries, mixing and read-outs,
/// and small kernels for feature maps, masks and divisions.
///
///     phi(K), z       kernel             S_b = phi(K_b)^T V_b      product, batch of pairs * M
///     S~ = m S        product, pairs     z~ = m z                  product in float, pairs
///     phi(Q)          kernel             O = phi(Q_i) S~_i         product, batch of pairs * M
///     causal: P = phi(Q_i) phi(K_i)^T product, masked by a kernel, O += P V_i product
///     O / den         kernel
///
/// Tensors are already in the layout that suits cuBLAS, [B, H, M, W, .]. The permutation from [B,
/// N, H, .] is not measured. Blocks must be whole. Products are bfloat16 with sums in float.

#include <cublas_v2.h>

#include <vector>

#include "cuda/cases.hpp"
#include "cuda/definition.hpp"
#include "cuda/device_memory.hpp"
#include "cuda/forms.hpp"

namespace mhla::cuda_bench {

/// Owns a cuBLAS handle.
class Cublas {
 public:
  Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  ~Cublas();

  operator cublasHandle_t() const { return handle_; }  // NOLINT(google-explicit-constructor)

 private:
  cublasHandle_t handle_ = nullptr;
};

/// One operand of a batch of products: row-major matrices `stride` numbers apart, each either
/// transposed or not.
struct Factor {
  const void* data;
  long long stride;
  bool transposed = false;
};

/// C = A B + beta C for `count` matrices C [rows, columns], all bfloat16 or all float.
struct Product {
  int rows, columns, depth;
  Factor a;  ///< [rows, depth], or [depth, rows] if transposed
  Factor b;  ///< [depth, columns], or [columns, depth] if transposed
  void* c;
  long long stride;  ///< of C
  int count;
  float beta = 0;
  cudaDataType type = CUDA_R_16BF;
};

/// Runs a batch of products.
/// \throws cuda_error with cuBLAS' name of the error
void multiply(cublasHandle_t handle, const Product& product, cudaStream_t stream);

/// The operator of a case, on the data of a call.
class CublasPeer {
 public:
  CublasPeer(const Case& c, const Call& call, const std::vector<float>& mixing,
             cudaStream_t stream);

  void run(cudaStream_t stream);

  /// Returns an output row. Call it after run() is done.
  std::vector<Bits> row(const Row& row) const;

 private:
  bool causal_;
  int width_, values_, pairs_, blocks_, length_;  // D, E, B*H, M, W
  std::int64_t heads_;
  std::vector<std::int32_t> places_;  // position of every token in the order of blocks
  Cublas handle_;
  DeviceArray<Bits> q_, k_, v_, features_q_, features_k_, summaries_, mixtures_, weights_, out_;
  DeviceArray<Bits> mixing_;                             // coefficients of the sums over blocks
  DeviceArray<float> float_mixing_, diagonal_;           // the same in float; m_ii
  DeviceArray<float> key_sums_, mixed_key_sums_, sums_;  // z, z~, row sums of P
};

}  // namespace mhla::cuda_bench
