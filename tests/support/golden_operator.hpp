#pragma once

/// \file
/// Checks of golden files with inputs, outputs and gradients of the operator. Batches in double are
/// compared with the file, heads in float with naive_attention within the bound of reference.hpp.

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "support/golden_stage.hpp"
#include "support/gradient_forms.hpp"
#include "support/jet.hpp"
#include "support/reference.hpp"

namespace mhla::test::golden {

/// A tensor with axes B, N, H, D in the order that the metadata names; N may be called T.
struct Heads {
  std::vector<double> values;
  TensorView<const double> view;

  Heads(const Safetensors& file, const std::string& name) {
    const StoredTensor& tensor = file.tensor(name);
    std::string layout = value<std::string>(file, "layout");
    std::replace(layout.begin(), layout.end(), 'T', 'N');
    if (layout.size() != 4 || !std::is_permutation(layout.begin(), layout.end(), "BNHD") ||
        tensor.shape.size() != 4) {
      throw std::runtime_error("has '" + name + "' of a layout that is unknown");
    }
    values.resize(static_cast<std::size_t>(tensor.size()));
    file.copy_to<double>(name, values);
    view.data = values.data();
    Index stride = 1;
    for (std::size_t axis = 4; axis-- > 0;) {
      const std::size_t place = std::string("BNHD").find(layout[axis]);
      view.shape[place] = tensor.shape[axis];
      view.strides[place] = stride;
      stride *= tensor.shape[axis];
    }
  }
  Matrix<double> head(Index b, Index h) const { return dense(view.head(b, h)); }
};

/// A mixing matrix [M,M], or one per head [H,M,M].
inline MixingMatrix<double> read_mixing(const Safetensors& file, const std::string& name) {
  std::vector<Index> shape = file.tensor(name).shape;
  if (shape.size() == 2) shape.insert(shape.begin(), 1);
  if (shape.size() != 3) throw std::runtime_error("has '" + name + "' of a shape that is unknown");
  MixingMatrix<double> mixing(Pattern(shape[1], shape[2]), shape[0]);
  file.copy_to(name, mixing.storage());
  return mixing;
}
/// The matrix of head h.
inline Matrix<double> head_mixing(const Safetensors& file, const std::string& name, Index h) {
  return read_mixing(file, name).of_head(h).dense();
}

/// One head of a file, its numbers rounded to T.
template <class T>
Problem<T> head_problem(const Safetensors& file, const Heads& q, const Heads& k, const Heads& v,
                        Index b, Index h) {
  Problem<T> p;
  p.q = q.head(b, h).cast<T>();
  p.k = k.head(b, h).cast<T>();
  p.v = v.head(b, h).cast<T>();
  p.normalizer = value<bool>(file, "normalize") ? WeightSums::kToken : WeightSums::kNone;
  if (value<std::string>(file, "kind") == "causal_official") {  // its map is already applied
    p.causal = true;
    p.query_blocks = AnyPartition::of(Contiguous(p.q.rows(), value<Index>(file, "chunk_size")));
  } else {
    p.causal = value<bool>(file, "causal");
    p.query_blocks = AnyPartition::of(BlockSizes(value<std::vector<Index>>(file, "block_sizes")));
    p.query_map = read_map<T>(file, value<std::string>(file, "feature_map"), "param.");
  }
  p.key_blocks = p.query_blocks;
  p.key_map = p.query_map;
  p.coefficients = head_mixing(file, "mixing", h).cast<T>();
  p.lower = p.coefficients.rows();
  p.upper = p.coefficients.cols();
  const double features = static_cast<double>(p.query_map.features(p.q.cols()));
  const bool root = value<std::string>(file, "scale") == "K**-0.5";
  p.scale = root ? 1 / std::sqrt(features) : value<double>(file, "scale");
  return p;
}

template <class T>
Matrix<T> output_of(const Problem<T>& p) {
  if (p.causal) return causal(p.inputs(), p.query_blocks, p.mixing(), p.op());
  return bidirectional(p.inputs(), p.blocks(), p.mixing(), p.op());
}

/// Compares the output in float with its bound. Longest chain of roundings: tokens of a block,
/// blocks, features and the scale; causal: tokens of the query's block, its weight and its sum.
inline void check_in_float(const Problem<float>& p, Result& result) {
  const Index w = largest_block(p.key_blocks), m = p.key_blocks.blocks();
  const Index chain = (p.causal ? 2 * w + 2 : w) + m + p.query_map.features(p.q.cols()) + 2;
  const Expected<float> expected = mhla::test::expected(p, chain);
  const Matrix<float> out = output_of(p);
  for (Index i = 0; i < out.size(); ++i) {
    result.raise_in_float(std::abs(double(out.data()[i]) - expected.out.data()[i]),
                          expected.bound.data()[i]);
  }
}

/// The same problem, to be differentiated.
template <class T>
GradientProblem<T> differentiable(const Problem<T>& p) {
  GradientProblem<T> at;
  at.tensors = {p.q, p.k, p.v};
  at.blocks = p.blocks();
  at.pattern = Pattern(p.coefficients.rows(), p.coefficients.cols());
  at.coefficients = p.coefficients.template reshaped<Eigen::RowMajor>().transpose();
  at.op = p.op();
  at.causal = p.causal;
  return at;
}

/// Magnitudes of the terms of all elements of a gradient of one head.
inline double terms_of(const Problem<double>& p, Part part, const Matrix<double>& dout) {
  const GradientProblem<double> at = differentiable(p);
  Variables<Jet> x = values_of<Jet>(at);
  for (Jet& variable : x[part].reshaped()) variable.tangent = variable.ways = 1;
  const Matrix<Jet> out = operator_at(at, x);
  double sum = 0;
  for (Index i = 0; i < out.size(); ++i) sum += std::abs(dout.data()[i]) * out.data()[i].ways;
  return sum;
}

/// Checks files of kinds op and causal_official.
inline Result check_operator(const Safetensors& file) {
  const Heads q(file, "q"), k(file, "k"), v(file, "v"), out(file, "out"), dout(file, "dout");
  const Heads dq(file, "dq"), dk(file, "dk"), dv(file, "dv");
  const MixingMatrix<double> mixing = read_mixing(file, "mixing");
  const auto common = head_problem<double>(file, q, k, v, 0, 0);  // but for the numbers
  const BatchInputs<double> in{.q = q.view, .k = k.view, .v = v.view};
  Tensor<double> got(out.view.shape), to_q(q.view.shape), to_k(k.view.shape), to_v(v.view.shape);
  const BatchGradients<double> to{.q = to_q, .k = to_k, .v = to_v};
  MixingMatrix<double> dmixing = zeros_like(mixing);
  if (common.causal) {
    causal(in, common.query_blocks, mixing, common.op(), got);
    causal_gradient(in, common.query_blocks, mixing, common.op(), dout.view, to,
                    {.mixing = dmixing});
  } else {
    bidirectional(in, common.blocks(), mixing, common.op(), got);
    bidirectional_gradient(in, common.blocks(), mixing, common.op(), dout.view, to,
                           {.mixing = dmixing});
  }
  Result result;
  for (Index b = 0; b < q.view.batch(); ++b) {
    for (Index h = 0; h < q.view.heads(); ++h) {
      const auto of = [&](Tensor<double>& t) { return dense(t.view().head(b, h)); };
      result.outputs["out"].add(of(got), out.head(b, h));
      result.gradients["dq"].add(of(to_q), dq.head(b, h));
      result.gradients["dk"].add(of(to_k), dk.head(b, h));
      result.gradients["dv"].add(of(to_v), dv.head(b, h));
      check_in_float(head_problem<float>(file, q, k, v, b, h), result);
    }
  }
  for (Index h = 0; h < dmixing.heads(); ++h) {
    result.gradients["dmixing"].add(dmixing.of_head(h).dense(), head_mixing(file, "dmixing", h));
  }
  for (const auto& [name, part] : {std::pair("dq", kQ), std::pair("dk", kK), std::pair("dv", kV),
                                   std::pair("dmixing", kMixing)}) {
    Error& error = result.gradients[name];
    if (error.relative() <= kGradientTolerance) continue;
    for (Index b = 0; b < q.view.batch(); ++b) {
      for (Index h = 0; h < q.view.heads(); ++h) {
        error.terms += terms_of(head_problem<double>(file, q, k, v, b, h), part, dout.head(b, h));
      }
    }
  }
  return result;
}

}  // namespace mhla::test::golden
