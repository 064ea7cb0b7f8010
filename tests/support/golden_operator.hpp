#pragma once

/// \file
/// Checks of golden files that hold the operator's inputs and outputs: in double against the file,
/// in float against naive_attention within the bound of reference.hpp.

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "support/golden_stage.hpp"
#include "support/problem.hpp"
#include "support/reference.hpp"

namespace mhla::test::golden {

/// The value of a scale: a number, or K**-0.5 or 1/sqrt(K) for K features, whatever K is called.
inline double read_scale(const Safetensors& file, Index features) {
  static const std::regex number(R"(-?[0-9.]+(?:e-?[0-9]+)?)");
  static const std::regex power(
      R"((?:head_dim|d_?k|[DKd]) ?(?:\*\*|\^) ?(-?[0-9.]+|\(-[0-9.]+\)))");
  static const std::regex root(R"(1(?:\.0)? ?/ ?(?:math\.)?sqrt\((?:head_dim|d_?k|[DKd])\))");
  const std::string text = file.text("scale");
  const double k = static_cast<double>(features);
  std::smatch part;
  if (std::regex_match(text, number)) return std::stod(text);
  if (std::regex_match(text, root)) return 1 / std::sqrt(k);
  if (std::regex_match(text, part, power)) {
    const std::string exponent = part[1];
    return std::pow(k, std::stod(exponent.substr(exponent[0] == '(' ? 1 : 0)));
  }
  file.fail("has scale '" + text + "', which is neither a number nor an expression of K");
}

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
    scale = read_scale(file, query_map.features(q.width()));
  }

  auto op() const {
    const WeightSums sums = normalize ? WeightSums::kOwn : WeightSums::kNone;
    return Operator{query_map, key_map, AnyNormalizer(sums, 0), scale};
  }
  CrossBlocks<AnyPartition, AnyPartition> blocks() const {
    return {AnyPartition::of(BlockSizes(query_sizes)), AnyPartition::of(BlockSizes(key_sizes))};
  }

  /// Runs the form that the file speaks of; shapes that do not fit throw.
  void run() {
    const BatchInputs<T> in = inputs(q, k, v);
    const auto both = blocks();
    const Index rows = both.queries.blocks(), cols = both.keys.blocks();
    if (mixing.rows() < rows || mixing.cols() < cols) {
      file.fail("has fewer rows or columns of mixing than blocks");
    }
    if (causal) {
      if (query_sizes != key_sizes)
        file.fail("is causal with other blocks of keys than of queries");
      mhla::causal(in, both.queries, MixingMatrix<T>(mixing), op(), out);
    } else {
      bidirectional(in, both, MixingMatrix<T>(mixing.topLeftCorner(rows, cols)), op(), out);
    }
  }

 private:
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

/// Compares the outputs of one head in float with their bounds. Longest chain of roundings: the
/// tokens of a block, the blocks, the features and the scale; causal: the own block's tokens, its
/// weight and its sum.
inline void compare_head(const Problem<float>& p, Index b, Index h, double& worst) {
  const auto copy = [b, h](const TensorView<float>& x) {
    const MatrixView<float> head = x.head(b, h);
    return Matrix<float>(Matrix<float>::NullaryExpr(head.rows, head.cols,
                                                    [&](Index t, Index j) { return head(t, j); }));
  };
  mhla::test::Problem<float> head;
  head.q = copy(p.q);
  head.k = copy(p.k);
  head.v = copy(p.v);
  head.query_blocks = p.blocks().queries;
  head.key_blocks = p.blocks().keys;
  head.coefficients = p.mixing;
  head.lower = p.mixing.rows();
  head.upper = p.mixing.cols();
  head.query_map = p.query_map;
  head.key_map = p.key_map;
  head.normalizer = p.normalize ? WeightSums::kOwn : WeightSums::kNone;
  head.scale = p.scale;
  head.causal = p.causal;
  const Index w = largest_block(head.key_blocks), m = head.key_blocks.blocks();
  const Index chain = (p.causal ? 2 * w + 2 : w) + m + p.query_map.features(p.q.width()) + 2;
  const Expected<float> expected = mhla::test::expected(head, chain);
  const Matrix<float> out = copy(p.out);
  for (Index i = 0; i < out.size(); ++i) {
    const double bound = expected.bound.data()[i];
    raise(worst, std::abs(static_cast<double>(out.data()[i]) - expected.out.data()[i]),
          bound < 0 ? HUGE_VAL : bound);
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
