#pragma once

/// \file
/// Boxes of tensors as tensor copies move them: the tensor maps that the driver's encoder accepts,
/// and an iteration over the rows of a box. CUDA driver API, cuTensorMapEncodeTiled; PTX ISA,
/// "Tensors".

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"

namespace emulator {

/// Returns why the encoder refuses a box; empty if it does not. Strides may be in any order, and
/// elements may overlap.
inline std::string complaint(const mhla::cuda::TensorBox& box);

/// Makes the map of a box, as the driver's encoder does.
/// \throws std::invalid_argument for a box that the encoder refuses
inline mhla::cuda::TensorMap tensor_map(const mhla::cuda::TensorBox& box);

/// Returns the box of a map.
/// \throws std::invalid_argument if tensor_map did not make the map
inline mhla::cuda::TensorBox box_of(const mhla::cuda::TensorMap& map);

/// One row of a box.
struct BoxRow {
  std::uint32_t index;  ///< number of rows before it
  std::byte* memory;    ///< element `first`, in device memory
  int first;            ///< elements [first, last) of the row are inside the tensor
  int last;
};

/// Calls visit(BoxRow) for all rows of the box at `at`, in the order of shared memory.
template <class Visit>
void for_each_row(const mhla::cuda::TensorBox& box, const mhla::cuda::BoxOrigin& at, Visit visit);

// -------------------------------------------------------------------------------------------------

namespace detail {

/// Marks the maps that tensor_map made. The rest of a map is the box.
inline constexpr std::uint64_t kMapMark = 0x6d686c612d6d6170U;

}  // namespace detail

inline std::string complaint(const mhla::cuda::TensorBox& box) {
  constexpr std::uint64_t kMaxExtent = std::uint64_t{1} << 32;
  constexpr std::uint64_t kMaxStride = std::uint64_t{1} << 40;
  if (box.base == nullptr) return "no base";
  if (reinterpret_cast<std::uintptr_t>(box.base) % 16 != 0) return "base is no multiple of 16";
  for (int d = 0; d < 5; ++d) {
    const std::string dimension = std::to_string(d);
    if (box.extent[d] < 1 || box.extent[d] > kMaxExtent) {
      return "extent " + std::to_string(box.extent[d]) + " of dimension " + dimension;
    }
    if (box.box[d] < 1 || box.box[d] > 256) {
      return "box of " + std::to_string(box.box[d]) + " elements along dimension " + dimension;
    }
    if (d == 0) continue;
    const std::uint64_t stride = box.stride[d - 1];
    if (stride == 0 || stride % 16 != 0 || stride >= kMaxStride) {
      return "stride " + std::to_string(stride) + " of dimension " + dimension;
    }
  }
  if (box.box[0] % 8 != 0) {
    return "rows of " + std::to_string(box.box[0]) + " elements, not a multiple of 8";
  }
  return {};
}

inline mhla::cuda::TensorMap tensor_map(const mhla::cuda::TensorBox& box) {
  static_assert(sizeof(box) <= sizeof(mhla::cuda::TensorMap) - sizeof(std::uint64_t));
  if (const std::string text = complaint(box); !text.empty()) {
    throw std::invalid_argument("tensor map: " + text);
  }
  mhla::cuda::TensorMap map{};
  std::memcpy(map.opaque, &box, sizeof(box));
  map.opaque[15] = detail::kMapMark;
  return map;
}

inline mhla::cuda::TensorBox box_of(const mhla::cuda::TensorMap& map) {
  if (reinterpret_cast<std::uintptr_t>(&map) % 64 != 0) {
    throw std::invalid_argument("tensor map: its address is no multiple of 64");
  }
  if (map.opaque[15] != detail::kMapMark) throw std::invalid_argument("tensor map: not encoded");
  mhla::cuda::TensorBox box;
  std::memcpy(&box, map.opaque, sizeof(box));
  return box;
}

template <class Visit>
void for_each_row(const mhla::cuda::TensorBox& box, const mhla::cuda::BoxOrigin& at, Visit visit) {
  const auto extent = [&](int d) { return static_cast<std::int64_t>(box.extent[d]); };
  const std::int64_t begin = at.x[0];
  const std::int64_t width = box.box[0];
  const std::int64_t first = std::clamp<std::int64_t>(-begin, 0, width);
  const std::int64_t last = std::clamp<std::int64_t>(extent(0) - begin, first, width);
  std::uint32_t index = 0;
  std::uint32_t i[5] = {};
  for (i[4] = 0; i[4] < box.box[4]; ++i[4]) {
    for (i[3] = 0; i[3] < box.box[3]; ++i[3]) {
      for (i[2] = 0; i[2] < box.box[2]; ++i[2]) {
        for (i[1] = 0; i[1] < box.box[1]; ++i[1]) {
          bool inside = first < last;
          std::int64_t offset = (begin + first) * 2;
          for (int d = 1; d < 5; ++d) {
            const std::int64_t x = at.x[d] + static_cast<std::int64_t>(i[d]);
            inside = inside && x >= 0 && x < extent(d);
            if (inside) offset += x * static_cast<std::int64_t>(box.stride[d - 1]);
          }
          std::byte* const memory = inside ? static_cast<std::byte*>(box.base) + offset : nullptr;
          visit(BoxRow{index++, memory, static_cast<int>(first),
                       static_cast<int>(inside ? last : first)});
        }
      }
    }
  }
}

}  // namespace emulator
