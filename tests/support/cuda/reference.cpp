#include "support/cuda/reference.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "support/cuda/head_numbers.hpp"

namespace cuda_test {
namespace {

/// The CPU's form on features.
template <class Z>
Numbers attend(const CallOptions& call, const mhla::Inputs<double>& in, const Numbers& mixing,
               Z normalizer, double scale) {
  const mhla::Operator op{mhla::Identity{}, mhla::Identity{}, normalizer, scale};
  Numbers o(in.q.rows, in.v.cols);
  if constexpr (!std::is_same_v<Z, mhla::CrossQuery>) {
    if (call.causal) {
      mhla::causal(in, call.queries(), mhla::MixingMatrix<double>(mixing), op, o);
      return o;
    }
  }
  const mhla::CrossBlocks blocks{call.queries(), call.keys()};
  mhla::bidirectional(in, blocks, mhla::MixingMatrix<double>(mixing), op, o);
  return o;
}

/// Normalises and gates row t of outputs that have errors `error` [E] before their last rounding.
template <class T>
void normalise(const Call<T>& call, int b, int h, Eigen::Index t, Expected& result,
               Eigen::ArrayXd& error) {
  const Eigen::ArrayXd o = result.o.row(t).transpose().array();
  const auto n = static_cast<double>(o.size());
  const double mean = o.square().mean() + static_cast<double>(call.op.norm_eps);
  double off = ((2 * o.abs() + error) * error).mean();
  off += gamma(n + 4) * (mean + off);
  const double least = off < mean ? std::sqrt(1 - off / mean) : 0, r = std::sqrt(mean);
  for (Eigen::Index e = 0; e < o.size(); ++e) {
    double factor = call.gain.value(e) / r, relative = gamma(4) + 0x1p-22;
    if (call.gated()) {
      const double g = call.gate.value(b, static_cast<int>(t), h, static_cast<int>(e));
      factor *= g / (1 + std::exp(-g));
      relative += 0x1p-24 * (2 * std::abs(g) + 8);
    }
    const double spread = (error(e) + std::abs(o(e)) * (1 - least)) / least;
    result.o(t, e) = o(e) * factor;
    error(e) = std::abs(factor) * (spread + relative * (std::abs(o(e)) + spread));
  }
}

}  // namespace

template <class T>
Expected expected(const Call<T>& call, int b, int h, double chain, Outputs which) {
  const mhla::cuda::Operator& op = call.op;
  const Rounding<T> rounding;
  const double u = rounding.u, eta = rounding.eta;
  const double scale = static_cast<double>(op.scale), eps = static_cast<double>(op.eps);
  const auto query_map = feature<T>(op.query_map, call.own_query_map);
  const auto key_map = feature<T>(op.key_map, call.own_key_map);
  const Numbers q = without_masked(head(call.q, b, h, query_map), call.query_mask(b));
  const Numbers k = without_masked(head(call.k, b, h, key_map), call.key_mask(b));
  const Numbers v =
      without_masked(head(call.v, b, h, [](double x) { return x; }), call.key_mask(b));
  const Numbers ones = Numbers::Ones(v.rows(), 1);
  const Numbers mixing = mixing_matrix(call, b, h);

  const auto run = [&](const mhla::Inputs<double>& in, const Numbers& m,
                       double separate_eps) -> Numbers {
    switch (op.denominator) {
      case mhla::cuda::Denominator::kKeySum:
        return attend(call, in, m, mhla::KeySum{separate_eps}, scale);
      case mhla::cuda::Denominator::kCrossQuery:
        return attend(call, in, m, mhla::CrossQuery{separate_eps}, scale);
      default:
        return attend(call, in, m, mhla::NoNormalizer{}, scale);
    }
  };
  const auto sums = [&](const Numbers& qs, const Numbers& ks, const Numbers& vs, const Numbers& m) {
    return attend(call, {.q = qs, .k = ks, .v = vs}, m, mhla::NoNormalizer{}, 1);
  };
  // With magnitudes for numbers; eta is added to summaries, mixtures and weights.
  const auto magnitude = [&](const Numbers& plus_q, const Numbers& plus_k, const Numbers& values) {
    const Numbers plus_v = values.cwiseAbs(), plus_m = mixing.cwiseAbs();
    Numbers a = sums(plus_q, plus_k, plus_v, plus_m);
    const double unit = 1.0 / mhla::cuda::summary_scale(call.key_slots());
    a.colwise() += (unit * eta * (1 + plus_m.rowwise().sum().maxCoeff())) * plus_q.rowwise().sum();
    return Numbers(a.rowwise() + eta * plus_v.colwise().sum());
  };

  const Numbers turned_q = turned(q, call.query_angles),
                turned_k = turned(k, call.angles_of_keys());
  mhla::Inputs<double> in{.q = turned_q, .k = turned_k, .v = v};
  in.query_mask = call.query_mask(b), in.key_mask = call.key_mask(b);
  if (call.rotary()) in.normalizer_q = q, in.normalizer_k = k;
  Expected result{run(in, mixing, eps), Numbers()};
  const double growth = gamma(chain);
  const double e_n =
                   std::pow(1 + u, rounding.numerator + (call.rotary() ? 2 : 0)) * (1 + growth) - 1,
               e_d = std::pow(1 + u, rounding.denominator) * (1 + growth) - 1;
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
    const auto magnitudes_of_row = [&] { return result.o.row(t).transpose().array().abs(); };
    const Eigen::ArrayXd o = magnitudes_of_row();
    Eigen::ArrayXd before = scale * (e_n * a.row(t).transpose().array() + e_d * z(t) * o) / margin;
    if (call.normed() && which == Outputs::kFinal) normalise(call, b, h, t, result, before);
    const Eigen::ArrayXd bound = before + kRoundoff<T> * (magnitudes_of_row() + before + eta);
    result.bound.row(t) = bound.matrix().transpose();
    if (!(margin > 0)) result.bound.row(t).setConstant(std::numeric_limits<double>::infinity());
  }
  return result;
}

template Expected expected(const Call<bfloat16>&, int, int, double, Outputs);
template Expected expected(const Call<half>&, int, int, double, Outputs);
template Expected expected(const Call<float>&, int, int, double, Outputs);

}  // namespace cuda_test
