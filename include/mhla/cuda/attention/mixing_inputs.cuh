#pragma once

/// \file
/// Mixing matrices and decaying terms of calls on a device, and their checks. Nothing here reads
/// device memory or calls CUDA.

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

#include "mhla/core/matrix.hpp"
#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda {

/// Mixing matrices of a call, or their gradients, in device memory: one, or by strides as many as
/// Operator::matrices says. Packed sequences are batch items. A matrix alone converts.
template <class A>
struct MixingMatrices : MatrixView<A> {
  Index head_stride = 0;  ///< elements from a head's matrix to the next, 0 if heads share it
  Index item_stride = 0;  ///< elements from a batch item's matrices to the next, 0 if items share
  /// pattern_bits() in device memory of a pattern that all matrices have, of exactly their blocks,
  /// or null. They have zeros outside of it, and three stages skip the zeros.
  const std::uint32_t* pattern = nullptr;

  constexpr MixingMatrices() = default;
  /// \param matrix  the first
  constexpr MixingMatrices(MatrixView<A> matrix, Index per_head = 0, Index per_item = 0)  // NOLINT
      : MatrixView<A>(matrix), head_stride(per_head), item_stride(per_item) {}
  constexpr MixingMatrices(A* data_, Index rows_, Index cols_, Index row_stride_)
      : MatrixView<A>(data_, rows_, cols_, row_stride_) {}
  template <std::same_as<std::remove_const_t<A>> N>
  requires(std::is_const_v<A>) constexpr MixingMatrices(MatrixView<N> matrix)  // NOLINT
      : MatrixView<A>(matrix) {}
  template <std::same_as<std::remove_const_t<A>> N>
  requires(std::is_const_v<A>) constexpr MixingMatrices(const MixingMatrices<N>& x)  // NOLINT
      : MatrixView<A>(x),
        head_stride(x.head_stride),
        item_stride(x.item_stride),
        pattern(x.pattern) {}
};

namespace detail {

/// Describes the mixing matrix for kernels.
/// \throws shape_error, option_error unless it is [rows, columns] with dense rows, or contains that
///         if `larger`.
inline MixingArray mixing_array(const char* function, MatrixView<const float> mixing, Index rows,
                                Index columns, bool larger, const char* argument = "mixing") {
  expect_size(function, argument, mixing.rows, mixing.cols, rows, columns, larger);
  if (mixing.data == nullptr) {
    fail_option(function, argument, "is null with shape " + shape_text({mixing.rows, mixing.cols}),
                "a pointer to data");
  }
  if (mixing.col_stride != 1 && columns > 1) {
    fail_option(function, argument, "has column stride " + std::to_string(mixing.col_stride), "1");
  }
  return {mixing.data, mixing.row_stride};
}

/// Rows and columns of a problem's mixing matrices, or of their gradients.
struct MixingShape {
  Index rows, columns;
  bool larger;  ///< larger matrices contain them
};
inline MixingShape mixing_shape(const Problem& problem) {
  if (problem.decays()) return {2, problem.op.decay_terms, false};
  return {problem.query_blocks.blocks(), problem.key_blocks.blocks(), problem.causal};
}

/// \throws option_error for decaying terms of a form that mixes later blocks too, or for more
///         terms than its kernel has states.
inline void expect_decay_terms(const char* function, const Operator& op, bool causal,
                               const char* why = "0: only causal forms mix by decaying terms") {
  if (op.decay_terms == 0 || (causal && op.decay_terms > 0 && op.decay_terms <= DecayArray::kMost))
    return;
  fail_option(function, "op.decay_terms", "is " + std::to_string(op.decay_terms),
              causal ? "0, or 1 to " + std::to_string(DecayArray::kMost) : std::string(why));
}

inline std::string text_of(Matrices matrices) {
  return matrices == Matrices::kShared    ? "kShared"
         : matrices == Matrices::kPerHead ? "kPerHead"
                                          : "kPerItemAndHead";
}

/// \throws option_error unless op.matrices is kShared, or kPerHead if heads `may` have matrices.
inline void expect_few_matrices(const char* function, Matrices matrices, bool may,
                                const char* why) {
  if (matrices == Matrices::kShared || (may && matrices == Matrices::kPerHead)) return;
  fail_option(function, "op.matrices", "is " + text_of(matrices), why);
}

/// \throws option_error for a stride along heads or items that share a matrix.
template <class A>
void expect_matrices(const char* function, const char* argument, const MixingMatrices<A>& mixing,
                     Matrices matrices) {
  const auto expect = [&](bool shared, const std::string& axis, Index stride) {
    if (!shared || stride == 0) return;
    fail_option(function, argument,
                "has " + axis + " stride " + std::to_string(stride) + ", and op.matrices is " +
                    text_of(matrices),
                "a stride of 0, or other op.matrices");
  };
  expect(matrices == Matrices::kShared, "head", mixing.head_stride);
  expect(matrices != Matrices::kPerItemAndHead, "item", mixing.item_stride);
}

/// Describes the mixing matrices of the problem's blocks, or their decaying terms. The causal form
/// takes the leading part of larger matrices.
inline MixingArray mixing_array(const char* function, const MixingMatrices<const float>& mixing,
                                const Problem& problem, const char* argument = "mixing") {
  expect_matrices(function, argument, mixing, problem.op.matrices);
  const MixingShape shape = mixing_shape(problem);
  MixingArray array =
      mixing_array(function, mixing, shape.rows, shape.columns, shape.larger, argument);
  array.item_stride = mixing.item_stride;
  array.head_stride = mixing.head_stride;
  if (mixing.pattern != nullptr && problem.decays()) {
    fail_option(function, argument, "has a pattern and decaying terms", "either");
  }
  array.strips = mixing.pattern;
  return array;
}

}  // namespace detail
}  // namespace mhla::cuda
