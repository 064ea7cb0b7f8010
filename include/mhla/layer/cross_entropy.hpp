#pragma once

/// \file
/// The mean cross entropy of logits against labels, and its gradient in the same call.
///
///     loss = 1/B sum_b (log sum_c e^(z_bc) - z_b,label(b))            z, dz [B,C]
///     dz  += (softmax(z_b) - one-hot(label(b))) / B
///
/// The largest logit is subtracted first, so no exponential overflows.
/// Cost: B*C exponentials, twice that with the gradient.

#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>
#include <ranges>
#include <span>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/exponential.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/rows.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {

/// Contiguous integers, such as std::vector<int> and std::span<const Index>.
template <class R>
concept IntegerRange =
    std::ranges::contiguous_range<const R> && std::integral<std::ranges::range_value_t<const R>>;

/// Result of cross_entropy().
struct CrossEntropy {
  double loss = 0;    ///< mean over the rows, in nats
  Index correct = 0;  ///< rows whose largest logit is the label's
};

/// Returns the mean loss of logits [B,C] with B > 0, and the number of rows predicted right.
/// \param labels   one label in [0, C) per row
/// \param dlogits  [B,C], to which the gradient of the mean loss is added, or absent
/// \throws shape_error, option_error for anything that does not fit, before dlogits is touched.
template <LayerInput X, IntegerRange Labels>
CrossEntropy cross_entropy(const X& logits, const Labels& labels,
                           const detail::output_t<X>& dlogits = {});

/// Returns the position of the largest number, the first of equal ones, or -1 for an empty range.
template <std::ranges::contiguous_range R>
requires Accumulator<std::ranges::range_value_t<R>> Index argmax(const R& x);

// ------------------------------------------------------------------------------------------------

template <std::ranges::contiguous_range R>
requires Accumulator<std::ranges::range_value_t<R>> Index argmax(const R& x) {
  const auto* const begin = std::ranges::data(x);
  const auto* const end = begin + std::ranges::size(x);
  return begin == end ? -1 : std::max_element(begin, end) - begin;
}

template <LayerInput X, IntegerRange Labels>
CrossEntropy cross_entropy(const X& input, const Labels& labels,
                           const detail::output_t<X>& dlogits) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "cross_entropy";
  const detail::input_t<X> logits(input);
  const Index rows = logits.rows, classes = logits.cols;
  detail::expect_rows(kName, "logits", logits, -1, -1);
  if (rows == 0) detail::fail_shape(kName, "logits", "has no rows", "at least one");
  detail::expect_elements(kName, "labels", std::ranges::size(labels), rows);
  for (const auto label : labels) {
    if (std::cmp_less(label, 0) || std::cmp_greater_equal(label, classes)) {
      detail::fail_option(kName, "labels", "has a label " + std::to_string(label),
                          "labels in [0, " + std::to_string(classes) + ")");
    }
  }
  detail::expect_rows_or_none(kName, "dlogits", dlogits, rows, classes);

  CrossEntropy result;
  const A share = 1 / static_cast<A>(rows);
  for (Index b = 0; b < rows; ++b) {
    using namespace Eigen::internal;
    using P = detail::Packet<A>;
    const A* const z = logits.row(b);
    const auto label = static_cast<Index>(std::ranges::data(labels)[b]);
    const P largest = pset1<P>(detail::maximum(z, classes));
    P sums = pset1<P>(A(0));
    detail::for_each_packet(z, classes, -std::numeric_limits<A>::infinity(), [&](P p) {
      sums = padd(sums, detail::exponential_below_zero(psub(p, largest)));
    });
    const A total = predux(sums);
    const A top = pfirst(largest);
    result.loss += std::log(static_cast<double>(total)) +
                   (static_cast<double>(top) - static_cast<double>(z[label]));
    if (z[label] == top) {  // which NaN is not
      result.correct += argmax(std::span(z, static_cast<std::size_t>(classes))) == label ? 1 : 0;
    }
    if (dlogits.absent()) continue;
    const P factor = pset1<P>(share / total);
    detail::update(
        dlogits.row(b), classes,
        [&](P sum, P p) {
          return detail::multiply_add(detail::exponential_below_zero(psub(p, largest)), factor,
                                      sum);
        },
        z);
    dlogits(b, label) -= share;
  }
  result.loss /= static_cast<double>(rows);
  return result;
}

}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
