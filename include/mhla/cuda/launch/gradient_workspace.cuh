#pragma once

/// \file
/// Arrays in the workspace of a gradient, besides the workspaces of its products.

#include <cstddef>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// Allocates consecutive arrays of a workspace, each aligned to 256 bytes.
class WorkspaceCursor {
 public:
  explicit constexpr WorkspaceCursor(unsigned char* begin) : begin_(begin) {}

  /// `count` numbers of 4 bytes, or null unless wanted.
  float* floats(bool wanted, std::int64_t count) {
    return static_cast<float*>(static_cast<void*>(bytes(wanted ? 4 * count : 0)));
  }
  /// A tensor [B, N, H, width] of 16-bit numbers, stored head by head.
  TokenTensor tensor(bool wanted, const Problem& problem, std::int64_t tokens, std::int64_t width) {
    const std::int64_t token = 2 * width, head = tokens * token, batch = problem.heads * head;
    return {bytes(wanted ? problem.batch * batch : 0), batch, head, token};
  }
  unsigned char* bytes(std::int64_t count) {
    unsigned char* const place = begin_ != nullptr && count > 0 ? begin_ + used_ : nullptr;
    used_ += (static_cast<std::size_t>(count) + 255) / 256 * 256;
    return place;
  }
  std::size_t used() const { return used_; }

 private:
  unsigned char* begin_;
  std::size_t used_ = 0;
};

/// Arrays in the workspace of a gradient. Arrays that the call does not need are null.
struct GradientArrays {
  TokenTensor out, query_features, key_features, dn;
  TokenTensor dquery_features[2], dkey_features[2];
  float *strict, *transposed;            // mixing matrices
  float *key_sums, *mixed_key_sums;      // z, z~
  float* intra_sums;                     // of denominators
  float *scores, *mixed_scores;          // of the cross-query denominator
  float* weights;                        // c
  float *query_sums, *mixed_query_sums;  // sum of c phi(q), and its mixture
  float* mixed_weights;                  // mixture of c, for the cross-query denominator
  float *inverse_norms, *gain_parts;
  float *mixing_parts, *intra_parts;
};

constexpr ConstTokenTensor read_only(const TokenTensor& x) {
  return {x.data, x.batch_stride, x.head_stride, x.token_stride};
}

}  // namespace mhla::cuda
