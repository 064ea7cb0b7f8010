#pragma once

/// \file
/// Checks of golden files that hold the operator's inputs and outputs.
///
/// The bound in float, with u = 2^-24, A = sum_j |m_ib| |q|.|k_j| |v_j|, Z = sum_j |m_ib|
/// |q|.|k_j|, and A', Z' the same with every feature enlarged by the error of its own evaluation:
///
///     |ours - o| <= (m u (A' + |o| Z') + (A' - A) + |o| (Z' - Z)) / |den|
///
/// m is the longest chain of roundings on the way of a term; a sum of n products has n of them.
/// Bidirectional: W (longest block) + M (mixing) + D (read-out) + 3 (scale, reciprocal, its
/// product). Causal: the same, and then the sum over the query's own block and its coefficient:
/// 2 W + M + D + 5. Without normaliser den = 1 and Z = Z' = 0.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "mhla/attention/batched.hpp"
#include "mhla/attention/naive.hpp"
#include "support/golden_stage.hpp"

namespace mhla::test::golden {

/// The value of a scale: a number, or an expression like K**-0.5 or 1/sqrt(D), in which K, D and
/// the like are the number of features.
class Scale {
 public:
  Scale(const Safetensors& file, Index features)
      : file_(file), text_(file.text("scale")), features_(static_cast<double>(features)) {}
  double value() {
    const double result = product();
    skip_spaces();
    if (at_ != text_.size() || !std::isfinite(result)) fail();
    return result;
  }

 private:
  double product() {
    double result = power();
    while (true) {
      if (take("/")) {
        result /= power();
      } else if (take("*")) {
        result *= power();
      } else {
        return result;
      }
    }
  }
  double power() {
    if (take("-")) return -power();
    const double base = atom();
    return take("**") || take("^") ? std::pow(base, power()) : base;
  }
  double atom() {
    const bool root = take("math.sqrt") || take("sqrt");
    if (take("(")) {
      const double inner = product();
      if (!take(")")) fail();
      return root ? std::sqrt(inner) : inner;
    }
    for (const char* name : {"head_dim", "d_k", "dk", "D", "K", "d"}) {
      if (!root && take(name)) return features_;
    }
    const char* const begin = text_.c_str() + at_;
    char* end = nullptr;
    const double number = std::strtod(begin, &end);
    if (root || end == begin) fail();
    at_ += static_cast<std::size_t>(end - begin);
    return number;
  }
  bool take(const std::string& token) {
    skip_spaces();
    if (text_.compare(at_, token.size(), token) != 0) return false;
    at_ += token.size();
    return true;
  }
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  [[noreturn]] void fail() const {
    file_.fail("has scale '" + text_ + "', which is neither a number nor an expression of K");
  }

  const Safetensors& file_;
  std::string text_;
  double features_;
  std::size_t at_ = 0;
};

/// One file of the operator, its numbers stored as T.
template <class T>
struct Problem {
  const Safetensors& file;
  bool causal, normalize;
  std::vector<Index> query_sizes, key_sizes;  // of blocks
  Index chunk = 0;                            // of causal_official, otherwise 0
  std::vector<T> q_values, k_values, v_values, out_values;
  TensorView<T> q, k, v, out;
  Matrix<T> mixing;
  AnyMap<T> query_map{Identity{}}, key_map{Identity{}};
  double scale = 1;

  Problem(const Safetensors& f, bool official)
      : file(f),
        causal(official || f.boolean("causal")),
        normalize(f.boolean("normalize")),
        mixing(matrix(f, "mixing").cast<T>()) {
    q = view("q", q_values);
    k = view("k", k_values);
    v = view("v", v_values);
    out = view("out", out_values);
    std::fill(out_values.begin(), out_values.end(), std::numeric_limits<T>::quiet_NaN());
    if (official) {
      chunk = file.integer("chunk_size");
      if (chunk < 1) file.fail("has chunk_size " + std::to_string(chunk));
      for (Index t = 0; t < q.tokens(); t += std::min(chunk, q.tokens() - t)) {
        query_sizes.push_back(std::min(chunk, q.tokens() - t));
      }
      key_sizes = query_sizes;
    } else {
      const auto sizes = [&](const char* key) {
        return file.integers(file.says(key) ? key : "block_sizes");
      };
      query_sizes = sizes("query_block_sizes");
      key_sizes = sizes("key_block_sizes");
      query_map = map("q");
      key_map = map("k");
    }
    scale = Scale(file, query_map.features(q.width())).value();
  }

  /// Runs the form that the file speaks of; shapes that do not fit throw.
  void run() {
    const BatchInputs<T> in{.q = q, .k = k, .v = v};
    if (normalize) {
      run(in, Operator{query_map, key_map, KeySum{}, scale});
    } else {
      run(in, Operator{query_map, key_map, NoNormalizer{}, scale});
    }
  }

 private:
  template <class Op>
  void run(const BatchInputs<T>& in, const Op& op) {
    const BlockSizes queries{std::span<const Index>(query_sizes)};
    const BlockSizes keys{std::span<const Index>(key_sizes)};
    if (mixing.rows() < queries.blocks() || mixing.cols() < keys.blocks()) {
      file.fail("has fewer rows or columns of mixing than blocks");
    }
    if (chunk > 0) {
      mhla::causal(in, ContiguousBlocks{chunk}, MixingMatrix<T>(mixing), op, out);
    } else if (causal) {
      if (query_sizes != key_sizes)
        file.fail("is causal with other blocks of keys than of queries");
      mhla::causal(in, queries, MixingMatrix<T>(mixing), op, out);
    } else {
      const Matrix<T> used = mixing.topLeftCorner(queries.blocks(), keys.blocks());
      bidirectional(in, queries, keys, MixingMatrix<T>(used), op, out);
    }
  }

  /// A [B, N, H, D] view of a tensor whose axes the metadata names in any order.
  TensorView<T> view(const std::string& name, std::vector<T>& values) const {
    const Tensor& tensor = file.tensor(name);
    std::string layout = file.text("layout");
    for (char& axis : layout) axis = axis == 'T' || axis == 'L' ? 'N' : axis == 'K' ? 'D' : axis;
    if (layout.size() != 4 || !std::is_permutation(layout.begin(), layout.end(), "BNHD")) {
      file.fail("has layout '" + file.text("layout") + "', which is unknown");
    }
    if (tensor.shape.size() != 4) file.fail("has tensor '" + name + "' without four axes");
    values.reserve(tensor.values.size());
    for (const double value : tensor.values) values.push_back(static_cast<T>(value));
    TensorView<T> result;
    result.data = values.data();
    Index stride = 1;
    for (std::size_t axis = 4; axis-- > 0;) {
      const std::size_t place = std::string("BNHD").find(layout[axis]);
      result.shape[place] = tensor.shape[axis];
      result.strides[place] = stride;
      stride *= tensor.shape[axis];
    }
    return result;
  }

  AnyMap<T> map(const std::string& side) const {
    const std::string name = file.text("feature_map");
    const double eps = name == "relu" ? file.number("feature_eps") : 0;
    return read_map<T>(file, name, eps,
                       {"param.", "feature_map_" + side + ".", "param.feature_map_" + side + ".",
                        name + ".param.", "feature_map.", side + ".param.", name + ".", ""});
  }
};

/// Rows of features in double, and the error that evaluating them in float may make.
struct Features {
  Matrix<double> value, error;

  Features(MatrixView<const float> x, const AnyMap<float>& map)
      : value(x.rows, map.features(x.cols)), error(value.rows(), value.cols()) {
    for (Index t = 0; t < x.rows; ++t) {
      std::vector<double> row;
      for (Index j = 0; j < x.cols; ++j) row.push_back(static_cast<double>(x(t, j)));
      const auto f = reference_features(map, row, kRoundoff);
      for (Index j = 0; j < value.cols(); ++j) {
        value(t, j) = f.value[static_cast<std::size_t>(j)];
        error(t, j) = f.error[static_cast<std::size_t>(j)];
      }
    }
  }
};

inline std::vector<Index> block_of_token(const std::vector<Index>& sizes) {
  std::vector<Index> blocks;
  for (std::size_t b = 0; b < sizes.size(); ++b) {
    blocks.insert(blocks.end(), static_cast<std::size_t>(sizes[b]), static_cast<Index>(b));
  }
  return blocks;
}

/// Compares the outputs of one head in float with the bound at the top of this file.
inline void compare_head(const Problem<float>& p, Index b, Index h, double& worst) {
  const Features q(p.q.head(b, h), p.query_map), k(p.k.head(b, h), p.key_map);
  const MatrixView<const float> v = p.v.head(b, h), out = p.out.head(b, h);
  NaiveProblem<double> exact;
  exact.q = p.scale * q.value;
  exact.k = k.value;
  exact.v.resize(v.rows, v.cols);
  for (Index t = 0; t < v.rows; ++t) {
    for (Index e = 0; e < v.cols; ++e) exact.v(t, e) = static_cast<double>(v(t, e));
  }
  exact.mixing = p.mixing.cast<double>();
  exact.query_block = block_of_token(p.query_sizes);
  exact.key_block = block_of_token(p.key_sizes);
  exact.causal = p.causal;
  exact.normalizer = p.normalize ? NaiveNormalizer::kKeySum : NaiveNormalizer::kNone;
  const Matrix<double> o = naive_attention(exact), den = naive_denominators(exact);

  NaiveProblem<double> sizes = exact;
  sizes.q = exact.q.cwiseAbs();
  sizes.k = exact.k.cwiseAbs();
  sizes.mixing = exact.mixing.cwiseAbs();
  const Matrix<double> weights = naive_weights(sizes);
  sizes.q += std::abs(p.scale) * q.error;
  sizes.k += k.error;
  const Matrix<double> larger = naive_weights(sizes);
  const Matrix<double> magnitudes = exact.v.cwiseAbs();
  const Matrix<double> a = weights * magnitudes, a_larger = larger * magnitudes;

  const Index w =
      p.key_sizes.empty() ? 0 : *std::max_element(p.key_sizes.begin(), p.key_sizes.end());
  const auto blocks = static_cast<Index>(p.key_sizes.size());
  const Index chain =
      p.causal ? 2 * w + blocks + q.value.cols() + 5 : w + blocks + q.value.cols() + 3;
  const double mu = static_cast<double>(chain) * kRoundoff;
  const double underflow = static_cast<double>(chain) * 0x1p-126;
  for (Index t = 0; t < o.rows(); ++t) {
    const double z = p.normalize ? weights.row(t).sum() : 0;
    const double z_larger = p.normalize ? larger.row(t).sum() : 0;
    for (Index e = 0; e < o.cols(); ++e) {
      const double size = std::abs(o(t, e));
      const double bound = mu * (a_larger(t, e) + size * z_larger) + (a_larger(t, e) - a(t, e)) +
                           size * (z_larger - z) + underflow;
      raise(worst, std::abs(static_cast<double>(out(t, e)) - o(t, e)), bound / std::abs(den(t, 0)));
    }
  }
}

/// Kinds op and causal_official.
inline Worst check_operator(const Safetensors& file, bool official) {
  Worst worst;
  Problem<double> in_double(file, official);
  in_double.run();
  compare(file, file.tensor("out"), in_double.out_values.data(), worst);
  Problem<float> in_float(file, official);
  in_float.run();
  for (Index b = 0; b < in_float.q.batch(); ++b) {
    for (Index h = 0; h < in_float.q.heads(); ++h) compare_head(in_float, b, h, worst.in_float);
  }
  return worst;
}

}  // namespace mhla::test::golden
