#pragma once

/// \file
/// Mixing matrices of a call on a device, [Mq, Mk], [H, Mq, Mk] or [B, H, Mq, Mk], or larger ones.

#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstdint>
#include <iterator>
#include <mhla/cuda/attention/inputs.cuh>
#include <mhla/cuda/attention/mixing_inputs.cuh>
#include <mhla/cuda/kernel/pattern_bits.cuh>
#include <optional>
#include <string>

#include "../arguments.hpp"
#include "partition.hpp"

namespace mhla_torch {

/// Describes matrices with dense rows. A row [Mk] serves as all rows.
template <class A>
mhla::cuda::MixingMatrices<A> matrices_of(A* data, const Tensor& t, const Partition& blocks) {
  const Index axes = t.dim();
  const auto stride = [&](Index axis) {
    return axis >= 0 && t.size(axis) > 1 ? t.stride(axis) : 0;
  };
  return {{data, blocks.rows(), blocks.columns(), stride(axes - 2)},
          stride(axes - 3),
          stride(axes - 4)};
}

/// \throws shape_error, option_error unless the matrices fit the blocks, batch items and heads.
inline void expect_mixing(const char* function, const Tensor& mixing, Index batch, Index heads,
                          const Partition& blocks) {
  const Index axes = mixing.dim();
  expect_type(function, "mixing", mixing, ScalarType::Float, axes == 3 || axes == 4 ? axes : 2);
  const std::array<Index, 4> all{batch, heads, blocks.rows(), blocks.columns()};
  const auto* const wanted = all.data() + 4 - axes;
  bool fits = true;
  std::string has, expected;
  for (Index axis = 0; axis < axes; ++axis) {
    const Index size = mixing.size(axis);
    const bool larger =
        (axis == axes - 2 && blocks.leading_rows) || (axis == axes - 1 && blocks.leading_columns);
    fits = fits && (larger ? size >= wanted[axis] : size == wanted[axis]);
    has += (axis > 0 ? ", " : "") + std::to_string(size);
    expected += (axis > 0 ? ", " : "") + std::to_string(wanted[axis]);
  }
  if (fits) return;
  const bool any = blocks.leading_rows || blocks.leading_columns;
  fail<mhla::shape_error>(function, "mixing", "has shape [" + has + "]",
                          (any ? "at least [" : "[") + expected + "]");
}

/// Returns the words of the pattern of a call's matrices, or null.
/// \throws shape_error, option_error unless it has as many words as mhla::cuda::pattern_bits().
inline const std::uint32_t* pattern_words(const char* function,
                                          const std::optional<Tensor>& pattern,
                                          const Partition& blocks) {
  if (!pattern) return nullptr;
  const auto words = offsets_view<std::int32_t>(function, "pattern", pattern);
  const mhla::cuda::PatternBits bits{static_cast<std::int32_t>(blocks.rows()),
                                     static_cast<std::int32_t>(blocks.columns())};
  if (blocks.terms > 0 || std::ssize(words) != bits.size()) {
    fail<mhla::shape_error>(function, "pattern", "has " + std::to_string(words.size()) + " words",
                            std::to_string(blocks.terms > 0 ? 0 : bits.size()));
  }
  return static_cast<const std::uint32_t*>(pattern->const_data_ptr());
}

}  // namespace mhla_torch
