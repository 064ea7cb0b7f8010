#pragma once

/// \file
/// Tokens that are functions of their position, and rows of outputs by the definition.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <mhla/core/matrix.hpp>

#include "../support/random.hpp"

namespace endless_stream {

using mhla::Index;
using Exact = mhla::Matrix<double>;

constexpr Index kBlock = 64;  // W
constexpr Index kWidth = 64;  // D and E
using Rows = Eigen::Matrix<float, kBlock, kWidth, Eigen::RowMajor>;

constexpr Index kTenths = 10;  // numbers of a value that mark its tenth of the stream
constexpr std::array<float, 4> kWeights = {0.5f, 5e-3f, 5e-5f, 5e-6f};  // a [R]
constexpr std::array<float, 4> kDecays = {0.5f, 0.99f, 0.9999f, 1};     // lambda [R]

using Positions = Eigen::Array<Index, 8, 1>;

/// The kBlock tokens from `first` on, in a sequence of `all`.
struct Tokens {
  Rows q, k, v;  // numbers in [-1, 1]

  Tokens(Index first, Index all) {
    for (Index t = 0; t < kBlock; ++t) {
      const auto position = static_cast<std::uint64_t>(first + t);
      examples::Random random(examples::Random(position).bits());
      for (Rows* const rows : {&q, &k, &v}) {
        for (float& x : rows->row(t)) x = static_cast<float>(2 * random.uniform() - 1);
      }
      v.row(t).head<kTenths>().setZero();
      v(t, (first + t) * kTenths / all) = 1;
    }
  }
};

/// Bound of the relative error of a weight w_tj in float: n roundings of 2^-24. Sums over each of
/// two blocks have W, phi(q) . R has D, and each block that a state has taken since has 2. The rest
/// are of feature maps, coefficients, the sum of terms and the division.
inline double rounding_error(Index distance) {
  const double n = static_cast<double>(2 * distance + 2 * kBlock + kWidth + 16);
  return n * 0x1p-24 / (1 - n * 0x1p-24);
}

inline double coefficient(Index distance) {
  double sum = 0;
  for (std::size_t r = 0; r < kDecays.size(); ++r) {
    sum += double{kWeights[r]} * std::pow(double{kDecays[r]}, static_cast<double>(distance));
  }
  return sum;
}

/// Rows by the definition, and error bounds of a stream's rows.
struct Definition {
  Exact out, bound;  // [8,64], [8,1]

  Definition(const Positions& rows, Index all) {
    const auto features = [](const Rows& x) -> Exact {
      return x.cast<double>().cwiseMax(0).array() + 1e-6;
    };
    const Index n = rows.size();
    Exact q(n, kWidth), sum = Exact::Zero(n, 1), error = Exact::Zero(n, 1);
    for (Index s = 0; s < n; ++s) q.row(s) = features(Tokens(rows[s], all).q).row(0);
    out.setZero(n, kWidth);
    for (Index first = 0; first < all; first += kBlock) {
      const Tokens in(first, all);
      Exact weights = q * features(in.k).transpose();  // [8,W]
      for (Index s = 0; s < n; ++s) {
        const Index distance = rows[s] / kBlock - first / kBlock;
        const Index later = std::clamp<Index>(first + kBlock - 1 - rows[s], 0, kBlock);
        weights.row(s) *= coefficient(std::max<Index>(distance, 0));
        weights.row(s).tail(later).setZero();
        sum(s) += weights.row(s).sum();
        error(s) += weights.row(s).sum() * rounding_error(distance);
      }
      out += weights * in.v.cast<double>();
    }
    out.array().colwise() /= sum.col(0).array();
    bound = 2 * error.array() / (sum - error).array();  // numerator and denominator, |v| <= 1
  }
};

}  // namespace endless_stream
