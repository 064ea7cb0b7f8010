#pragma once

/// \file
/// Fits of decaying terms to the learned mixing matrices of a model, layer by layer, by least
/// squares of the attention outputs. Also the change of outputs on other data.
///
/// Coefficients of decaying terms depend on the distance of blocks alone. Learned coefficients
/// start from 1 / (i + 1), but a factor of a row has no effect: the norm of every head cancels it.
/// So rows of the matrices are scaled to a diagonal of 1 before the fit.

#include <algorithm>
#include <cmath>
#include <mhla/fit/change_bound.hpp>
#include <mhla/fit/fit_decay.hpp>
#include <mhla/fit/mixing_fit.hpp>
#include <vector>

#include "reading.hpp"

namespace extend_text {

/// Distribution of magnitudes, relative to the root mean square of outputs.
struct Spread {
  double largest, median;

  Spread(std::vector<double> magnitudes, double unit) {
    const auto middle = magnitudes.begin() + std::ssize(magnitudes) / 2;
    std::nth_element(magnitudes.begin(), middle, magnitudes.end());
    median = *middle / unit;
    largest = *std::max_element(middle, magnitudes.end()) / unit;
  }
};

/// Replacement of a layer's matrix.
struct Fit {
  std::size_t layer;
  Index terms;  ///< at most
  Decay mixing;
  double residual;         ///< of the outputs it was fitted to, relative
  double of_coefficients;  ///< the same residual of a fit to the matrix alone
};

/// The matrix of a layer with a diagonal of 1.
inline Matrix scaled_rows(const Model<float>& model, std::size_t layer) {
  mhla::Matrix<float> m = model.mixing(layer).dense();
  for (Index i = 0; i < m.rows(); ++i) m.row(i) /= m(i, i);
  return Matrix(m);
}

/// Inputs of a layer's attention, after a forward pass of a whole sequence.
inline mhla::BatchInputs<float> inputs_of(const Settings& s, LayerActivations<float>& layer) {
  return write_text::head_inputs(layer.turned.rows(s.context),
                                 layer.lead.rows(s.context).middle_cols(2 * s.dim, s.dim), s);
}

/// Fits of each number of terms for each layer, to the attention outputs of the sequences.
inline std::vector<Fit> fit_layers(const Model<float>& model, const std::vector<Bytes>& sequences,
                                   std::span<const Index> terms, mhla::ThreadPool& pool) {
  const Settings& s = model.settings();
  const mhla::ContiguousBlocks blocks{s.block};
  const auto op = write_text::causal_operator(s);
  std::vector<mhla::MixingFit<float>> sums;
  for (std::size_t l = 0; l < model.layout().layers.size(); ++l) {
    sums.emplace_back(scaled_rows(model, l), mhla::Order::kCausal);
  }
  write_text::CausalAttention<float> attention(s);
  Activations<float> a(s, s.context);
  for (const Bytes sequence : sequences) {
    forward(model, sequence.first(static_cast<std::size_t>(s.context)), attention, a);
    for (std::size_t l = 0; l < sums.size(); ++l) {
      const auto in = inputs_of(s, a.layers[l]);
      sums[l].add(in, blocks, op, mhla::causal(in, blocks, sums[l].start(), op), pool);
    }
  }
  std::vector<Fit> fits;
  for (std::size_t l = 0; l < sums.size(); ++l) {
    const auto residual = [&](const Decay& m) {
      return sums[l].residual(decay_matrix(m, s.blocks())).total;
    };
    for (const Index count : terms) {
      const Decay fitted = fit_decay(sums[l], count);
      fits.push_back({l, count, fitted, residual(fitted),
                      residual(fit_decay(lower_triangle(sums[l].start()), count))});
    }
  }
  return fits;
}

/// The fits of all layers with a number of terms.
inline std::vector<Decay> with_terms(const std::vector<Fit>& fits, Index terms) {
  std::vector<Decay> mixing;
  for (const Fit& fit : fits) {
    if (fit.terms == terms) mixing.push_back(fit.mixing);
  }
  return mixing;
}

/// Change of a layer's outputs with a fit: certified bounds, and measured changes.
struct Change {
  Spread bound, change;
  double of_bound;  ///< the largest change over its bound
};

/// \param a  activations of a forward pass of a whole sequence
inline Change change_of(const Model<float>& model, const Fit& fit, Activations<float>& a,
                        mhla::ThreadPool& pool) {
  using Dense = mhla::Matrix<double>;
  const Settings& s = model.settings();
  const mhla::Contiguous blocks(s.context, s.block);
  const auto op = write_text::causal_operator(s);
  const auto in_double = [](const auto& matrix) {
    return mhla::MixingMatrix<double>(matrix.dense().template cast<double>());
  };
  const auto before = in_double(scaled_rows(model, fit.layer)),
             after = in_double(decay_matrix(fit.mixing, s.blocks()));
  const auto in = inputs_of(s, a.layers[fit.layer]);
  std::vector<double> bounds, changes;
  double squares = 0, of_bound = 0;
  for (Index h = 0; h < s.heads; ++h) {
    const auto head = [&](const auto& x) {
      const auto rows = x.head(0, h);
      return Dense(Dense::NullaryExpr(
          rows.rows, rows.cols, [&](Index t, Index j) { return static_cast<double>(rows(t, j)); }));
    };
    const Dense q = head(in.q), k = head(in.k), v = head(in.v);
    const auto one = mhla::inputs(q, k, v);
    const Dense out = mhla::causal(one, blocks, before, op, {.executor = pool});
    const Dense moved = mhla::causal(one, blocks, after, op, {.executor = pool}) - out;
    const Dense bound =
        mhla::mixing_change_bound(one, blocks, before, after, op, mhla::Order::kCausal, pool);
    squares += out.squaredNorm();
    for (Index i = 0; i < out.size(); ++i) {
      bounds.push_back(bound.data()[i]);
      changes.push_back(std::abs(moved.data()[i]));
      if (changes.back() > 0) of_bound = std::max(of_bound, changes.back() / bounds.back());
    }
  }
  const double unit = std::sqrt(squares / static_cast<double>(bounds.size()));
  return {{bounds, unit}, {changes, unit}, of_bound};
}

}  // namespace extend_text
