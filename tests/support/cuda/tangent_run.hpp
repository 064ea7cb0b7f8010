#pragma once

/// \file
/// A tangent on a device, run in the emulator by the library's host code, and compared with the
/// definition (tangent/naive.hpp) in double.
///
/// Let n_p be the addends of n', each of which is a form without denominators of the CPU's bound
/// b_p (reference.hpp), rounded to T. Tangents of features are rounded once, like features, and
/// phi' has a relative error of 2^-20, so that each addend is within (1 + 4 u) b_p. It is stored
/// times its scale s, which adds u eta / s. With the sums r
/// of weights, their tangents r', their magnitudes R and R', and e_d of reference.hpp,
///
///     err(r) = e_d R     err(r') = e_d R'
///     err(n' - r' o) = sum (1 + 4 u) b_p + |r'| err(o) + err(r') (|o| + err(o))
///                      + gamma_n (sum |n_p| + |r' o|)
///     |o'^ - o'| <= s (err(n' - r' o) + |o'| err(r)) / (|den| - s err(r)),  then rounded once
///     more.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "mhla/cuda/launch/tangent.cuh"
#include "mhla/tangent/naive.hpp"
#include "support/cuda/emulated_call.hpp"
#include "support/cuda/head_numbers.hpp"
#include "support/cuda/random_call.hpp"

namespace cuda_test {

/// A call, its directions and its tangent.
template <class T>
struct TangentCall : Call<T> {
  Tensor<T> dq, dk, dv, tangent;
  Array<float> dmixing;
  std::array<bool, 4> along;  ///< wanted directions: q, k, v, the mixing matrix
};

template <class T>
Tensor<T> shaped_like(const Tensor<T>& x, int layout = 0) {
  return Tensor<T>(x.batches(), x.tokens(), x.heads(), x.width(),
                   Layout::any(layout, x.tokens(), x.heads(), x.width()));
}

template <class T, int D, int E>
TangentCall<T> random_tangent_call(const CallShape& shape, std::array<bool, 4> along,
                                   std::uint64_t seed) {
  Call<T> call = random_call<T, D, E>(shape, seed);
  Array<float> dmixing(call.mixing.size());
  Tensor<T> dq = shaped_like(call.q, 1), dk = shaped_like(call.k, 2),
            dv = shaped_like(call.v, shape.layout), tangent = shaped_like(call.o, 2);
  Random random(seed + 1);
  const auto number = [&random] { return random.uniform(-1, 1); };
  for (Tensor<T>* x : {&dq, &dk, &dv}) x->fill(number);
  for (std::int64_t i = 0; i < dmixing.size(); ++i) dmixing[i] = static_cast<float>(number());
  return {std::move(call),    std::move(dq),      std::move(dk), std::move(dv),
          std::move(tangent), std::move(dmixing), along};
}

template <class T>
mhla::cuda::TangentProblem tangent_problem(TangentCall<T>& call) {
  mhla::cuda::TangentProblem problem{};
  problem.forward = problem_of(call);
  std::copy(call.along.begin(), call.along.end(), problem.wants);
  problem.q = call.dq.input();
  problem.k = call.dk.input();
  problem.v = call.dv.input();
  problem.mixing = call.matrices(call.dmixing.data(), call.q.heads());
  problem.tangent = call.tangent.output();
  return problem;
}

/// Runs a tangent under a schedule and returns its plan.
template <int D, int E, bool kCausal, bool kRotary, class T>
mhla::cuda::TangentPlan run_tangent(TangentCall<T>& call, const mhla::cuda::Device& target,
                                    unsigned seed) {
  using emulator::Access;
  const mhla::cuda::TangentProblem problem = tangent_problem(call);
  const mhla::cuda::TangentPlan plan = mhla::cuda::tangent_plan<D, E>(problem, target);
  emulator::Device device(seed);
  Array<unsigned char> workspace(static_cast<std::int64_t>(plan.workspace_bytes) + 1);
  const auto track = [&](const char* name, auto& x, Access access, bool wanted = true) {
    if (wanted && x.bytes() > 0) device.track(name, x.raw(), x.bytes(), access);
  };
  track("q", call.q, Access::kRead);
  track("k", call.k, Access::kRead);
  track("v", call.v, Access::kRead);
  track("dq", call.dq, Access::kRead, call.along[0]);
  track("dk", call.dk, Access::kRead, call.along[1]);
  track("dv", call.dv, Access::kRead, call.along[2]);
  track("mixing", call.mixing, Access::kRead);
  track("dmixing", call.dmixing, Access::kRead, call.along[3]);
  track("query angles", call.query_angles, Access::kRead);
  track("key angles", call.key_angles, Access::kRead);
  track("o", call.o, Access::kReadWrite);
  track("tangent", call.tangent, Access::kWrite);
  device.track("workspace", workspace.data(), plan.workspace_bytes, Access::kReadWrite);
  mhla::cuda::run_tangent<T, D, E, kCausal, kRotary>(
      plan, problem, call.mixing_array(), workspace.data(), target, EmulatedStream(device));
  EXPECT_TRUE(call.o.padding_is_untouched());
  EXPECT_TRUE(call.tangent.padding_is_untouched());
  return plan;
}

/// phi'(x) in double.
inline double exact_slope(const mhla::cuda::FeatureMap& map, double x) {
  if (map.exponential) return x > 0 ? 1 : std::exp(x);
  return x > static_cast<double>(map.floor) ? 1 : 0;
}

/// Copies of a call's tensors, with some in place of others.
template <class T>
Call<T> addend_of(const TangentCall<T>& call, int along) {
  const auto copy = [](const Tensor<T>& x, auto&& number) {
    Tensor<T> y = shaped_like(x);
    x.each([&](int b, int t, int h, int d) { y.at(b, t, h, d) = number(b, t, h, d); });
    return y;
  };
  const auto same = [&](const Tensor<T>& x) {
    return copy(x, [&](int b, int t, int h, int d) { return x.at(b, t, h, d); });
  };
  const auto tangents = [&](const Tensor<T>& x, const Tensor<T>& dx,
                            const mhla::cuda::FeatureMap& map) {
    return copy(x, [&](int b, int t, int h, int d) {
      return from_double<T>(exact_slope(map, x.value(b, t, h, d)) * dx.value(b, t, h, d));
    });
  };
  CallOptions options = call;
  options.op.denominator = mhla::cuda::Denominator::kNone;
  options.op.scale = 1;
  if (along == 0) options.op.query_map = mhla::cuda::FeatureMap::identity();
  if (along == 1) options.op.key_map = mhla::cuda::FeatureMap::identity();
  const auto numbers = [](const Array<float>& from) {
    Array<float> to(from.size());
    std::copy_n(from.data(), from.size(), to.data());
    return to;
  };
  Call<T> addend{options,
                 along == 0 ? tangents(call.q, call.dq, call.op.query_map) : same(call.q),
                 along == 1 ? tangents(call.k, call.dk, call.op.key_map) : same(call.k),
                 along == 2 ? same(call.dv) : same(call.v),
                 shaped_like(call.o),
                 numbers(along == 3 ? call.dmixing : call.mixing)};
  addend.query_angles = numbers(call.query_angles);
  addend.key_angles = numbers(call.key_angles);
  return addend;
}

/// The tangent of one head, and its error bound.
template <class T>
Expected expected_tangent(const TangentCall<T>& call, int b, int h, double chain) {
  using mhla::Identity;
  const mhla::cuda::Operator& op = call.op;
  const Rounding<T> rounding;
  const double u = rounding.u, eta = rounding.eta, growth = gamma(chain);
  const double scale = static_cast<double>(op.scale), eps = static_cast<double>(op.eps);
  const bool divides = op.denominator == mhla::cuda::Denominator::kKeySum;
  const auto same = [](double x) { return x; };
  const Numbers q = head(call.q, b, h, feature<T>(op.query_map, {}));
  const Numbers k = head(call.k, b, h, feature<T>(op.key_map, {})), v = head(call.v, b, h, same);
  const auto tangents = [&](const Tensor<T>& x, const Tensor<T>& dx,
                            const mhla::cuda::FeatureMap& map, bool wanted) {
    const Numbers slopes = head(x, b, h, [&](double at) { return exact_slope(map, at); });
    return Numbers((wanted ? 1.0 : 0.0) * slopes.cwiseProduct(head(dx, b, h, same)));
  };
  const Numbers dq = tangents(call.q, call.dq, op.query_map, call.along[0]);
  const Numbers dk = tangents(call.k, call.dk, op.key_map, call.along[1]);
  const Numbers dv = (call.along[2] ? 1.0 : 0.0) * head(call.dv, b, h, same);
  const Numbers mixing = mixing_matrix(static_cast<const Call<T>&>(call), b, h);
  Numbers dmixing = Numbers::Zero(mixing.rows(), mixing.cols());
  for (Eigen::Index i = 0; i < dmixing.size() && call.along[3]; ++i) {
    dmixing.data()[i] = call.dmixing.value(call.matrix_of(b, h) + i);
  }
  const Numbers turned_q = turned(q, call.query_angles),
                turned_k = turned(k, call.angles_of_keys());
  mhla::Inputs<double> in{.q = turned_q, .k = turned_k, .v = v};
  if (call.rotary()) in.normalizer_q = q, in.normalizer_k = k;
  const mhla::MixingMatrix<double> matrix(mixing);
  const auto problem = [&](auto normalizer) {
    const mhla::Operator exact{Identity{}, Identity{}, normalizer, scale};
    if (call.causal) {
      return naive_problem<double>(in, call.queries(), matrix.view(), exact, mhla::Order::kCausal);
    }
    return naive_problem<double>(in, mhla::CrossBlocks{call.queries(), call.keys()}, matrix.view(),
                                 exact, mhla::Order::kBidirectional);
  };
  mhla::NaiveDirection<double> direction{.q = scale * turned(dq, call.query_angles),
                                         .k = turned(dk, call.angles_of_keys()),
                                         .v = dv,
                                         .mixing = dmixing};
  if (call.rotary()) direction.normalizer_q = scale * dq, direction.normalizer_k = dk;
  // Sums of weights, with features as they are in denominators.
  auto weights = problem(mhla::KeySum{eps});
  weights.normalizer_q.resize(0, 0), weights.normalizer_k.resize(0, 0);
  const auto sums = [&](const Numbers& of_q, const Numbers& of_k, const Numbers& m) {
    auto at = weights;
    at.q = scale * of_q, at.k = of_k, at.mixing = m;
    return Numbers(naive_sums(at));
  };
  const auto plus = [eta](const Numbers& x) { return magnitudes(x, eta); };
  const Numbers size = mixing.cwiseAbs(), dsize = dmixing.cwiseAbs();
  const Numbers r = sums(q, k, mixing), r_plus = sums(plus(q), plus(k), size);
  const Numbers dr = sums(dq, k, mixing) + sums(q, dk, mixing) + sums(q, k, dmixing);
  const Numbers dr_plus =
      sums(plus(dq), plus(k), size) + sums(plus(q), plus(dk), size) + sums(plus(q), plus(k), dsize);

  Expected result{divides ? Numbers(naive_tangent(problem(mhla::KeySum{eps}), direction))
                          : Numbers(naive_tangent(problem(mhla::NoNormalizer{}), direction)),
                  Numbers::Zero(q.rows(), v.cols())};
  const auto stored = static_cast<double>(mhla::cuda::summary_scale(call.key_slots()));  // scale s
  Numbers addends = Numbers::Zero(q.rows(), v.cols()), errors = addends;
  for (int along = 0; along < 4; ++along) {
    if (!call.along[static_cast<std::size_t>(along)]) continue;
    const Expected addend = expected(addend_of(call, along), b, h, chain);
    addends += scale * addend.o.cwiseAbs();
    errors += (scale * (1 + 4 * u)) * addend.bound;
    errors.array() += scale * u * eta / stored;
  }
  const Expected outputs = expected(static_cast<const Call<T>&>(call), b, h, chain);
  const double e_d = std::pow(1 + u, rounding.denominator) * (1 + growth) - 1;
  for (Eigen::Index t = 0; t < q.rows(); ++t) {
    const double off = divides ? e_d * r_plus(t) : 0, den = divides ? r(t) + eps : 1;
    const double margin = std::abs(den) - off;
    for (Eigen::Index e = 0; e < v.cols(); ++e) {
      const double o = std::abs(outputs.o(t, e)), o_error = outputs.bound(t, e);
      const double d = divides ? std::abs(dr(t)) : 0, d_error = divides ? e_d * dr_plus(t) : 0;
      double error = errors(t, e) + d * o_error + d_error * (o + o_error) +
                     growth * (addends(t, e) + errors(t, e) + (d + d_error) * (o + o_error));
      error = (error + std::abs(result.o(t, e)) * off) / margin;
      error += kRoundoff<T> * (std::abs(result.o(t, e)) + error + eta);
      result.bound(t, e) = margin > 0 ? error : std::numeric_limits<double>::infinity();
    }
  }
  return result;
}

/// Runs the tangent of a random call, compares it with the definition, and returns its plan.
template <class T, int D, int E, bool kCausal = false, bool kRotary = false>
mhla::cuda::TangentPlan run_and_compare_tangent(CallShape shape, std::array<bool, 4> along,
                                                const mhla::cuda::Device& device) {
  shape.causal = kCausal;
  shape.rotary = kRotary;
  TangentCall<T> call = random_tangent_call<T, D, E>(shape, along, 5);
  const auto plan = run_tangent<D, E, kCausal, kRotary>(call, device, 3);
  const int widest = std::max({call.q.tokens(), call.k.tokens(), D, E});
  const double chain =
      3.0 * widest + 2.0 * std::sqrt(static_cast<double>(call.coefficients())) + 64;
  double worst = 0, errors = 0, norm = 0;
  for (int b = 0; b < call.q.batches(); ++b) {
    for (int h = 0; h < call.q.heads(); ++h) {
      const Expected e = expected_tangent(call, b, h, chain);
      for (int t = 0; t < call.q.tokens(); ++t) {
        for (int d = 0; d < E; ++d) {
          const double error = std::abs(call.tangent.value(b, t, h, d) - e.o(t, d));
          const double ratio = error == 0 ? 0 : error / e.bound(t, d);
          errors += error * error, norm += e.o(t, d) * e.o(t, d);
          worst = std::max(worst, ratio);
          if (ratio <= 1) continue;
          ADD_FAILURE() << "tangent(" << b << "," << t << "," << h << "," << d << ") is "
                        << call.tangent.value(b, t, h, d) << ", expected " << e.o(t, d)
                        << " within " << e.bound(t, d);
          return plan;
        }
      }
    }
  }
  // Independent rounding errors are far below the worst case, wrong numbers are not.
  EXPECT_LE(std::sqrt(errors), 0.03 * std::sqrt(norm));
  testing::Test::RecordProperty("worst", std::to_string(worst));
  return plan;
}

}  // namespace cuda_test
