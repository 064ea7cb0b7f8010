#pragma once

/// \file
/// Times the gradient of one form over all heads of a shape, after a check of the gradients of q,
/// k, v and the mixing matrix.

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/form.hpp"

namespace mhla::bench {

/// x + step g, in double.
template <Scalar T>
Matrix<double> moved(MatrixView<const T> x, double step, MatrixView<const T> g) {
  Matrix<double> sum(x.rows, x.cols);
  for (Index t = 0; t < x.rows; ++t) {
    for (Index d = 0; d < x.cols; ++d) sum(t, d) = exactly(x(t, d)) + step * exactly(g(t, d));
  }
  return sum;
}
template <Accumulator A>
MixingMatrix<double> moved(const MixingMatrix<A>& x, double step, const MixingMatrix<A>& g) {
  MixingMatrix<double> sum(x.pattern());
  for (std::size_t i = 0; i < x.storage().size(); ++i) {
    sum.storage()[i] = exactly(x.storage()[i]) + step * exactly(g.storage()[i]);
  }
  return sum;
}

/// |g| of all numbers of a tensor.
template <class Numbers>
double norm_of(const Numbers& g) {
  double sum = 0;
  for (const auto x : g) sum += exactly(x) * exactly(x);
  return std::sqrt(sum);
}

/// Largest error over allowed error of the gradients of s, the sum of dout * out over some rows.
/// For each tensor with gradient g, the derivative of s along g / |g| is |g|. Rows of out are by
/// the definition in double (weigh), and the derivative is a central difference. A gradient that is
/// wrong by a share r of itself changes it by about r |g|. Rounding to T is such a share.
/// \param dout  Its numbers outside the rows count as 0.
template <Scalar T, class Form>
double worst_of_gradients(Form& form, const Shape& shape, const BatchInputs<T>& in,
                          TensorView<const T> dout, const Call& call) {
  struct Row {
    Index b, h, t;
  };
  const Index n = shape.tokens(), b = shape.batch - 1, h = shape.heads - 1;
  const Row rows[] = {{0, 0, n / 3}, {0, 0, n - 1}, {b, h, n / 2}, {b, h, n - 2}};
  Tensor<T> dy = zeros<T>(shape, shape.values), dq = zeros<T>(shape, shape.width), dk = dq, dv = dy;
  for (const Row& r : rows) {
    for (Index e = 0; e < shape.values; ++e) dy(r.b, r.t, r.h, e) = dout(r.b, r.t, r.h, e);
  }
  auto* const dmixing = form.dmixing();
  if (dmixing != nullptr) std::ranges::fill(dmixing->storage(), 0);
  form.backward(in, dy, {.q = dq, .k = dk, .v = dv}, call);

  const auto sum_at = [&](double q_step, double k_step, double v_step, double mixing_step) {
    const auto weights = form.weights(mixing_step);
    double sum = 0;
    for (const Row& r : rows) {
      const Inputs<T> x = detail::head_inputs(in, r.b, r.h);
      const auto moved_head = [&](MatrixView<const T> own, double step, TensorView<const T> g) {
        return moved(own, step, g.head(r.b, r.h));
      };
      const Matrix<double> q = moved_head(x.q, q_step, dq), k = moved_head(x.k, k_step, dk),
                           v = moved_head(x.v, v_step, dv);
      const Inputs<double> head{.q = q, .k = k, .v = v};
      const ExactRow row = weigh<double>(weights(head, r.t), head.v);
      for (Index e = 0; e < shape.values; ++e) {
        sum += row.value[static_cast<std::size_t>(e)] * exactly(dy(r.b, r.t, r.h, e));
      }
    }
    return sum;
  };
  double worst = 0;
  const auto check = [&](double norm, const auto& sum_along) {
    constexpr double kStep = 1e-3;
    const double derivative = (sum_along(kStep / norm) - sum_along(-kStep / norm)) / (2 * kStep);
    const double allowed = (kDerivativeError + kStorageRoundoff<T>)*norm;
    worst = std::max(worst, fraction(std::abs(derivative - norm), allowed));
  };
  check(norm_of(dq.data()), [&](double step) { return sum_at(step, 0, 0, 0); });
  check(norm_of(dk.data()), [&](double step) { return sum_at(0, step, 0, 0); });
  check(norm_of(dv.data()), [&](double step) { return sum_at(0, 0, step, 0); });
  if (dmixing != nullptr) {
    check(norm_of(dmixing->storage()), [&](double step) { return sum_at(0, 0, 0, step); });
  }
  return worst;
}

/// Checks and times the gradient of a form.
/// \tparam Form  one form at one shape, with the members
///     forward_bytes(in, executor), backward_bytes(in, executor), kept_bytes(in)
///     forward(in, out, call), backward(in, dout, gradients, call)
///     dmixing()      the gradient of the mixing matrix, null without mixing
///     weights(step)  the weights of the definition (definition.hpp) as a function of a head in
///                    double and a token, after step times dmixing() is added to the mixing matrix
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
        return worst_of_gradients<T>(
            form, shape, in, gradient.dout(),
            {.workspace = backward_memory, .executor = pool, .kept = kept});
      });
}

}  // namespace mhla::bench
