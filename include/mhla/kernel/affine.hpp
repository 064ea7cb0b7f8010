#pragma once

/// \file
/// The affine map of dense layers: y = x B + b, with B = W^T in the order that products read.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/kernel/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// y = x B + b, each element one chain of multiply-adds from b; `bias` may be null.
/// \param x [n,I], b [I,y.cols], bias [y.cols], y [n,y.cols]; rows are contiguous
template <class A>
void multiply_affine(MatrixView<const A> x, Rows<const A> b, const A* bias, MatrixView<A> y) {
  for (Index r = 0; r < y.rows && bias != nullptr; ++r) std::copy_n(bias, y.cols, y.row(r));
  multiply<A>({.out = {y.data, y.row_stride},
               .a = x,
               .b = b,
               .cols = y.cols,
               .start = bias == nullptr ? Start::kZero : Start::kTarget});
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
