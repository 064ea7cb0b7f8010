#pragma once

/// \file
/// Output rows of the attention layers by their definitions (the heads of vision_layer.hpp,
/// video_layer.hpp and language_layer.hpp), in double. Shares with the layers only the tables that
/// say where parameters are. Covers what the benchmarks run: the authors' normalisers and relu, and
/// no LePE of videos, no short convolutions, as many key heads as heads.
///
///     exact_rows(layer, parameters, x, tokens)     // [tokens,C]
///
/// are the rows of `tokens` for one item x [N,C], with parameters that lie as those of the layer.

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "mhla/layer/language_layer.hpp"
#include "mhla/layer/video_layer.hpp"
#include "mhla/layer/vision_layer.hpp"
#include "support/cost.hpp"

namespace mhla::bench {

namespace layer_detail {

using Table = Matrix<double>;
using Row = Eigen::RowVectorXd;
using Column = Eigen::VectorXd;

/// Parameters by name.
class Tensors {
 public:
  Tensors(const ParameterTable& table, std::span<const double> numbers)
      : table_(table), numbers_(numbers) {}

  Row row(const std::string& name) const {
    const auto x = table_.numbers(numbers_, name);
    return Eigen::Map<const Row>(x.data(), std::ssize(x));
  }
  Table matrix(const std::string& name) const {
    const auto x = table_.matrix(numbers_, name);
    return Eigen::Map<const Table>(x.data, x.rows, x.cols);
  }
  /// x W^T + b, the bias where there is one.
  Table project(const Table& x, const std::string& name) const {
    Table y = x * matrix(name + ".weight").transpose();
    if (table_.find(name + ".bias") != nullptr) y.rowwise() += row(name + ".bias");
    return y;
  }

 private:
  const ParameterTable& table_;
  std::span<const double> numbers_;
};

inline void layer_normalize(Table& x, const Row& gain, const Row& shift, double eps) {
  for (Index t = 0; t < x.rows(); ++t) {
    Row n = x.row(t).array() - x.row(t).mean();
    n /= std::sqrt(n.squaredNorm() / number(n.size()) + eps);
    x.row(t) = n.cwiseProduct(gain) + shift;
  }
}

/// In groups of as many columns as there are gains.
inline void rms_normalize(Table& x, const Row& gain, double eps) {
  const Index group = gain.size();
  for (Index t = 0; t < x.rows(); ++t) {
    for (Index c = 0; c < x.cols(); c += group) {
      auto n = x.row(t).segment(c, group);
      const double size = std::sqrt(n.squaredNorm() / number(group) + eps);
      n = n.cwiseProduct(gain) / size;
    }
  }
}

inline Table rectified(const Table& x, double eps) { return x.cwiseMax(0).array() + eps; }
inline Table silu(const Table& x) { return x.array() / (1 + (-x.array()).exp()); }

/// Turns pair j of every head by angles[j]: the features (2j, 2j + 1), or (j, j + pairs).
inline void rotate(Eigen::Ref<Row> x, const std::vector<double>& angles, bool interleaved) {
  const auto pairs = static_cast<Index>(angles.size());
  for (Index j = 0; j < pairs; ++j) {
    const double cos = std::cos(angles[static_cast<std::size_t>(j)]);
    const double sin = std::sin(angles[static_cast<std::size_t>(j)]);
    for (Index head = 0; head < x.size(); head += 2 * pairs) {
      double& a = x[head + (interleaved ? 2 * j : j)];
      double& b = x[head + (interleaved ? 2 * j + 1 : j + pairs)];
      const double turned = a * cos - b * sin;
      b = b * cos + a * sin;
      a = turned;
    }
  }
}

/// Appends the angles of `pairs` pairs at a position.
inline void append_angles(std::vector<double>& angles, Index position, Index pairs, double base) {
  for (Index j = 0; j < pairs; ++j) {
    angles.push_back(number(position) * std::pow(base, -number(j) / number(pairs)));
  }
}

/// sum_j c_j (q . k_j) v_j of each head, over the first c.size() keys.
inline Row attend(const Row& q, const Table& k, const Table& v, const Column& c, Index heads) {
  const Index d = k.cols() / heads, e = v.cols() / heads, keys = c.size();
  Row out(v.cols());
  for (Index h = 0; h < heads; ++h) {
    const Column scores = k.block(0, h * d, keys, d) * q.segment(h * d, d).transpose();
    out.segment(h * e, e) = c.cwiseProduct(scores).transpose() * v.block(0, h * e, keys, e);
  }
  return out;
}

/// Where tokens of a grid in raster order lie.
struct Place {
  Index frame, row, column;
};
inline Place place_of(Index t, const GridShape& grid) {
  return {t / (grid[1] * grid[2]), t / grid[2] % grid[1], t % grid[2]};
}
inline Index raster(const Place& p, const GridShape& grid) {
  return (p.frame * grid[1] + p.row) * grid[2] + p.column;
}

/// Where the tokens of an image lie, which come block after block.
class ImageBlocks {
 public:
  explicit ImageBlocks(const VisionOptions& o)
      : tokens_(o.tokens), block_(o.block), across_(tokens_[2] / block_[2]) {}

  Index length() const { return block_[1] * block_[2]; }
  Index row(Index t) const { return t / length() / across_ * block_[1] + t % length() / block_[2]; }
  Index column(Index t) const {
    return t / length() % across_ * block_[2] + t % length() % block_[2];
  }
  /// The token there, or -1 outside of the image.
  Index token(Index row, Index column) const {
    if (row < 0 || column < 0 || row >= tokens_[1] || column >= tokens_[2]) return -1;
    const Index block = row / block_[1] * across_ + column / block_[2];
    return block * length() + row % block_[1] * block_[2] + column % block_[2];
  }

 private:
  GridShape tokens_, block_;
  Index across_;  // blocks in a row of them
};

/// LePE of one token.
inline Row lepe(const Table& v, Index t, const ImageBlocks& image, const Table& weights,
                const Row& bias, Index side) {
  Row sum = bias;
  for (Index tap = 0; tap < side * side; ++tap) {
    const Index from =
        image.token(image.row(t) + tap / side - side / 2, image.column(t) + tap % side - side / 2);
    if (from >= 0) sum += weights.col(tap).transpose().cwiseProduct(v.row(from));
  }
  return sum;
}

/// sum_j c_j (q_u(j) . k_j) of each head: the query u(j) has the slot of t in the block of j.
inline Row cross_query_sums(const Table& q, const Table& k, Index t, Index length, const Column& c,
                            Index heads) {
  const Index d = k.cols() / heads;
  Row sums = Row::Zero(heads);
  for (Index j = 0; j < k.rows(); ++j) {
    const Row products = q.row(j - j % length + t % length).cwiseProduct(k.row(j));
    for (Index h = 0; h < heads; ++h) sums[h] += c[j] * products.segment(h * d, d).sum();
  }
  return sums;
}

}  // namespace layer_detail

inline Matrix<double> exact_rows(const VisionLayer<float>& layer,
                                 std::span<const double> parameters, Matrix<double> x,
                                 const std::vector<Index>& tokens) {
  using namespace layer_detail;
  constexpr double kNormalizerEps = 1e-6;
  const VisionOptions& o = layer.options();
  const Tensors p(layer.table(), parameters);
  const Index c = o.channels;
  layer_normalize(x, p.row("norm.weight"), p.row("norm.bias"), o.layer_norm_eps);
  const Table qkv = p.project(x, "to_qkv"), v = qkv.rightCols(c);
  Table q = qkv.leftCols(c), k = qkv.middleCols(c, c);
  if (o.qk_norm) {
    rms_normalize(q, p.row("q_norm.weight"), o.qk_norm_eps);
    rms_normalize(k, p.row("k_norm.weight"), o.qk_norm_eps);
  }
  q = rectified(q, o.feature_eps), k = rectified(k, o.feature_eps);
  const ImageBlocks image(o);
  const Table mixing = p.matrix("piece_attn.conv.weight"), weights = p.matrix("lepe.weight");
  Table heads(std::ssize(tokens), c);
  for (Index r = 0; r < heads.rows(); ++r) {
    const Index t = tokens[static_cast<std::size_t>(r)];
    Column of_keys(k.rows());
    for (Index j = 0; j < k.rows(); ++j) {
      of_keys[j] = mixing(t / image.length(), j / image.length());
    }
    Row a = attend(q.row(t), k, v, of_keys, o.heads);
    const Row sums = cross_query_sums(q, k, t, image.length(), of_keys, o.heads);
    for (Index h = 0; h < o.heads; ++h) {
      a.segment(h * (c / o.heads), c / o.heads) /= sums[h] + kNormalizerEps;
    }
    heads.row(r) = a + lepe(v, t, image, weights, p.row("lepe.bias"), o.lepe);
  }
  return p.project(heads, "to_out.0");
}

inline Matrix<double> exact_rows(const VideoLayer<float>& layer, std::span<const double> parameters,
                                 const Matrix<double>& x, const std::vector<Index>& tokens) {
  using namespace layer_detail;
  const VideoOptions& o = layer.options();
  const Tensors p(layer.table(), parameters);
  const Index pairs = o.channels / o.heads / 2, narrow = pairs / 3;  // those of rows, of columns
  const auto turned = [&](const Table& rows, const std::string& name, const auto& token) {
    Table f = p.project(rows, name);
    rms_normalize(f, p.row("norm_" + name + ".weight"), o.norm_eps);
    f = rectified(f, o.feature_eps);
    for (Index r = 0; r < f.rows(); ++r) {
      const Place place = place_of(token(r), o.grid);
      std::vector<double> angles;
      append_angles(angles, place.frame, pairs - 2 * narrow, o.rotary_base);
      append_angles(angles, place.row, narrow, o.rotary_base);
      append_angles(angles, place.column, narrow, o.rotary_base);
      rotate(f.row(r), angles, true);
    }
    return f;
  };
  const auto block_of = [&](Index t) {
    const Place place = place_of(t, o.grid);
    return raster({place.frame * o.layout[0] / o.grid[0], place.row * o.layout[1] / o.grid[1],
                   place.column * o.layout[2] / o.grid[2]},
                  o.layout);
  };
  const Table own = x(tokens, Eigen::all);
  const Table q = turned(own, "q", [&](Index r) { return tokens[static_cast<std::size_t>(r)]; });
  const Table k = turned(x, "k", [](Index r) { return r; }), v = p.project(x, "v");
  const Table mixing = p.matrix("block_attn.conv.weight");
  Table a(q.rows(), q.cols());
  for (Index r = 0; r < a.rows(); ++r) {
    Column of_keys(k.rows());
    for (Index j = 0; j < k.rows(); ++j) {
      of_keys[j] = mixing(block_of(tokens[static_cast<std::size_t>(r)]), block_of(j));
    }
    a.row(r) = attend(q.row(r), k, v, of_keys, o.heads);
  }
  rms_normalize(a, p.row("g_norm.weight"), o.norm_eps);
  return p.project(a.cwiseProduct(silu(p.project(own, "g"))), "o");
}

inline Matrix<double> exact_rows(const LanguageLayer<float>& layer,
                                 std::span<const double> parameters, const Matrix<double>& x,
                                 const std::vector<Index>& tokens) {
  using namespace layer_detail;
  const LanguageOptions& o = layer.options();
  const Tensors p(layer.table(), parameters);
  const auto turned = [&](const Table& rows, const std::string& name, const auto& token) {
    Table f = rectified(p.project(rows, name), 0);
    for (Index r = 0; r < f.rows(); ++r) {
      std::vector<double> angles;
      append_angles(angles, token(r), f.cols() / o.heads / 2, o.rotary_base);
      rotate(f.row(r), angles, false);
    }
    return f;
  };
  const Table own = x(tokens, Eigen::all);
  const Table q =
      turned(own, "q_proj", [&](Index r) { return tokens[static_cast<std::size_t>(r)]; });
  const Table k = turned(x, "k_proj", [](Index r) { return r; }), v = p.project(x, "v_proj");
  const double scale = 1 / std::sqrt(number(q.cols() / o.heads));
  const Table mixing = p.matrix("mixing_matrix");
  Table a(q.rows(), v.cols());
  for (Index r = 0; r < a.rows(); ++r) {
    const Index t = tokens[static_cast<std::size_t>(r)];
    Column of_keys(t + 1);
    for (Index j = 0; j <= t; ++j) of_keys[j] = scale * mixing(t / o.chunk, j / o.chunk);
    a.row(r) = attend(q.row(r), k, v, of_keys, o.heads);
  }
  rms_normalize(a, p.row("g_norm_swish_gate.weight"), o.norm_eps);
  return p.project(a.cwiseProduct(silu(p.project(own, "g_proj"))), "o_proj");
}

}  // namespace mhla::bench
