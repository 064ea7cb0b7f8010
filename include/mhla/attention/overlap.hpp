#pragma once

/// \file
/// Refuses outputs in the memory of an input, which would be overwritten before it is read. Slices
/// of one packed buffer share no element although their addresses alternate, so elements are
/// compared: a and b share one if
///
///     sum_d i_d a.strides[d] - sum_d j_d b.strides[d] = b.data - a.data
///
/// for some indices i, j. Going from the largest stride to the smallest, what the others can still
/// reach leaves one to three coefficients each.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "mhla/attention/batch.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/tensor.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The sums c_0 s_0 + c_1 s_1 + ... over coefficients c in ranges.
class StridedSums {
 public:
  /// Adds a stride with coefficients 0..size - 1.
  void add(Index stride, Index size) {
    if (stride == 0 || size == 1) return;
    Term term = stride > 0 ? Term{stride, 0, size - 1} : Term{-stride, 1 - size, 0};
    for (int i = 0; i < count_; ++i) {
      if (terms_[i].stride != term.stride) continue;
      terms_[i].low += term.low;
      terms_[i].high += term.high;
      return;
    }
    int place = count_++;  // the largest stride first
    for (; place > 0 && terms_[place - 1].stride < term.stride; --place) {
      terms_[place] = terms_[place - 1];
    }
    terms_[place] = term;
  }

  /// Whether `target` is one of them; false if that takes more than kSteps steps to find out.
  bool reach(Index target) const {
    int steps = kSteps;
    return reach(0, target, steps);
  }

 private:
  static constexpr int kSteps = 1000;
  static constexpr int kTerms = 8;  // the axes of two tensors
  struct Term {
    Index stride, low, high;
  };
  struct Range {
    Index low, high;
  };

  /// The least and the largest sum of terms first.. .
  Range range(int first) const {
    Range sum{0, 0};
    for (int i = first; i < count_; ++i) {
      sum.low += terms_[i].low * terms_[i].stride;
      sum.high += terms_[i].high * terms_[i].stride;
    }
    return sum;
  }
  static Index floor_div(Index a, Index b) { return a / b - (a % b < 0 ? 1 : 0); }

  bool reach(int first, Index target, int& steps) const {
    if (first == count_) return target == 0;
    const auto [low, high] = range(first + 1);
    const Term& t = terms_[first];
    const Index begin = std::max(t.low, -floor_div(high - target, t.stride));
    const Index end = std::min(t.high, floor_div(target - low, t.stride));
    for (Index c = begin; c <= end && steps-- > 0; ++c) {
      if (reach(first + 1, target - c * t.stride, steps)) return true;
    }
    return false;
  }

  Term terms_[kTerms];
  int count_ = 0;
};

/// The least and the largest index of an element of t from t.data; 0 and -1 of none.
template <class T>
std::pair<Index, Index> reach_of(const TensorView<const T>& t) {
  Index low = 0, high = 0;
  for (std::size_t d = 0; d < t.shape.size(); ++d) {
    if (t.shape[d] == 0) return {0, -1};
    const Index last = (t.shape[d] - 1) * t.strides[d];
    (last < 0 ? low : high) += last;
  }
  return {low, high};
}

/// True if a and b have an element in common; false where strides are too odd to tell.
template <class T>
bool overlap(const TensorView<const T>& a, const TensorView<const T>& b) {
  const auto [a_low, a_high] = reach_of(a);
  const auto [b_low, b_high] = reach_of(b);
  if (a_high < a_low || b_high < b_low) return false;
  const auto bytes = static_cast<Index>(reinterpret_cast<std::uintptr_t>(b.data) -
                                        reinterpret_cast<std::uintptr_t>(a.data));
  constexpr Index kSize = sizeof(T);
  if (bytes % kSize != 0) return false;
  if (bytes / kSize + b_high < a_low || bytes / kSize + b_low > a_high) return false;
  StridedSums sums;
  for (std::size_t d = 0; d < a.shape.size(); ++d) {
    sums.add(a.strides[d], a.shape[d]);
    sums.add(-b.strides[d], b.shape[d]);
  }
  return sums.reach(bytes / kSize);
}

/// True if a and b are the same elements at the same indices.
template <class T>
bool same_elements(const TensorView<const T>& a, const TensorView<const T>& b) {
  bool same = a.data == b.data && a.shape == b.shape;
  for (std::size_t d = 0; d < a.shape.size(); ++d) {
    same = same && (a.shape[d] <= 1 || a.strides[d] == b.strides[d]);
  }
  return same;
}

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

/// Throws if `out` shares an element with an input, unless it is q itself: forms write an output
/// after all that reads its query.
template <class In, class Out>
void expect_separate(const char* function, const In& in, const Out& out) {
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
