#include "support/cuda/reference.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/layer/rotary.hpp"
#include "support/cuda/exact_phi.hpp"

namespace cuda_test {
namespace {

/// One head of a tensor, f of each number.
template <class T, class F>
Numbers head(const Tensor<T>& x, int b, int h, F&& f) {
  Numbers numbers(x.tokens(), x.width());
  for (int t = 0; t < x.tokens(); ++t) {
    for (int d = 0; d < x.width(); ++d) numbers(t, d) = f(x.value(b, t, h, d));
  }
  return numbers;
}

/// Features that turn by angles, if there are any.
Numbers turned(const Numbers& x, const Array<float>& angles) {
  if (angles.size() == 0) return x;
  Numbers table(x.rows(), x.cols()), y = x;
  for (Eigen::Index i = 0; i < x.size(); ++i) table.data()[i] = angles.value(i);
  const mhla::RotaryRows<double> rows{table.data(), x.rows(), x.cols(),
                                      mhla::RotaryPairs::kInterleaved};
  mhla::rotary(x, rows, 1, y);
  return y;
}

/// Magnitudes of features, with eta, and of what turned ones are sums of.
Numbers magnitudes(const Numbers& x, double eta) { return (x.array().abs() + eta).matrix(); }
Numbers turned_magnitudes(const Numbers& x, const Array<float>& angles, double eta) {
  const Numbers plus = magnitudes(x, eta);
  if (angles.size() == 0) return plus;
  Numbers y = plus;
  for (Eigen::Index i = 0; i < x.size(); i += 2) {
    const double cos = std::abs(angles.value(i)), sin = std::abs(angles.value(i + 1));
    const double* const own = plus.data() + i;
    y.data()[i] = own[0] * cos + own[1] * sin + eta;
    y.data()[i + 1] = own[1] * cos + own[0] * sin + eta;
  }
  return y;
}

/// The CPU's form on features.
template <class Z>
Numbers attend(const CallOptions& call, const mhla::Inputs<double>& in, const Numbers& mixing,
               Z normalizer, double scale) {
  const mhla::Operator op{mhla::Identity{}, mhla::Identity{}, normalizer, scale};
  Numbers o(in.q.rows, in.v.cols);
  if constexpr (!std::is_same_v<Z, mhla::CrossQuery>) {
    if (call.causal) {
      mhla::causal(in, mhla::Contiguous(o.rows(), call.block[2]),
                   mhla::MixingMatrix<double>(mixing), op, o);
      return o;
    }
  }
  const mhla::CrossBlocks blocks{mhla::Grid(call.tokens, call.block),
                                 mhla::Grid(call.key_tokens, call.key_block)};
  mhla::bidirectional(in, blocks, mhla::MixingMatrix<double>(mixing), op, o);
  return o;
}

}  // namespace

template <class T>
Expected expected(const Call<T>& call, int b, int h, double chain) {
  const mhla::cuda::Operator& op = call.op;
  const double u = kRoundoff<T>, eta = std::ldexp(1.0, Format<T>::kLowest);
  const double scale = static_cast<double>(op.scale), eps = static_cast<double>(op.eps);
  const auto feature = [](const mhla::cuda::FeatureMap& map) {
    return [map](double x) { return exact_phi<T>(map, x); };
  };
  const Numbers q = head(call.q, b, h, feature(op.query_map));
  const Numbers k = head(call.k, b, h, feature(op.key_map));
  const Numbers v = head(call.v, b, h, [](double x) { return x; });
  const Numbers ones = Numbers::Ones(v.rows(), 1);
  const std::int64_t rows =
      call.mixing.size() / mhla::Grid(call.key_tokens, call.key_block).blocks();
  Numbers mixing(rows, call.mixing.size() / rows);
  for (std::int64_t i = 0; i < call.mixing.size(); ++i) mixing.data()[i] = call.mixing.value(i);

  const auto run = [&](const mhla::Inputs<double>& in, const Numbers& m,
                       double own_eps) -> Numbers {
    switch (op.denominator) {
      case mhla::cuda::Denominator::kKeySum:
        return attend(call, in, m, mhla::KeySum{own_eps}, scale);
      case mhla::cuda::Denominator::kCrossQuery:
        return attend(call, in, m, mhla::CrossQuery{own_eps}, scale);
      default:
        return attend(call, in, m, mhla::NoNormalizer{}, scale);
    }
  };
  const auto sums = [&](const Numbers& qs, const Numbers& ks, const Numbers& vs, const Numbers& m) {
    return attend(call, {.q = qs, .k = ks, .v = vs}, m, mhla::NoNormalizer{}, 1);
  };
  // With magnitudes for numbers; what eta adds to summaries and mixtures, and to weights.
  const auto magnitude = [&](const Numbers& plus_q, const Numbers& plus_k, const Numbers& values) {
    const Numbers plus_v = values.cwiseAbs(), plus_m = mixing.cwiseAbs();
    Numbers a = sums(plus_q, plus_k, plus_v, plus_m);
    const auto& w = call.key_block;
    const double unit =
        1.0 / mhla::cuda::summary_scale(static_cast<std::int32_t>(w[0] * w[1] * w[2]));
    a.colwise() += (unit * eta * (1 + plus_m.rowwise().sum().maxCoeff())) * plus_q.rowwise().sum();
    return Numbers(a.rowwise() + eta * plus_v.colwise().sum());
  };

  const Numbers turned_q = turned(q, call.query_angles),
                turned_k = turned(k, call.angles_of_keys());
  mhla::Inputs<double> in{.q = turned_q, .k = turned_k, .v = v};
  if (call.rotary()) in.normalizer_q = q, in.normalizer_k = k;
  Expected result{run(in, mixing, eps), Numbers()};
  const double growth = gamma(chain);
  const double e_n = std::pow(1 + u, call.rotary() ? 7 : 5) * (1 + growth) - 1,
               e_d = std::pow(1 + u, 3) * (1 + growth) - 1;
  const Numbers a = magnitude(turned_magnitudes(q, call.query_angles, eta),
                              turned_magnitudes(k, call.angles_of_keys(), eta), v);
  result.bound.resizeLike(result.o);
  Numbers z = Numbers::Zero(q.rows(), 1), den = Numbers::Ones(q.rows(), 1);
  if (op.denominator == mhla::cuda::Denominator::kKeySum) {
    z = magnitude(magnitudes(q, eta), magnitudes(k, eta), ones);
    den = (scale * sums(q, k, ones, mixing).array() + eps).matrix();
  } else if (op.denominator == mhla::cuda::Denominator::kCrossQuery) {
    const Numbers one_q = q.cwiseAbs(), one_k = k.cwiseAbs(), one_m = mixing.cwiseAbs();
    const auto denominators = [&](const Numbers& qs, const Numbers& ks, const Numbers& m,
                                  double e) {
      return Numbers(
          (scale * sums(qs, ks, ones, m).array() / run({.q = qs, .k = ks, .v = ones}, m, e).array())
              .matrix());
    };
    den = denominators(q, k, mixing, eps);
    z = (denominators((one_q.array() + eta).matrix(), (one_k.array() + eta).matrix(), one_m, 0) /
         scale);
  }
  for (Eigen::Index t = 0; t < q.rows(); ++t) {
    const double margin = std::abs(den(t)) - scale * e_d * z(t);
    for (Eigen::Index e = 0; e < v.cols(); ++e) {
      const double o = std::abs(result.o(t, e));
      const double before = scale * (e_n * a(t, e) + e_d * o * z(t)) / margin;
      result.bound(t, e) = margin > 0 ? before + u * (o + before) + u * eta
                                      : std::numeric_limits<double>::infinity();
    }
  }
  return result;
}

template Expected expected(const Call<bfloat16>&, int, int, double);
template Expected expected(const Call<half>&, int, int, double);

}  // namespace cuda_test
