#pragma once

/// \file
/// Output rows of the attention layers by their definitions (the heads of vision_layer.hpp,
/// video_layer.hpp and language_layer.hpp), in a number type that may carry derivatives. The only
/// code shared with the layers is the tables of parameter positions.
///
///     exact_rows(layer, parameters, x, tokens)     // [tokens,C]
///
/// are the rows of `tokens` for one item x [N,C], with parameters laid out as in the layer.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "mhla/layer/language_layer.hpp"
#include "mhla/layer/video_layer.hpp"
#include "mhla/layer/vision_layer.hpp"
#include "support/any_map.hpp"
#include "support/layer_pieces.hpp"

namespace mhla::test {

/// [0, n).
inline std::vector<Index> all_tokens(Index n) {
  std::vector<Index> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), Index{0});
  return tokens;
}

/// Divides x of every head by the number of that head.
template <class S>
void divide_heads(Row<S>& x, const Row<S>& by) {
  const Index e = x.size() / by.size();
  for (Index i = 0; i < x.size(); ++i) x[i] = x[i] / by[i / e];
}

/// The mixing matrices of a layer, from coefficients or, if there are offsets, from tables.
/// [1 or H, M * M]
template <class S>
Matrix<S> mixing_of(const NamedParameters<S>& p, const std::string& matrix,
                    const std::string& tables, const GridShape& offsets, const GridShape& blocks,
                    bool causal = false) {
  return p.has(tables) ? matrices_of_tables(p.numbers(tables), offsets, blocks, causal)
                       : p.mixing(matrix, blocks[0] * blocks[1] * blocks[2]);
}

template <class A, class S>
Matrix<S> exact_rows(const VisionLayer<A>& layer, std::span<const S> parameters, Matrix<S> x,
                     const std::vector<Index>& tokens) {
  const VisionOptions& o = layer.options();
  const NamedParameters<S> p(layer.table(), parameters);
  const Index c = o.channels;
  if (o.layer_norm) {
    layer_normalize(x, p.row("norm.weight"), p.row("norm.bias"), o.layer_norm_eps);
  }
  const Matrix<S> qkv = p.project(x, "to_qkv"), v = qkv.rightCols(c);
  Matrix<S> q = qkv.leftCols(c), k = qkv.middleCols(c, c);
  if (o.qk_norm) {
    rms_normalize(q, p.row("q_norm.weight"), o.qk_norm_eps);
    rms_normalize(k, p.row("k_norm.weight"), o.qk_norm_eps);
  }
  if (!o.softmax) rectify(q, o.feature_eps), rectify(k, o.feature_eps);
  const TokenGrid grid(o.tokens, o.block, o.order == TokenOrder::kRaster);
  const Index m = grid.tokens() / Grid(o.tokens, o.block).block_size(0);
  const Matrix<S> mixing = mixing_of(p, "piece_attn.conv.weight", "piece_attn.offsets", o.offsets,
                                     Grid(o.tokens, o.block).block_grid());
  Matrix<S> rows(std::ssize(tokens), c);
  for (Index r = 0; r < rows.rows(); ++r) {
    const Index t = tokens[static_cast<std::size_t>(r)];
    Row<S> a;
    if (o.softmax) {
      a = attend_softmax<S>(q.row(t), k, v, o.heads);
    } else {
      const Matrix<S> of_keys = coefficients_of(t, grid, mixing, m);
      a = attend<S>(q.row(t), k, v, of_keys, o.heads, o.heads);
      divide_heads(a, denominators(o.normalizer, q, k, t, grid, of_keys, o.heads));
    }
    if (o.lepe > 0) {
      a += convolve_at(v, t, grid, {o.lepe, o.lepe}, p.matrix("lepe.weight"), p.row("lepe.bias"));
    }
    rows.row(r) = a;
  }
  return p.project(rows, "to_out.0");
}

template <class A, class S>
Matrix<S> exact_rows(const VideoLayer<A>& layer, std::span<const S> parameters, const Matrix<S>& x,
                     const std::vector<Index>& tokens) {
  const VideoOptions& o = layer.options();
  const NamedParameters<S> p(layer.table(), parameters);
  const TokenGrid grid(
      o.grid, {o.grid[0] / o.layout[0], o.grid[1] / o.layout[1], o.grid[2] / o.layout[2]}, true);
  const auto features = [&](const Matrix<S>& rows, const std::string& name) {
    Matrix<S> f = p.project(rows, name);
    if (o.qk_norm) rms_normalize(f, p.row("norm_" + name + ".weight"), o.norm_eps);
    if (!o.softmax) rectify(f, o.feature_eps);
    return f;
  };
  const Index pairs = o.channels / o.heads / 2, narrow = pairs / 3;  // of rows, of columns
  const auto turn = [&](Eigen::Ref<Row<S>> row, Index token) {
    const TokenGrid::Place place = grid.place(token);
    std::vector<double> angles;
    append_angles(angles, place[0], pairs - 2 * narrow, o.rotary_base);
    append_angles(angles, place[1], narrow, o.rotary_base);
    append_angles(angles, place[2], narrow, o.rotary_base);
    rotate<S>(row, o.heads, angles, true);
  };
  // Features that are not rotated.
  const bool sums = !o.softmax && o.normalizer.sums() != WeightSums::kNone;
  const Matrix<S> read = x(tokens, Eigen::all), v = p.project(x, "v");
  const Matrix<S> q = features(sums ? x : read, "q"), k = features(x, "k");
  Matrix<S> turned_k = k;
  for (Index j = 0; j < k.rows(); ++j) turn(turned_k.row(j), j);
  const Index m = o.layout[0] * o.layout[1] * o.layout[2];
  const Matrix<S> mixing =
      mixing_of(p, "block_attn.conv.weight", "block_attn.offsets", o.offsets, o.layout);
  Matrix<S> a(read.rows(), v.cols());
  for (Index r = 0; r < a.rows(); ++r) {
    const Index t = tokens[static_cast<std::size_t>(r)];
    Row<S> turned_q = q.row(sums ? t : r);
    turn(turned_q, t);
    if (o.softmax) {
      a.row(r) = attend_softmax(turned_q, turned_k, v, o.heads);
      continue;
    }
    const Matrix<S> of_keys = coefficients_of(t, grid, mixing, m);
    Row<S> out = attend(turned_q, turned_k, v, of_keys, o.heads, o.heads);
    if (sums) divide_heads(out, denominators(o.normalizer, q, k, t, grid, of_keys, o.heads));
    a.row(r) = out;
  }
  rms_normalize(a, p.row("g_norm.weight"), o.norm_eps);
  if (o.gate) {
    Matrix<S> gate = p.project(read, "g");
    apply_silu(gate);
    a = a.cwiseProduct(gate).eval();
  }
  for (Index r = 0; o.lepe && r < a.rows(); ++r) {
    a.row(r) += convolve_at(v, tokens[static_cast<std::size_t>(r)], grid, {3, 3, 3},
                            p.matrix("lepe.weight"), p.row("lepe.bias"));
  }
  return p.project(a, "o");
}

/// Returns a map of this name and width, for its kind and shapes.
inline AnyMap<double> map_of(const std::string& name, Index width) {
  const DenseWeights<double> dense{Matrix<double>::Zero(width, width),
                                   Matrix<double>::Zero(1, width)};
  if (name == "relu") return {Relu{0}};
  if (name == "elu") return {EluPlusOne{}};
  if (name == "hedgehog") return {Hedgehog<double>(dense)};
  if (name == "t2r") return {T2R<double>(dense.weight)};
  if (name == "dpfp") return {Dpfp{}};
  if (name == "elementwise_product") return {ElementwiseProduct<double>(dense, dense)};
  return {Identity{}};
}

/// phi of every head, with the weights of phi in the table: `side` is q or k.
template <class S>
Matrix<S> head_features(const NamedParameters<S>& p, const std::string& map,
                        const std::string& side, const Matrix<S>& x, Index heads) {
  const Index width = x.cols() / heads;
  const AnyMap<double> phi = map_of(map, width);
  std::vector<S> weights;
  for (const char* layer : {"layer", "layer1", "layer2"}) {
    for (const char* part : {".weight", ".bias"}) {
      const auto numbers = p.numbers("feature_map_" + side + "." + layer + part);
      weights.insert(weights.end(), numbers.begin(), numbers.end());
    }
  }
  const Index features = phi.features(width);
  Matrix<S> y(x.rows(), heads * features);
  for (Index t = 0; t < x.rows(); ++t) {
    for (Index h = 0; h < heads; ++h) {
      const S* const head = &x(t, h * width);
      const std::vector<S> f = wide_features(phi, std::vector<S>(head, head + width), weights);
      std::copy(f.begin(), f.end(), &y(t, h * features));
    }
  }
  return y;
}

template <class A, class S>
Matrix<S> exact_rows(const LanguageLayer<A>& layer, std::span<const S> parameters,
                     const Matrix<S>& x, const std::vector<Index>& tokens) {
  const LanguageOptions& o = layer.options();
  const NamedParameters<S> p(layer.table(), parameters);
  const Index key_heads = o.key_heads == 0 ? o.heads : o.key_heads;
  const std::vector<Index> all = all_tokens(x.rows());
  // Convolutions read earlier tokens.
  const auto projected = [&](const std::vector<Index>& of, const std::string& side) {
    if (!o.short_convolution) return p.project(x(of, Eigen::all), side + "_proj");
    const Matrix<S> weight = p.matrix(side + "_conv1d.weight");
    const Row<S> bias = o.convolution_bias ? p.row(side + "_conv1d.bias")
                                           : Row<S>::Constant(weight.rows(), S(0)).eval();
    Matrix<S> y = convolve(p.project(x, side + "_proj"), weight, bias);
    apply_silu(y);
    return Matrix<S>(y(of, Eigen::all));
  };
  const auto turned = [&](const std::vector<Index>& of, const std::string& side, Index heads) {
    const Matrix<S> rows = projected(of, side);
    Matrix<S> f = head_features(p, o.feature_map, side, rows, heads);
    for (Index r = 0; r < f.rows(); ++r) {
      std::vector<double> angles;
      append_angles(angles, of[static_cast<std::size_t>(r)], rows.cols() / heads / 2,
                    o.rotary_base);
      rotate<S>(f.row(r), heads, angles, false);
    }
    return f;
  };
  const Matrix<S> q = turned(tokens, "q", o.heads), k = turned(all, "k", key_heads);
  const Matrix<S> v = projected(all, "v");
  const Matrix<S> mixing =
      mixing_of(p, "mixing_matrix", "mixing_offsets", o.offsets, o.chunks, true);
  const S scale(1 / std::sqrt(static_cast<double>(q.cols() / o.heads)));
  Matrix<S> a(q.rows(), v.cols() / key_heads * o.heads);
  for (Index r = 0; r < a.rows(); ++r) {
    const Index t = tokens[static_cast<std::size_t>(r)];
    Matrix<S> of_keys(t + 1, mixing.rows());
    for (Index j = 0; j <= t; ++j) {
      of_keys.row(j) = scale * mixing.col(t / o.chunk * o.chunks + j / o.chunk).transpose();
    }
    a.row(r) = attend<S>(q.row(r), k, v, of_keys, o.heads, key_heads);
  }
  rms_normalize(a, p.row(o.gate ? "g_norm_swish_gate.weight" : "g_norm.weight"), o.norm_eps);
  if (o.gate) {
    Matrix<S> gate = p.project(x(tokens, Eigen::all), "g_proj");
    apply_silu(gate);
    a = a.cwiseProduct(gate).eval();
  }
  return p.project(a, "o_proj");
}

}  // namespace mhla::test
