#pragma once

/// \file
/// Proof that a trained model of MHLA writes the same text from streaming states as over whole
/// sequences, on a sequence of the text:
///
///     in whole blocks   the logits have the same bits
///     byte by byte      every layer's attention, from the same queries, keys and values, is within
///                       2 gamma_m A of that of the whole sequence:  A = sum |m_ib| (|q| . |k|) |v|
///
/// Both forms are within gamma_m A of the exact attention, gamma_m = m u / (1 - m u). A chain has
/// m = 2W + M + D + 7 roundings, one of them of the scale (../../include/mhla/README.md#accuracy).
/// Everything but attention is row-wise and has the same bits, as the first line shows. The error
/// of the logits depends on the weights, so it is measured.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "checks.hpp"

namespace write_text {

struct StreamProof {
  bool same_bits = true;    ///< of the logits, in whole blocks
  double of_bound = 0;      ///< largest difference of an attention over its bound, byte by byte
  double logits_error = 0;  ///< largest difference over the largest logit, byte by byte
};

/// The bound's factor A [N,D] of one head, in double.
template <class T>
mhla::Matrix<double> magnitudes(const mhla::BatchInputs<T>& in, Index head,
                                mhla::MixingView<const T> mixing, Index block, double scale) {
  const Index n = in.q.tokens();
  const auto absolute = [&](const mhla::TensorView<const T>& x) {
    mhla::Matrix<double> m(n, x.width());
    for (Index t = 0; t < n; ++t) {
      for (Index j = 0; j < x.width(); ++j) {
        m(t, j) = std::abs(static_cast<double>(x.head(0, head, 0, n)(t, j)));
      }
    }
    return m;
  };
  const mhla::Matrix<double> q = absolute(in.q), k = absolute(in.k), v = absolute(in.v);
  mhla::Matrix<double> sum(n, v.cols());
  for (Index begin = 0; begin < n; begin += block) {
    const Index rows = std::min(block, n - begin), seen = begin + rows;
    mhla::Matrix<double> weights =
        scale * q.middleRows(begin, rows) * k.topRows(seen).transpose();  // [W, seen]
    for (Index b = 0; b * block < seen; ++b) {
      weights.middleCols(b * block, std::min(block, seen - b * block)) *=
          std::abs(static_cast<double>(mixing(begin / block, b)));
    }
    weights.rightCols(rows) = weights.rightCols(rows).template triangularView<Eigen::Lower>();
    sum.middleRows(begin, rows) = weights * v.topRows(seen);
  }
  return sum;
}

/// Largest difference over the bound of one layer's attention, byte by byte.
template <class T>
double attention_of_bound(const Settings& s, mhla::MixingView<const T> mixing,
                          LayerActivations<T>& layer, Index n) {
  const auto qk = layer.turned.rows(n);
  const auto v = layer.lead.rows(n).middle_cols(2 * s.dim, s.dim), whole = layer.attended.rows(n);
  MhlaStates<T> states(s, mhla::MixingMatrix<T>(mixing));
  Buffer<T> memory(n, s.dim);
  const auto streamed = memory.rows(n);
  for (Index t = 0; t < n; ++t) {
    states.append(qk.middle_rows(t, 1), v.middle_rows(t, 1), streamed.middle_rows(t, 1));
  }
  const double u = std::numeric_limits<T>::epsilon() / 2;
  const double mu = static_cast<double>(2 * s.block + s.blocks() + s.width() + 7) * u;
  double worst = 0;
  for (Index h = 0; h < s.heads; ++h) {
    const auto a = magnitudes(head_inputs(qk, v, s), h, mixing, s.block, causal_operator(s).scale);
    for (Index t = 0; t < n; ++t) {
      for (Index j = 0; j < s.width(); ++j) {
        const Index c = h * s.width() + j;
        const double difference =
            std::abs(static_cast<double>(streamed(t, c)) - static_cast<double>(whole(t, c)));
        if (difference > 0) worst = std::max(worst, difference / (2 * mu / (1 - mu) * a(t, j)));
      }
    }
  }
  return worst;
}

template <class T>
StreamProof prove_streaming(const Model<T>& model, Bytes bytes) {
  const Settings& s = model.settings();
  const Index n = std::ssize(bytes);
  CausalAttention<T> attention(s);
  Activations<T> whole(s, n);
  forward(model, bytes, attention, whole);
  StreamProof proof{.logits_error = streaming_error(model, bytes)};
  Decoder<T> decoder(model);
  for (Index begin = 0; begin < n; begin += s.block) {
    const Index count = std::min(s.block, n - begin);
    const auto logits = decoder.append(
        bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)));
    const auto expected = whole.logits.rows(n).middle_rows(begin, count);
    const auto size = static_cast<std::size_t>(count * kBytes) * sizeof(T);
    proof.same_bits = proof.same_bits && std::memcmp(logits.data, expected.data, size) == 0;
  }
  for (std::size_t l = 0; l < whole.layers.size(); ++l) {
    proof.of_bound =
        std::max(proof.of_bound, attention_of_bound(s, model.mixing(l), whole.layers[l], n));
  }
  return proof;
}

}  // namespace write_text
