#pragma once

/// \file
/// Consecutive arrays of a workspace.

#include <cstddef>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// Allocates consecutive arrays of a workspace, each aligned to 256 bytes. Without a workspace, it
/// counts their bytes.
class WorkspaceCursor {
 public:
  explicit constexpr WorkspaceCursor(unsigned char* begin) : begin_(begin) {}

  /// `count` numbers of 4 bytes, or null unless wanted.
  float* floats(bool wanted, std::int64_t count) {
    return static_cast<float*>(static_cast<void*>(bytes(wanted ? 4 * count : 0)));
  }
  /// A tensor [B, N, H, width] of the problem's type, stored head by head.
  constexpr TokenTensor tensor(bool wanted, const Problem& problem, std::int64_t tokens,
                               std::int64_t width) {
    const std::int64_t token = problem.number_bytes() * width, head = tokens * token,
                       batch = problem.heads * head;
    return {bytes(wanted ? problem.batch * batch : 0), batch, head, token};
  }
  constexpr unsigned char* bytes(std::int64_t count) {
    unsigned char* const place = begin_ != nullptr && count > 0 ? begin_ + used_ : nullptr;
    used_ += (static_cast<std::size_t>(count) + 255) / 256 * 256;
    return place;
  }
  constexpr std::size_t used() const { return used_; }

 private:
  unsigned char* begin_;
  std::size_t used_ = 0;
};

constexpr ConstTokenTensor read_only(const TokenTensor& x) {
  return {x.data, x.batch_stride, x.head_stride, x.token_stride};
}

}  // namespace mhla::cuda
