#pragma once

/// \file
/// Parts of attention layers by definition, in a number type S that may carry derivatives
/// (dual.hpp). S has arithmetic, <, exp and sqrt, found by argument-dependent lookup. Rows are
/// tokens.

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "mhla/layer/parameters.hpp"
#include "mhla/policy/by_name.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla::test {

template <class S>
using Row = Eigen::Matrix<S, 1, Eigen::Dynamic>;
template <class S>
using Column = Eigen::Matrix<S, Eigen::Dynamic, 1>;

/// Parameters by name.
template <class S>
class NamedParameters {
 public:
  NamedParameters(const ParameterTable& table, std::span<const S> numbers)
      : table_(table), numbers_(numbers) {}

  bool has(const std::string& name) const { return table_.find(name) != nullptr; }
  std::span<const S> numbers(const std::string& name) const {
    return table_.numbers(numbers_, name);
  }
  Row<S> row(const std::string& name) const {
    const auto x = numbers(name);
    return Eigen::Map<const Row<S>>(x.data(), std::ssize(x));
  }
  Matrix<S> matrix(const std::string& name) const {
    const auto x = table_.matrix(numbers_, name);
    return Eigen::Map<const Matrix<S>>(x.data, x.rows, x.cols);
  }
  /// A mixing matrix of m blocks, or one per head.   // [1 or H, m * m]
  Matrix<S> mixing(const std::string& name, Index m) const {
    const auto x = numbers(name);
    return Eigen::Map<const Matrix<S>>(x.data(), std::ssize(x) / (m * m), m * m);
  }
  /// x W^T + b, without b if there is no bias.
  Matrix<S> project(const Matrix<S>& x, const std::string& name) const {
    Matrix<S> y = x * matrix(name + ".weight").transpose();
    if (has(name + ".bias")) y.rowwise() += row(name + ".bias");
    return y;
  }

 private:
  const ParameterTable& table_;
  std::span<const S> numbers_;
};

// ---- rows --------------------------------------------------------------------------------------

/// Normalises groups of as many columns as there are gains.
template <class S>
void rms_normalize(Matrix<S>& x, const Row<S>& gain, double eps) {
  using std::sqrt;
  const Index group = gain.size();
  for (Index t = 0; t < x.rows(); ++t) {
    for (Index c = 0; c < x.cols(); c += group) {
      S squares(0);
      for (Index i = c; i < c + group; ++i) squares += x(t, i) * x(t, i);
      const S size = sqrt(squares / S(static_cast<double>(group)) + S(eps));
      for (Index i = c; i < c + group; ++i) x(t, i) = x(t, i) / size * gain[i - c];
    }
  }
}

template <class S>
void layer_normalize(Matrix<S>& x, const Row<S>& gain, const Row<S>& shift, double eps) {
  for (Index t = 0; t < x.rows(); ++t) {
    const S mean = x.row(t).sum() / S(static_cast<double>(x.cols()));
    for (Index c = 0; c < x.cols(); ++c) x(t, c) -= mean;
  }
  rms_normalize(x, gain, eps);
  x.rowwise() += shift;
}

template <class S>
void rectify(Matrix<S>& x, double eps) {
  for (S& a : x.reshaped()) a = (S(0) < a ? a : S(0)) + S(eps);
}

template <class S>
void apply_silu(Matrix<S>& x) {
  using std::exp;
  for (S& a : x.reshaped()) a = a / (S(1) + exp(-a));
}

/// Causal depthwise convolution over sequences of all rows.
/// \param weight  [channels,taps], the last tap is that of the token itself
template <class S>
Matrix<S> convolve(const Matrix<S>& x, const Matrix<S>& weight, const Row<S>& bias) {
  Matrix<S> y(x.rows(), x.cols());
  y.rowwise() = bias;
  for (Index t = 0; t < x.rows(); ++t) {
    for (Index back = 0; back < std::min<Index>(weight.cols(), t + 1); ++back) {
      const auto tap = weight.col(weight.cols() - 1 - back).transpose();
      y.row(t) += tap.cwiseProduct(x.row(t - back));
    }
  }
  return y;
}

/// Rotates pair j of every head by angles[j]: the features (2j, 2j + 1), or (j, j + pairs). Later
/// features stay unchanged.
template <class S>
void rotate(Eigen::Ref<Row<S>> x, Index heads, const std::vector<double>& angles,
            bool interleaved) {
  const auto pairs = static_cast<Index>(angles.size());
  for (Index j = 0; j < pairs; ++j) {
    const S cos(std::cos(angles[static_cast<std::size_t>(j)]));
    const S sin(std::sin(angles[static_cast<std::size_t>(j)]));
    for (Index head = 0; head < x.size(); head += x.size() / heads) {
      S& a = x[head + (interleaved ? 2 * j : j)];
      S& b = x[head + (interleaved ? 2 * j + 1 : j + pairs)];
      const S turned = a * cos - b * sin;
      b = b * cos + a * sin;
      a = turned;
    }
  }
}

/// Appends the angles of `pairs` pairs at a position.
inline void append_angles(std::vector<double>& angles, Index position, Index pairs, double base) {
  for (Index j = 0; j < pairs; ++j) {
    const double share = static_cast<double>(j) / static_cast<double>(pairs);
    angles.push_back(static_cast<double>(position) * std::pow(base, -share));
  }
}

// ---- tokens ------------------------------------------------------------------------------------

/// Tokens of a grid in raster order, or block by block.
class TokenGrid {
 public:
  using Place = std::array<Index, 3>;  // along frames, rows, columns

  TokenGrid(const GridShape& tokens, const GridShape& block, bool raster)
      : tokens_(tokens.sizes), block_(block.sizes), raster_(raster) {
    for (std::size_t a = 0; a < 3; ++a) layout_[a] = tokens_[a] / block_[a];
  }

  Index tokens() const { return count(tokens_); }
  Index block(Index t) const { return raster_ ? at(layout_, over(t)) : t / count(block_); }
  Index slot(Index t) const { return raster_ ? at(block_, within(place(t))) : t % count(block_); }
  /// The token in a slot of a block.
  Index token(Index block, Index slot) const {
    return raster_ ? at(tokens_, place(block, slot)) : block * count(block_) + slot;
  }
  Place place(Index t) const { return raster_ ? of(tokens_, t) : place(block(t), slot(t)); }
  /// The token at a place, or -1 outside the grid.
  Index token(const Place& p) const {
    for (std::size_t a = 0; a < 3; ++a) {
      if (p[a] < 0 || p[a] >= tokens_[a]) return -1;
    }
    Place block = p;
    for (std::size_t a = 0; a < 3; ++a) block[a] /= block_[a];
    return raster_ ? at(tokens_, p) : token(at(layout_, block), at(block_, within(p)));
  }

 private:
  static Index count(const Place& sizes) { return sizes[0] * sizes[1] * sizes[2]; }
  static Index at(const Place& sizes, const Place& p) {
    return (p[0] * sizes[1] + p[1]) * sizes[2] + p[2];
  }
  static Place of(const Place& sizes, Index i) {
    return {i / (sizes[1] * sizes[2]), i / sizes[2] % sizes[1], i % sizes[2]};
  }
  Place over(Index t) const {
    Place p = of(tokens_, t);
    for (std::size_t a = 0; a < 3; ++a) p[a] /= block_[a];
    return p;
  }
  Place within(Place p) const {
    for (std::size_t a = 0; a < 3; ++a) p[a] %= block_[a];
    return p;
  }
  Place place(Index block, Index slot) const {
    Place p = of(layout_, block);
    const Place inside = of(block_, slot);
    for (std::size_t a = 0; a < 3; ++a) p[a] = p[a] * block_[a] + inside[a];
    return p;
  }

  Place tokens_, block_, layout_{};
  bool raster_;
};

/// The depthwise convolution of v at one token.
/// \param weight  [channels,taps]
template <class S>
Row<S> convolve_at(const Matrix<S>& v, Index t, const TokenGrid& grid, const GridShape& kernel,
                   const Matrix<S>& weight, const Row<S>& bias) {
  Row<S> sum = bias;
  const TokenGrid taps(kernel, kernel, true);
  for (Index tap = 0; tap < taps.tokens(); ++tap) {
    TokenGrid::Place from = grid.place(t);
    for (std::size_t a = 0; a < 3; ++a) from[a] += taps.place(tap)[a] - kernel.sizes[a] / 2;
    const Index token = grid.token(from);
    if (token >= 0) sum += weight.col(tap).transpose().cwiseProduct(v.row(token));
  }
  return sum;
}

// ---- attention ---------------------------------------------------------------------------------

/// Mixing matrices of a grid of blocks, by a table per matrix of coefficients by offset. Rows sum
/// to 1 over all blocks, or over those that are not later.   // [1 or H, M * M]
template <class S>
Matrix<S> matrices_of_tables(std::span<const S> tables, const GridShape& offsets,
                             const GridShape& blocks, bool causal) {
  const TokenGrid places(blocks, {1, 1, 1}, true), table(offsets, {1, 1, 1}, true);
  const Index m = places.tokens(), size = table.tokens();
  Matrix<S> all = Matrix<S>::Constant(std::ssize(tables) / size, m * m, S(0));
  for (Index h = 0; h < all.rows(); ++h) {
    for (Index i = 0; i < m; ++i) {
      auto row = all.row(h).segment(i * m, causal ? i + 1 : m);
      for (Index b = 0; b < row.size(); ++b) {
        TokenGrid::Place offset = places.place(i);
        for (std::size_t a = 0; a < 3; ++a) {
          const Index reach = offsets.sizes[a] / 2;
          offset[a] = std::clamp(offset[a] - places.place(b)[a], -reach, reach) + reach;
        }
        row[b] = tables[static_cast<std::size_t>(h * size + table.token(offset))];
      }
      const S sum = row.sum();
      for (S& c : row) c = c / sum;
    }
  }
  return all;
}

/// Coefficients c [keys, 1 or H] of head h.
template <class S>
Column<S> of_head(const Matrix<S>& c, Index h) {
  return c.col(c.cols() == 1 ? 0 : h);
}

/// sum_j c_j (q_h . k_j) v_j of each head h, over the first c.rows() keys. A key head serves
/// heads / key_heads of them.
template <class S>
Row<S> attend(const Row<S>& q, const Matrix<S>& k, const Matrix<S>& v, const Matrix<S>& c,
              Index heads, Index key_heads) {
  const Index d = q.size() / heads, e = v.cols() / key_heads, keys = c.rows();
  Row<S> out(heads * e);
  for (Index h = 0; h < heads; ++h) {
    const Index from = h / (heads / key_heads);
    const Column<S> scores = k.block(0, from * d, keys, d) * q.segment(h * d, d).transpose();
    const Column<S> weights = of_head(c, h).cwiseProduct(scores);
    out.segment(h * e, e) = weights.transpose() * v.block(0, from * e, keys, e);
  }
  return out;
}

/// Softmax attention of each head over all keys.
template <class S>
Row<S> attend_softmax(const Row<S>& q, const Matrix<S>& k, const Matrix<S>& v, Index heads) {
  using std::exp;
  const Index d = q.size() / heads, e = v.cols() / heads;
  const S scale(1 / std::sqrt(static_cast<double>(d)));
  Row<S> out(heads * e);
  for (Index h = 0; h < heads; ++h) {
    Column<S> weights = k.middleCols(h * d, d) * q.segment(h * d, d).transpose();
    for (S& weight : weights) weight = exp(scale * weight);
    out.segment(h * e, e) = weights.transpose() * v.middleCols(h * e, e) / weights.sum();
  }
  return out;
}

/// den(sum_j c_j (q_u . k_j)) of each head. u is t itself, or for CrossQuery the query with the
/// slot of t in the block of j.
template <class S>
Row<S> denominators(const AnyNormalizer& normalizer, const Matrix<S>& q, const Matrix<S>& k,
                    Index t, const TokenGrid& grid, const Matrix<S>& c, Index heads) {
  const Index d = k.cols() / heads;
  const bool cross = normalizer.sums() == WeightSums::kCrossQuery;
  Row<S> sums = Row<S>::Constant(heads, S(0));
  for (Index j = 0; j < k.rows(); ++j) {
    const Index u = cross ? grid.token(grid.block(j), grid.slot(t)) : t;
    const Row<S> products = q.row(u).cwiseProduct(k.row(j));
    for (Index h = 0; h < heads; ++h) {
      sums[h] += of_head(c, h)[j] * products.segment(h * d, d).sum();
    }
  }
  Row<S> den(heads);
  normalizer.denominators(static_cast<const S*>(sums.data()), heads, den.data());
  return den;
}

/// Mixing coefficients of all keys for query t, by NamedParameters::mixing of m blocks.
/// [keys, 1 or H]
template <class S>
Matrix<S> coefficients_of(Index t, const TokenGrid& grid, const Matrix<S>& mixing, Index m) {
  Matrix<S> c(grid.tokens(), mixing.rows());
  for (Index j = 0; j < c.rows(); ++j) {
    c.row(j) = mixing.col(grid.block(t) * m + grid.block(j)).transpose();
  }
  return c;
}

}  // namespace mhla::test
