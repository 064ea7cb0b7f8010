#pragma once

/// \file
/// AdamW on a flat row of parameters, a learning-rate schedule, and gradient clipping.
///
///     m <- beta1 m + (1 - beta1) g          m' = m / (1 - beta1^t)
///     v <- beta2 v + (1 - beta2) g^2        v' = v / (1 - beta2^t)
///     p <- p - rate * weight_decay * p - rate * m' / (sqrt(v') + eps)
///
/// Step t counts from 1. The decay is decoupled from m and v, and scaled by the rate as in the
/// usual implementations. Parameters with another decay need another row and another state. Cost: 4
/// numbers read and 3 written per parameter. Sources: Loshchilov and Hutter, arXiv:1711.05101,
/// algorithm 2; for the schedule, Loshchilov and Hutter, arXiv:1608.03983, without restarts.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <ranges>
#include <span>
#include <type_traits>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/rows.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {

/// Decays of the running means, the number that keeps a step finite, and decoupled weight decay.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

/// Optimiser state; save and restore all members.
template <Accumulator A>
struct AdamWState {
  std::vector<A> m, v;  ///< running means of the gradient and of its square
  Index steps = 0;      ///< taken so far

  explicit AdamWState(Index parameters)
      : m(static_cast<std::size_t>(parameters)), v(static_cast<std::size_t>(parameters)) {}
};

/// Takes one step.
/// \param executor  splits over parameters
/// \throws shape_error unless gradients and state have the size of the parameters; option_error
///         unless 0 <= beta < 1, eps > 0, weight_decay >= 0 and learning_rate >= 0. Nothing is
///         written.
template <Accumulator A>
void adamw(std::type_identity_t<std::span<A>> parameters,
           std::type_identity_t<std::span<const A>> gradients, AdamWState<A>& state,
           double learning_rate, const AdamWOptions& options = {},
           const ExecutorRef& executor = {});

/// Factor of the learning rate at step 0, 1, ... It rises from 1/warmup to 1 in `warmup` steps,
/// then falls to 0 at step `steps` along half a cosine, and stays 0.
inline double warmup_cosine(Index step, Index warmup, Index steps);

/// Scales gradients whose Euclidean norm is above `largest_norm` down to it.
/// \return the norm before scaling; gradients with an infinite or NaN norm stay unchanged
/// \throws option_error unless largest_norm >= 0.
template <std::ranges::contiguous_range R>
requires Accumulator<std::ranges::range_value_t<R>>
double clip_gradients(R&& gradients, double largest_norm);

// ------------------------------------------------------------------------------------------------

namespace detail {

inline void expect_mean_factor(const char* argument, double beta) {
  if (!(beta >= 0 && beta < 1)) {
    fail_option("adamw", argument, "is " + std::to_string(beta), "at least 0 and less than 1");
  }
}

}  // namespace detail

template <Accumulator A>
void adamw(std::type_identity_t<std::span<A>> parameters,
           std::type_identity_t<std::span<const A>> gradients, AdamWState<A>& state,
           double learning_rate, const AdamWOptions& options, const ExecutorRef& executor) {
  const Index count = std::ssize(parameters);
  detail::expect_elements("adamw", "gradients", gradients.size(), count);
  detail::expect_elements("adamw", "state.m", state.m.size(), count);
  detail::expect_elements("adamw", "state.v", state.v.size(), count);
  detail::expect_mean_factor("beta1", options.beta1);
  detail::expect_mean_factor("beta2", options.beta2);
  const A eps = static_cast<A>(options.eps);
  if (!(eps > 0)) {
    detail::fail_option("adamw", "eps", "is " + std::to_string(options.eps), "more than 0");
  }
  detail::expect_not_negative("adamw", "weight_decay", options.weight_decay);
  detail::expect_not_negative("adamw", "learning_rate", learning_rate);

  const auto t = static_cast<double>(++state.steps);
  const A beta1 = static_cast<A>(options.beta1), beta2 = static_cast<A>(options.beta2);
  const A rest1 = static_cast<A>(1 - options.beta1), rest2 = static_cast<A>(1 - options.beta2);
  const A keep = static_cast<A>(1 - learning_rate * options.weight_decay);
  const A rate = static_cast<A>(learning_rate / (1 - std::pow(options.beta1, t)));
  const A unbias = static_cast<A>(1 / std::sqrt(1 - std::pow(options.beta2, t)));

  constexpr Index kBlock = 2048;  // four rows of it stay in L1
  executor.for_each(detail::ceil_div(count, kBlock), [&](Index block, Index /*worker*/) {
    using namespace Eigen::internal;
    using P = detail::Packet<A>;
    const Index begin = block * kBlock, size = std::min(kBlock, count - begin);
    const A* const g = gradients.data() + begin;
    A* const m = state.m.data() + begin;
    A* const v = state.v.data() + begin;
    detail::update(
        m, size,
        [&](P mean, P p) {
          return detail::multiply_add(pset1<P>(beta1), mean, pmul(pset1<P>(rest1), p));
        },
        g);
    detail::update(
        v, size,
        [&](P mean, P p) {
          return detail::multiply_add(pset1<P>(beta2), mean, pmul(pmul(pset1<P>(rest2), p), p));
        },
        g);
    detail::update(
        parameters.data() + begin, size,
        [&](P value, P mean, P square) {
          // psqrt makes NaN of infinity, which is its own root.
          const P finite = pmin(square, pset1<P>(std::numeric_limits<A>::max()));
          const P deviation = padd(psqrt(finite), psub(square, finite));
          const P root = detail::multiply_add(deviation, pset1<P>(unbias), pset1<P>(eps));
          const P step = pdiv(pmul(pset1<P>(rate), mean), root);
          return psub(pmul(pset1<P>(keep), value), step);
        },
        m, v);
  });
}

inline double warmup_cosine(Index step, Index warmup, Index steps) {
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (step >= steps) return 0;
  const double share = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  return 0.5 * (1 + std::cos(std::numbers::pi * share));
}

template <std::ranges::contiguous_range R>
requires Accumulator<std::ranges::range_value_t<R>>
double clip_gradients(R&& row, double largest_norm) {
  const std::span gradients(row);
  using A = std::ranges::range_value_t<R>;
  detail::expect_not_negative("clip_gradients", "largest_norm", largest_norm);
  double squares = 0, block[1024];  // squares of float may exceed its range
  for (Index begin = 0; begin < std::ssize(gradients); begin += std::ssize(block)) {
    const Index count = std::min(std::ssize(block), std::ssize(gradients) - begin);
    std::copy_n(gradients.data() + begin, count, block);
    squares += detail::dot(block, block, count);
  }
  const double norm = std::sqrt(squares);
  if (std::isfinite(norm) && norm > largest_norm) {
    detail::scale(static_cast<A>(largest_norm / norm), gradients.data(), std::ssize(gradients));
  }
  return norm;
}

}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
