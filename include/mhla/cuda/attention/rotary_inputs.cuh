#pragma once

/// \file
/// Rotary embedding of a form on a device, and its checks. NoRotary is a type of its own, so that
/// calls without an embedding instantiate no kernels that rotate.

#include <cstdint>
#include <string>
#include <type_traits>

#include "mhla/core/matrix.hpp"
#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// No rotary embedding.
struct NoRotary {};

/// Rotary embedding after the feature maps. Features 2 j and 2 j + 1 of phi(q) and phi(k) rotate
/// together, only in numerators (Inputs::normalizer_q of the CPU's forms does the same). A row of
/// angles holds the cosine and the sine of each pair: RotaryTable::row() of kInterleaved in device
/// memory. For kHalves, permute the features of q and k into such pairs. Rows are aligned to 16
/// bytes. D is a multiple of 16.
struct Rotary {
  MatrixView<const float> query_angles{};  ///< [Nq, D]
  MatrixView<const float> key_angles{};    ///< [Nk, D]
};

namespace detail {

/// Rejects rotary embeddings without kernels.
/// \tparam R  NoRotary or Rotary
template <int D, DeviceScalar T, class R>
constexpr bool has_rotary_kernels() {
  constexpr bool kRotary = std::is_same_v<R, Rotary>;
  static_assert(!kRotary || Width<D>::kWholeTiles,
                "rotary embedding has kernels for D that are multiples of 16");
  static_assert(!kRotary || !std::is_same_v<T, float>,
                "rotary embedding has kernels for bfloat16 and half, not for float32");
  return true;
}

/// Describes the angles for kernels.
/// \throws shape_error unless they are [tokens, D]; option_error unless their rows are aligned to
///         16 bytes.
inline RotaryAngles rotary_angles(const char* function, const char* argument,
                                  MatrixView<const float> x, Index tokens, Index D) {
  expect_size(function, argument, x.rows, x.cols, tokens, D, false);
  const auto begin = reinterpret_cast<std::uintptr_t>(x.data) % 16;
  const auto stride = static_cast<std::int32_t>(tokens > 1 ? x.row_stride : D);
  if (begin != 0 || x.col_stride != 1 || stride % 4 != 0 ||
      (tokens > 1 && stride != x.row_stride)) {
    fail_option(function, argument,
                "has strides " + shape_text({x.row_stride, x.col_stride}) + " and begins " +
                    std::to_string(begin) + " bytes after a multiple of 16",
                "dense rows that begin at multiples of 16 bytes");
  }
  return {x.data, stride};
}

inline void add_rotary(const char*, const NoRotary&, Index, Problem&) {}

/// Adds a rotary embedding to the problem.
/// \throws shape_error, option_error for angles that do not fit.
inline void add_rotary(const char* function, const Rotary& rotary, Index D, Problem& problem) {
  if (problem.causal && problem.op.denominator != Denominator::kNone) {
    fail_option(function, "op", "has a denominator",
                "none: causal forms with a rotary embedding have no denominator");
  }
  problem.rotary = true;
  problem.query_angles = rotary_angles(function, "rotary.query_angles", rotary.query_angles,
                                       problem.queries.tokens(problem.query_blocks), D);
  problem.key_angles = rotary_angles(function, "rotary.key_angles", rotary.key_angles,
                                     problem.keys.tokens(problem.key_blocks), D);
}

/// \throws option_error for absent angles, which only a plan may leave out.
inline void expect_angles(const char* function, const Problem& problem) {
  const bool absent = problem.query_angles.data == nullptr || problem.key_angles.data == nullptr;
  if (problem.rotary && absent) fail_option(function, "rotary", "is null", "pointers to data");
}

}  // namespace detail
}  // namespace mhla::cuda
