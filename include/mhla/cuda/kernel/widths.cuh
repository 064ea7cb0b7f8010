#pragma once

/// \file
/// Widths of keys and values for which kernels exist.

namespace mhla::cuda {

/// Returns true if there are kernels for (D, E): vision transformers with 64 and 72 channels per
/// head, video with 128, language with 128 and values twice as wide.
constexpr bool has_kernels(int d, int e) {
  return (d == 64 && e == 64) || (d == 72 && e == 72) || (d == 128 && (e == 128 || e == 256));
}

}  // namespace mhla::cuda
