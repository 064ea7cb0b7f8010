#pragma once

/// \file
/// Finds elements that strided tensors share. Slices of one packed buffer share no element although
/// their addresses alternate, so elements are compared. Tensors a and b share an element if
///
///     sum_d i_d a.strides[d] - sum_d j_d b.strides[d] = b.data - a.data
///
/// for some indices i, j. Strides are tried from the largest to the smallest. The range that the
/// remaining strides can reach leaves one to three coefficients each. An element has two indices if
/// their differences, not all 0, times the strides sum to 0.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The sums c_0 s_0 + c_1 s_1 + ... over coefficients c in ranges.
class StridedSums {
 public:
  /// Adds a stride with coefficients low..high.
  void add(Index stride, Index low, Index high) {
    if (stride == 0) return;
    const Term term = stride > 0 ? Term{stride, low, high} : Term{-stride, -high, -low};
    for (int i = 0; i < count_; ++i) {
      if (terms_[i].stride != term.stride) continue;
      terms_[i].low += term.low;
      terms_[i].high += term.high;
      return;
    }
    int place = count_++;  // keeps strides descending
    for (; place > 0 && terms_[place - 1].stride < term.stride; --place) {
      terms_[place] = terms_[place - 1];
    }
    terms_[place] = term;
  }

  /// True if `target` is one of the sums; false if deciding takes more than kSteps steps.
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

  /// Smallest and largest sum of terms first.. .
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

/// Smallest and largest offset of an element of t from t.data; 0 and -1 for none.
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

/// True if a and b have an element in common; false where strides are too irregular to tell.
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
    sums.add(a.strides[d], 0, a.shape[d] - 1);
    sums.add(-b.strides[d], 0, b.shape[d] - 1);
  }
  return sums.reach(bytes / kSize);
}

/// True if a and b have the same elements at the same indices.
template <class T>
bool same_elements(const TensorView<const T>& a, const TensorView<const T>& b) {
  bool same = a.data == b.data && a.shape == b.shape;
  for (std::size_t d = 0; d < a.shape.size(); ++d) {
    same = same && (a.shape[d] <= 1 || a.strides[d] == b.strides[d]);
  }
  return same;
}

/// True if different indices name different elements, or strides are too irregular to tell.
inline bool distinct(const Shape& shape, const Shape& strides) {
  if (std::find(shape.begin(), shape.end(), Index{0}) != shape.end()) return true;
  for (std::size_t first = 0; first < shape.size(); ++first) {  // axis of the first difference
    if (shape[first] == 1) continue;
    StridedSums sums;
    sums.add(strides[first], 1, shape[first] - 1);
    for (std::size_t d = first + 1; d < shape.size(); ++d) {
      sums.add(strides[d], 1 - shape[d], shape[d] - 1);
    }
    if (sums.reach(0)) return false;
  }
  return true;
}

[[noreturn]] MHLA_COLD inline void fail_distinct(const char* function, const char* argument,
                                                 std::span<const Index> strides) {
  std::string text;
  for (const Index stride : strides) text += (text.empty() ? "" : ", ") + std::to_string(stride);
  fail_option(function, argument, "has strides [" + text + "], and elements that overlap",
              "strides of distinct elements");
}

/// Throws unless different indices of an output name different elements.
inline void expect_distinct(const char* function, const char* argument, const Shape& shape,
                            const Shape& strides) {
  if (!distinct(shape, strides)) fail_distinct(function, argument, strides);
}
template <class T>
void expect_distinct(const char* function, const char* argument, const TensorView<T>& t) {
  expect_distinct(function, argument, t.shape, t.strides);
}
template <class T>
void expect_distinct(const char* function, const char* argument, const MatrixView<T>& m) {
  const Index strides[] = {m.row_stride, m.col_stride};
  if (!distinct({1, m.rows, 1, m.cols}, {0, m.row_stride, 0, m.col_stride})) {
    fail_distinct(function, argument, strides);
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
