#include "cuda/cublas_peer.hpp"

#include <bit>
#include <string>

#include "cuda/cublas_kernels.hpp"

namespace mhla::cuda_bench {
namespace {

void expect_cublas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw cuda::cuda_error(std::string(call) + " failed: " + cublasGetStatusName(status) + " (" +
                         cublasGetStatusString(status) + ")");
}

/// The nearest bfloat16 of a finite number, ties to even.
Bits rounded(float x) {
  const auto word = std::bit_cast<std::uint32_t>(x);
  return static_cast<Bits>((word + 0x7FFFu + (word >> 16 & 1u)) >> 16);
}

/// Position of every token in the order of blocks.
std::vector<std::int32_t> places(const cuda::TokenBlocks& blocks) {
  std::vector<std::int32_t> place(static_cast<std::size_t>(blocks.tokens()));
  for (std::int32_t b = 0; b < blocks.blocks(); ++b) {
    for (std::int32_t slot = 0; slot < blocks.slots(); ++slot) {
      const std::int32_t token = blocks.token(blocks.origin(b), slot);
      place.at(static_cast<std::size_t>(token)) = b * blocks.slots() + slot;
    }
  }
  return place;
}

/// The mixing matrix for the product over blocks. The causal form keeps only coefficients below the
/// diagonal.
std::vector<float> of_other_blocks(std::vector<float> mixing, std::size_t m, bool causal) {
  for (std::size_t i = 0; causal && i < m; ++i) {
    for (std::size_t b = i; b < m; ++b) mixing[i * m + b] = 0;
  }
  return mixing;
}

}  // namespace

Cublas::Cublas() { expect_cublas(cublasCreate(&handle_), "cublasCreate"); }
Cublas::~Cublas() { cublasDestroy(handle_); }

// cuBLAS reads matrices by columns. A row-major matrix is the transpose of what cuBLAS sees, and
// C^T = B^T A^T.
void multiply(cublasHandle_t handle, const Product& p, cudaStream_t stream) {
  expect_cublas(cublasSetStream(handle, stream), "cublasSetStream");
  const float one = 1;
  const auto operation = [](const Factor& x) { return x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  expect_cublas(cublasGemmStridedBatchedEx(
                    handle, operation(p.b), operation(p.a), p.columns, p.rows, p.depth, &one,
                    p.b.data, p.type, p.b.transposed ? p.depth : p.columns, p.b.stride, p.a.data,
                    p.type, p.a.transposed ? p.rows : p.depth, p.a.stride, &p.beta, p.c, p.type,
                    p.columns, p.stride, p.count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                "cublasGemmStridedBatchedEx");
}

CublasPeer::CublasPeer(const Case& c, const Call& call, const std::vector<float>& mixing,
                       cudaStream_t stream)
    : causal_(c.form == Form::kCausal),
      width_(call.width),
      values_(call.values),
      pairs_(static_cast<int>(c.pairs())),
      blocks_(call.blocks.blocks()),
      length_(call.blocks.slots()),
      heads_(call.heads),
      places_(places(call.blocks)) {
  const std::int64_t tokens = call.blocks.tokens(), all_blocks = std::int64_t{pairs_} * blocks_;
  const std::int64_t keys = pairs_ * tokens * width_, numbers = pairs_ * tokens * values_;
  const std::int64_t summaries = all_blocks * width_ * values_;
  const DeviceArray<std::int32_t> order(places_);
  const auto permuted = [&](const Bits* from, int width) {
    DeviceArray<Bits> to(pairs_ * tokens * width);
    to_block_order(from, to.data(), order.data(), pairs_, heads_, tokens, width, stream);
    return to;
  };
  q_ = permuted(call.q, width_);
  k_ = permuted(call.k, width_);
  v_ = permuted(call.v, values_);
  features_q_ = DeviceArray<Bits>(keys);
  features_k_ = DeviceArray<Bits>(keys);
  summaries_ = DeviceArray<Bits>(summaries);
  mixtures_ = DeviceArray<Bits>(summaries);
  out_ = DeviceArray<Bits>(numbers);
  key_sums_ = DeviceArray<float>(all_blocks * width_);
  mixed_key_sums_ = DeviceArray<float>(all_blocks * width_);
  if (causal_) {
    weights_ = DeviceArray<Bits>(all_blocks * length_ * length_);
    sums_ = DeviceArray<float>(pairs_ * tokens);
  }

  const auto m = static_cast<std::size_t>(blocks_);
  const std::vector<float> others = of_other_blocks(mixing, m, causal_);
  std::vector<Bits> bits;
  for (const float x : others) bits.push_back(rounded(x));
  std::vector<float> diagonal;
  for (std::size_t i = 0; i < m; ++i) diagonal.push_back(mixing[i * m + i]);
  mixing_ = DeviceArray<Bits>(bits);
  float_mixing_ = DeviceArray<float>(others);
  diagonal_ = DeviceArray<float>(diagonal);
  expect_success(cudaMemsetAsync(out_.data(), 0xFF, out_.bytes(), stream), "cudaMemsetAsync");
  expect_success(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void CublasPeer::run(cudaStream_t stream) {
  const int d = width_, e = values_, m = blocks_, w = length_, all = pairs_ * m;
  const long long keys = static_cast<long long>(w) * d, numbers = static_cast<long long>(w) * e;
  const int summary = d * e;
  const long long of_pair = static_cast<long long>(m) * summary;

  features_and_sums(k_.data(), features_k_.data(), key_sums_.data(), all, w, d, stream);
  features(q_.data(), features_q_.data(), q_.size(), stream);
  multiply(handle_,
           {d,
            e,
            w,
            {features_k_.data(), keys, true},
            {v_.data(), numbers},
            summaries_.data(),
            summary,
            all},
           stream);
  multiply(handle_,
           {m,
            summary,
            m,
            {mixing_.data(), 0},
            {summaries_.data(), of_pair},
            mixtures_.data(),
            of_pair,
            pairs_},
           stream);
  const long long of_pair_sums = static_cast<long long>(m) * d;
  multiply(handle_,
           {m,
            d,
            m,
            {float_mixing_.data(), 0},
            {key_sums_.data(), of_pair_sums},
            mixed_key_sums_.data(),
            of_pair_sums,
            pairs_,
            0,
            CUDA_R_32F},
           stream);
  multiply(
      handle_,
      {w, e, d, {features_q_.data(), keys}, {mixtures_.data(), summary}, out_.data(), numbers, all},
      stream);
  if (causal_) {
    const long long weights = static_cast<long long>(w) * w;
    multiply(handle_,
             {w,
              w,
              d,
              {features_q_.data(), keys},
              {features_k_.data(), keys, true},
              weights_.data(),
              weights,
              all},
             stream);
    mask(weights_.data(), sums_.data(), diagonal_.data(), all, m, w, stream);
    multiply(
        handle_,
        {w, e, w, {weights_.data(), weights}, {v_.data(), numbers}, out_.data(), numbers, all, 1},
        stream);
  }
  divide(out_.data(), features_q_.data(), mixed_key_sums_.data(), causal_ ? sums_.data() : nullptr,
         all, w, d, e, stream);
}

std::vector<Bits> CublasPeer::row(const Row& row) const {
  const auto tokens = static_cast<std::int64_t>(places_.size());
  const std::int64_t place = places_[static_cast<std::size_t>(row.token)];
  const std::int64_t pair = row.batch * heads_ + row.head;
  return fetch(out_.data() + (pair * tokens + place) * values_, values_);
}

}  // namespace mhla::cuda_bench
