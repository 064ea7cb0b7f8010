#pragma once

/// \file
/// Times the gradient of one form over all heads of a shape, after a check of samples of dq, dk, dv
/// and the gradient of the mixing matrix.

#include "support/form.hpp"
#include "support/gradient_definition.hpp"

namespace mhla::bench {

inline constexpr int kSampledHeads = 2;
inline constexpr int kSampledTokens = 4;        // per sampled head
inline constexpr int kSampledCoefficients = 4;  // of one row of the mixing matrix

/// A fixed sequence of numbers below a bound.
class Samples {
 public:
  Index below(Index bound) {
    return static_cast<Index>(splitmix64(++counter_) % static_cast<std::uint64_t>(bound));
  }

 private:
  std::uint64_t counter_ = 0;
};

/// Largest error over bound of some tokens' rows of dq, dk and dv.
template <Scalar T>
double worst_of_rows(const GradientRule& rule, const BatchInputs<T>& in, TensorView<const T> dout,
                     const BatchGradients<T>& computed) {
  Samples samples;
  double worst = 0;
  for (int head = 0; head < kSampledHeads; ++head) {
    const Index b = samples.below(in.q.batch()), h = samples.below(in.q.heads());
    ExactGradient<T> exact(rule, detail::head_inputs(in, b, h), dout.head(b, h));
    for (int token = 0; token < kSampledTokens; ++token) {
      const Index t = samples.below(in.q.tokens());
      const auto [dk, dv] = exact.dk_and_dv(t);
      worst = std::max({worst, error_over_bound(exact.dq(t), &computed.q.head(b, h)(t, 0)),
                        error_over_bound(dk, &computed.k.head(b, h)(t, 0)),
                        error_over_bound(dv, &computed.v.head(b, h)(t, 0))});
    }
  }
  return worst;
}

/// Largest error over bound of some coefficients of the gradient of the mixing matrix, a sum over
/// all heads. One coefficient is on the diagonal.
template <Scalar T>
double worst_of_mixing(const GradientRule& rule, const BatchInputs<T>& in, TensorView<const T> dout,
                       const MixingMatrix<accumulator_t<T>>& computed) {
  Samples samples;
  const Index i = samples.below(computed.rows());
  std::vector<Index> keys = {i};
  while (keys.size() < kSampledCoefficients) {
    const Index first = computed.pattern().first(i);
    const Index last = rule.causal ? i + 1 : computed.pattern().last(i);
    keys.push_back(first + samples.below(last - first));
  }
  ExactRow exact{std::vector<double>(keys.size()), std::vector<double>(keys.size())};
  for (Index b = 0; b < in.q.batch(); ++b) {
    for (Index h = 0; h < in.q.heads(); ++h) {
      ExactGradient<T> head(rule, detail::head_inputs(in, b, h), dout.head(b, h));
      for (std::size_t s = 0; s < keys.size(); ++s) {
        const ExactNumber of_head = head.dmixing(i, keys[s]);
        const double sum = rounding_bound(number(in.q.batch() * in.q.heads()), kUnitRoundoff<T>);
        exact.value[s] += of_head.value;
        exact.bound[s] += of_head.bound + sum * (std::abs(of_head.value) + of_head.bound);
      }
    }
  }
  std::vector<accumulator_t<T>> found;
  for (const Index b : keys) found.push_back(computed(i, b));
  return error_over_bound(exact, found.data());
}

/// Checks and times the gradient of a form.
/// \tparam Form  one form at one shape, with the members
///     forward_bytes(in, executor), backward_bytes(in, executor), kept_bytes(in)
///     forward(in, out, call), backward(in, dout, gradients, call)
///     rule()      its definition
///     dmixing()   the gradient of the mixing matrix, null without mixing
/// \param keep  makes the forward keep its summaries for the backward
template <Scalar T, class Form>
void time_gradient(Session& session, const Shape& shape, Index threads, const Cost& forward_cost,
                   Form&& form, bool keep = false) {
  Workload<T> work(shape);
  GradientWorkload<T> gradient(shape);
  ThreadPool pool(threads);
  const BatchInputs<T> in = work.inputs();
  std::vector<std::byte, Allocator<std::byte>> memory(form.forward_bytes(in, pool));
  std::vector<std::byte, Allocator<std::byte>> backward_memory(form.backward_bytes(in, pool));
  std::vector<std::byte, Allocator<std::byte>> kept(keep ? form.kept_bytes(in) : 0);
  session.time_gradient(
      gradient_cost<T>(shape, forward_cost), measure_peak<accumulator_t<T>>(pool),
      [&] {
        form.forward(in, work.out(), {.workspace = memory, .executor = pool, .kept = kept});
        benchmark::ClobberMemory();
      },
      [&] {
        form.backward(in, gradient.dout(), gradient.gradients(),
                      {.workspace = backward_memory, .executor = pool, .kept = kept});
        benchmark::ClobberMemory();
      },
      [&] {
        const GradientRule rule = form.rule();
        const double worst = worst_of_rows<T>(rule, in, gradient.dout(), gradient.gradients());
        const auto* const dmixing = form.dmixing();
        if (dmixing == nullptr) return worst;
        return std::max(worst, worst_of_mixing<T>(rule, in, gradient.dout(), *dmixing));
      });
}

}  // namespace mhla::bench
