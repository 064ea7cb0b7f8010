#pragma once

/// \file
/// Checks of arguments that the functions of this folder share.

#include <cmath>
#include <string>
#include <type_traits>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/attention/naive.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Throws what the form with these arguments would throw for a head.
/// \param out  has the shape of the output; errors name it `argument`
template <Scalar T, AttentionBlocks Blocks, OperatorOn<T> Op>
void expect_example(const char* function, const Inputs<T>& head, const Blocks& blocks,
                    const MixingView<const accumulator_t<T>>& mixing, const Op& op, Order order,
                    std::type_identity_t<MatrixView<const T>> out, const char* argument) {
  expect_mixing_of_heads(function, mixing, 1, 1);
  if (order == Order::kBidirectional) {
    bidirectional_form(head, blocks, mixing, op, function).check(head, out, argument);
  } else if constexpr (BlocksOf<Blocks>) {
    causal_form(head, blocks, mixing, op, function).check(head, out, argument);
  } else {
    fail_option(function, "blocks", "are those of cross-attention", "one partition");
  }
}

/// Throws if m has a coefficient that is not finite. The causal form reads none above the diagonal.
template <class A>
void expect_finite(const char* function, const char* argument, const MixingView<A>& m,
                   Order order) {
  expect_shared(function, argument, m.matrices());
  for (Index i = 0; i < m.rows(); ++i) {
    m.for_each_in_row(i, [&](Index b, A coefficient) {
      if (std::isfinite(coefficient) || (order == Order::kCausal && b > i)) return;
      fail_option(function, argument, "has a coefficient that is not finite", "finite ones");
    });
  }
}

/// Throws if m has a coefficient outside the pattern of a fit. The causal form reads none above the
/// diagonal.
template <class A>
void expect_within(const char* function, const MixingView<const A>& m, const Pattern& pattern,
                   Order order) {
  expect_shared(function, "m", m.matrices());
  for (Index i = 0; i < m.rows(); ++i) {
    m.for_each_in_row(i, [&](Index b, A coefficient) {
      if (coefficient == 0 || pattern.holds(i, b) || (order == Order::kCausal && b > i)) return;
      fail_option(function, "m", "has a coefficient at " + shape_text({i, b}),
                  "those that the start has, of which there are sums");
    });
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
