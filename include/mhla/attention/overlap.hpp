#pragma once

/// \file
/// Refuses outputs in the memory of an input, which would be overwritten before it is read.

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/overlap.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/policy/mixing_view.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// A matrix as a batch of one sequence with one head.
template <class T>
TensorView<const std::remove_const_t<T>> as_batch(const MatrixView<T>& m) {
  return {m.data, {1, m.rows, 1, m.cols}, {0, m.row_stride, 0, m.col_stride}};
}
template <class T>
TensorView<const T> as_batch(const TensorView<T>& t) {
  return t;
}
template <class T>
const TensorView<const T>& as_batch(const TensorView<const T>& t) {
  return t;
}

/// A tensor of a call and the name that errors give it.
template <class T>
struct NamedTensor {
  const char* name;
  TensorView<const T> elements;
};
/// Numbers of any type as elements of T, of which only the places count.
template <class T, class A>
TensorView<const T> places_of(std::span<const A> numbers) {
  return {reinterpret_cast<const T*>(numbers.data()),
          {1, 1, 1, static_cast<Index>(numbers.size_bytes() / sizeof(T))},
          {0, 0, 0, 1}};
}
/// The same of one or several mixing matrices.
template <class T, class A>
TensorView<const T> places_of(const MixingView<A>& m) {
  constexpr Index kSize = sizeof(A) / sizeof(T);
  return {reinterpret_cast<const T*>(m.storage().data()),
          {m.sequences(), 1, m.heads(), m.pattern().size() * kSize},
          {m.sequence_stride() * kSize, 0, m.head_stride() * kSize, 1}};
}
/// Throws if one of the first `written` tensors shares an element with any other.
template <class T>
void expect_separate(const char* function, std::span<const NamedTensor<T>> all,
                     std::size_t written) {
  for (std::size_t a = 0; a < written; ++a) {
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      if (overlap(all[a].elements, all[b].elements)) {
        fail_option(function, all[a].name, std::string("overlaps ") + all[b].name,
                    "memory of its own");
      }
    }
  }
}

/// Throws if `out` has two indices for one element, or shares an element with an input. An `out`
/// that is q itself passes: forms write an output after all that reads its query.
template <class In, class Out>
void expect_separate(const char* function, const In& in, const Out& out) {
  expect_distinct(function, "out", out);
  const auto& whole = as_batch(out);
  const auto expect = [&](const char* argument, const auto& tensor) {
    if (overlap(whole, as_batch(tensor))) {
      fail_option(function, "out", std::string("overlaps ") + argument,
                  "memory of its own, or exactly that of q");
    }
  };
  if (!same_elements(whole, as_batch(in.q))) expect("q", in.q);
  expect("k", in.k);
  expect("v", in.v);
  expect("normalizer_q", in.normalizer_q);
  expect("normalizer_k", in.normalizer_k);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
