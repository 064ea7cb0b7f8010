#pragma once

/// \file
/// Mistakes that compilers detect, each with a message. An overload with Refused is chosen only for
/// a mistake, and its message is the first error, instead of a list of candidates.

#include "mhla/core/arch.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

enum class Mistake {
  kNone,
  kTensors,
  kElements,
  kBlocks,
  kMixing,
  kOptions,
  kCrossing,
  kTemporary,
  kOffsets,
  kShape,
  kBytes
};

/// Cannot be instantiated: its static assertion states the mistake.
/// \tparam X  types of the arguments, so that compilers name these
template <Mistake m, class... X>
struct Refused {
  static_assert(m != Mistake::kTensors,
                "mhla: q, k and v are Eigen matrices with a token a row (of an expression its "
                ".eval()), or inputs(q, k, v) of Tensors, or inputs(q, k, v, {B, N, H, D}) of "
                "pointers");
  static_assert(m != Mistake::kElements,
                "mhla: q, k and v have elements of one type: float, double, Eigen::half or "
                "Eigen::bfloat16");
  static_assert(m != Mistake::kBlocks,
                "mhla: after the tensors a call has the blocks, such as "
                "mhla::Contiguous(tokens, 64), then the mixing matrix");
  static_assert(m != Mistake::kMixing,
                "mhla: after the blocks a call has the mixing matrix, of double for tensors of "
                "double, else of float: locality<double>(blocks), MixingMatrix<float>(matrix)");
  static_assert(m != Mistake::kOptions,
                "mhla: after the mixing matrix a call may have an Operator{Relu{}}, the output, of "
                "the elements of q, and a Call{.executor = pool}, in this order");
  static_assert(m != Mistake::kCrossing,
                "mhla: CrossQuery reads later queries, so no causal form takes it: KeySum or "
                "NoNormalizer");
  static_assert(m != Mistake::kTemporary,
                "mhla: a view of this temporary would dangle: give it a name first");
  static_assert(m != Mistake::kOffsets,
                "mhla: offsets of sequences are std::ptrdiff_t: copy them into a "
                "std::vector<mhla::Index>");
  static_assert(m != Mistake::kShape,
                "mhla: matrices and tensors have their shape: leave out {B, N, H, D}, or pass "
                "pointers, inputs(q.data(), k.data(), v.data(), {B, N, H, D})");
  static_assert(m != Mistake::kBytes,
                "mhla: memory that a call is lent is of bytes: a std::vector<std::byte> of "
                "*_workspace_bytes(...) or *_kept_bytes(...)");
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
