#pragma once

/// \file
/// The widths of keys and values that kernels are made for.

namespace mhla::cuda {

/// (D, E) of keys and values: vision transformers with 64 and 72 channels a head, video with 128,
/// language with 128 and values twice as wide.
constexpr bool has_kernels(int d, int e) {
  return (d == 64 && e == 64) || (d == 72 && e == 72) || (d == 128 && (e == 128 || e == 256));
}

}  // namespace mhla::cuda
