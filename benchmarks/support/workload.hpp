#pragma once

/// \file
/// Data of a shape, its operation counts, and the check that comes before any timing.

#include <cmath>
#include <random>
#include <vector>

#include "mhla/attention/batched.hpp"
#include "mhla/attention/naive.hpp"
#include "mhla/stage/locality.hpp"
#include "support/shapes.hpp"

namespace mhla::bench {

/// q, k, v and out of a shape in [B, N, H, D] layout, uniform in [-1, 1).
template <Scalar T>
class Workload {
 public:
  explicit Workload(const Shape& shape)
      : shape_(shape),
        q_(draw(shape.width, 1)),
        k_(draw(shape.width, 2)),
        v_(draw(shape.values, 3)),
        out_(v_.size()) {}

  const Shape& shape() const { return shape_; }
  BatchInputs<T> inputs() const {
    return {.q = view(q_, shape_.width), .k = view(k_, shape_.width), .v = view(v_, shape_.values)};
  }
  TensorView<T> out() {
    return bnhd(out_.data(), shape_.batch, shape_.tokens(), shape_.heads, shape_.values);
  }

 private:
  std::vector<T> draw(Index width, unsigned seed) const {
    std::minstd_rand generator(seed);
    std::vector<T> values(
        static_cast<std::size_t>(shape_.batch * shape_.tokens() * shape_.heads * width));
    for (T& x : values) {
      x = static_cast<T>(static_cast<float>(generator()) / 1073741824.0f - 1.0f);
    }
    return values;
  }
  TensorView<const T> view(const std::vector<T>& data, Index width) const {
    return bnhd(data.data(), shape_.batch, shape_.tokens(), shape_.heads, width);
  }

  Shape shape_;
  std::vector<T> q_, k_, v_, out_;
};

/// Multiply-adds of the bidirectional operator, two flops each: summary, mixing, read-out.
inline double bidirectional_flops(const Shape& s, Index blocks) {
  const auto n = static_cast<double>(s.tokens()), m = static_cast<double>(blocks);
  const auto de = static_cast<double>(s.width * s.values);
  return static_cast<double>(s.batch * s.heads) * (4 * n * de + 2 * m * m * de);
}

/// Bytes that any implementation must move: q, k, v once in, out once out.
template <Scalar T>
double io_bytes(const Shape& s) {
  return static_cast<double>(s.batch * s.tokens() * s.heads * 2 * (s.width + s.values)) * sizeof(T);
}

/// Largest error over bound of sampled output rows of the default operator, against the definition
/// in double. For positive features and mixing the bound of reliability is, with m roundings on the
/// longest chain, |o^ - o| <= gamma_m (A + |o| Z) / Z + 3u |o| with A = sum w |v|, Z = sum w.
template <Scalar T, Partition P>
double worst_error_over_bound(const Workload<T>& w, TensorView<const T> out, const P& blocks,
                              const MixingMatrix<accumulator_t<T>>& mixing, Index samples) {
  using A = accumulator_t<T>;
  const double u = static_cast<double>(std::numeric_limits<A>::epsilon()) / 2;
  const Shape& s = w.shape();
  const Index n = s.tokens();
  std::vector<Index> block_of(static_cast<std::size_t>(n));
  for (Index b = 0; b < blocks.blocks(); ++b) {
    for (Index r = 0; r < blocks.runs(b); ++r) {
      const Run run = blocks.run(b, r);
      std::fill_n(block_of.begin() + run.begin, run.length, b);
    }
  }
  const auto features = [](MatrixView<const T> x, Index begin, Index count) {
    Matrix<double> f(count, x.cols);
    for (Index t = 0; t < count; ++t) {
      for (Index j = 0; j < x.cols; ++j) {
        f(t, j) = std::max(static_cast<double>(static_cast<A>(x(begin + t, j))), 0.0) +
                  static_cast<double>(static_cast<A>(1e-6));
      }
    }
    return f;
  };
  std::minstd_rand generator(7);
  double worst = 0;
  for (Index sample = 0; sample < samples; ++sample) {
    const Index b = static_cast<Index>(generator()) % s.batch;
    const Index h = static_cast<Index>(generator()) % s.heads;
    const Index t = static_cast<Index>(generator()) % n;
    const Inputs<T> head = detail::head_inputs(w.inputs(), b, h);
    NaiveProblem<double> p;
    p.q = features(head.q, t, 1);
    p.k = features(head.k, 0, n);
    p.v.resize(n, s.values);
    for (Index j = 0; j < n; ++j) {
      for (Index e = 0; e < s.values; ++e)
        p.v(j, e) = static_cast<double>(static_cast<A>(head.v(j, e)));
    }
    p.mixing = mixing.dense().template cast<double>();
    p.query_block = {block_of[static_cast<std::size_t>(t)]};
    p.key_block = block_of;
    const Matrix<double> o = naive_attention(p);
    p.v = p.v.cwiseAbs().eval();
    const Matrix<double> size = naive_attention(p);
    const double m = static_cast<double>(largest_block(blocks) + blocks.blocks() + s.width + 3);
    for (Index e = 0; e < s.values; ++e) {
      const double got = static_cast<double>(static_cast<A>(out.head(b, h)(t, e)));
      const double bound =
          m * u / (1 - m * u) * (size(0, e) + std::abs(o(0, e))) + 3 * u * std::abs(o(0, e));
      const double ratio = std::abs(got - o(0, e)) / bound;
      worst = ratio <= worst ? worst : ratio;  // a NaN is worse than anything
    }
  }
  return worst;
}

}  // namespace mhla::bench
