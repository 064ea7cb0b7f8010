#pragma once

/// \file
/// Cache of tensor maps for repeated calls. A map is encoded again only if its tensor has moved.

#include <cstddef>
#include <vector>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"

namespace mhla::cuda {

/// Tensor maps of a call's kernels, which ask for them in the same order each time.
class MapCache {
 public:
  /// Begins a call.
  void begin() { next_ = 0; }

  /// Returns the next map: the previous call's map if it was of the same box, otherwise
  /// encode(box).
  template <class Encode>
  const TensorMap& map(const TensorBox& box, const Encode& encode) {
    const std::size_t i = next_++;
    if (i == entries_.size()) {
      entries_.push_back({box, encode(box)});
    } else if (entries_[i].box != box) {
      entries_[i] = {box, encode(box)};
    }
    return entries_[i].map;
  }

 private:
  struct Entry {
    TensorBox box;
    TensorMap map;
  };
  std::vector<Entry> entries_;
  std::size_t next_ = 0;
};

}  // namespace mhla::cuda
