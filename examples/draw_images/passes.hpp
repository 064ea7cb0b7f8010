#pragma once

/// \file
/// The forward and the backward pass of a model over a few images, and the memory of a worker.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mhla/layer/activation.hpp>
#include <mhla/layer/layer_norm.hpp>
#include <mhla/layer/modulate.hpp>
#include <vector>

#include "../support/buffer.hpp"
#include "model.hpp"

namespace draw_images {

using examples::Buffer;

template <class T>
struct Activations {
  /// \param images  most images per pass
  Activations(const Model<T>& model, Index images);

  Buffer<T> pixels;           // x_t, [B, kImage]
  std::vector<double> times;  // [B]
  std::vector<Index> classes;
  Buffer<T> output;  // v, [B, kImage]

  Buffer<T> tokens, out;  // patches of the pixels and of v, [B*N, 4]
  Buffer<T> frequencies, time_pre, time_hidden, condition, active, modulation;  // rows are images
  examples::BlockPass<mhla::DitBlock<T>> pass;
  Buffer<T> normed, modulated;

  Buffer<T> doutput, dtokens, dmodulated, dnormed;
  Buffer<T> dcondition, dactive, dmodulation;
  std::vector<std::byte> workspace;
};

/// Computes a.output from a.pixels, a.times and a.classes of the first `count` images.
template <class T>
void forward(const Model<T>& model, Index count, Activations<T>& a);

/// Adds the gradients of the parameters, given a.doutput, the gradient of a.output, after forward.
template <class T>
void backward(const Model<T>& model, Index count, Activations<T>& a, std::span<T> gradient);

// ------------------------------------------------------------------------------------------------

inline constexpr double kNormEps = 1e-6;

template <class T>
Activations<T>::Activations(const Model<T>& model, Index images)
    : pixels(images, kImage),
      times(static_cast<std::size_t>(images)),
      classes(static_cast<std::size_t>(images)),
      output(images, kImage),
      tokens(images * kTokens, kPatchPixels),
      out(images * kTokens, kPatchPixels),
      frequencies(images, model.settings().dim),
      time_pre(images, model.settings().dim),
      time_hidden(images, model.settings().dim),
      condition(images, model.settings().dim),
      active(images, model.settings().dim),
      modulation(images, 2 * model.settings().dim),
      pass(model, images, kTokens, model.settings().dim),
      normed(images * kTokens, model.settings().dim),
      modulated(images * kTokens, model.settings().dim),
      doutput(images, kImage),
      dtokens(images * kTokens, kPatchPixels),
      dmodulated(images * kTokens, model.settings().dim),
      dnormed(images * kTokens, model.settings().dim),
      dcondition(images, model.settings().dim),
      dactive(images, model.settings().dim),
      dmodulation(images, 2 * model.settings().dim) {
  const Index c = model.settings().dim, rows = images * kTokens;
  const std::size_t bytes = std::max({mhla::dense_adjoint_workspace_bytes<T>(rows, kPatchPixels, c),
                                      mhla::dense_adjoint_workspace_bytes<T>(rows, c, kPatchPixels),
                                      mhla::dense_adjoint_workspace_bytes<T>(images, c, 2 * c),
                                      mhla::mlp_adjoint_workspace_bytes<T>(images, c, c, c),
                                      mhla::layer_norm_adjoint_workspace_bytes<T>(rows, c)});
  workspace.resize(bytes);
}

/// Frequencies [cos(1000 t w_0), ..., sin(1000 t w_0), ...], w_j = 10000^(-j / (C/2)), as in DiT.
template <class T>
void write_frequencies(const std::vector<double>& times, mhla::MatrixView<T> to) {
  const Index half = to.cols / 2;
  for (Index b = 0; b < to.rows; ++b) {
    for (Index j = 0; j < half; ++j) {
      const double share = static_cast<double>(j) / static_cast<double>(half);
      const double angle = 1000 * times[static_cast<std::size_t>(b)] * std::pow(10000, -share);
      to(b, j) = static_cast<T>(std::cos(angle));
      to(b, half + j) = static_cast<T>(std::sin(angle));
    }
  }
}

template <class T>
void forward(const Model<T>& model, Index count, Activations<T>& a) {
  const auto p = model.parameters();
  const mhla::Call call{.workspace = a.workspace};
  const Index rows = count * kTokens, c = model.settings().dim;
  const auto tokens = a.tokens.rows(rows), x = a.pass.input(count);
  mhla::patches(edges(a.pixels.rows(count)), patch_grid(count, kPatch), tokens);
  mhla::dense(tokens, model.dense(p, "patch"), x, call);
  for (Index r = 0; r < rows; ++r) {
    for (Index j = 0; j < c; ++j) x(r, j) += model.position()(r % kTokens, j);
  }
  const auto condition = a.condition.rows(count), active = a.active.rows(count);
  write_frequencies(a.times, a.frequencies.rows(count));
  mhla::mlp(a.frequencies.rows(count), model.time_mlp(p), a.time_pre.rows(count),
            a.time_hidden.rows(count), condition, call);
  const auto classes = model.table().matrix(p, "class.weight");
  for (Index b = 0; b < count; ++b) {
    const Index of = a.classes[static_cast<std::size_t>(b)];
    for (Index j = 0; j < c; ++j) condition(b, j) += classes(of, j);
  }
  a.pass.forward(model, count, condition);
  mhla::silu(condition, active);
  const auto modulation = a.modulation.rows(count);
  mhla::dense(active, model.dense(p, "last.modulation"), modulation, call);
  mhla::layer_norm(a.pass.output(count), {}, {}, kNormEps, a.normed.rows(rows));
  mhla::modulate(a.normed.rows(rows), modulation.middle_cols(c, c), modulation.middle_cols(0, c),
                 a.modulated.rows(rows));
  mhla::dense(a.modulated.rows(rows), model.dense(p, "last"), a.out.rows(rows), call);
  mhla::unpatchify(a.out.rows(rows), patch_grid(count, kPatch), edges(a.output.rows(count)));
}

template <class T>
void backward(const Model<T>& model, Index count, Activations<T>& a, std::span<T> gradient) {
  const auto p = model.parameters();
  const mhla::Call call{.workspace = a.workspace};
  const Index rows = count * kTokens, c = model.settings().dim;
  const auto dtokens = a.dtokens.zero_rows(rows), dmodulated = a.dmodulated.zero_rows(rows);
  mhla::unpatchify_adjoint(edges(a.doutput.rows(count)), patch_grid(count, kPatch), dtokens);
  mhla::dense_adjoint(a.modulated.rows(rows), model.dense(p, "last"), dtokens, dmodulated,
                      model.dense(gradient, "last"), call);
  const auto modulation = a.modulation.rows(count);
  const auto dmodulation = a.dmodulation.zero_rows(count);
  const auto dnormed = a.dnormed.zero_rows(rows), dactive = a.dactive.zero_rows(count);
  mhla::modulate_adjoint(a.normed.rows(rows), modulation.middle_cols(c, c), dmodulated, dnormed,
                         dmodulation.middle_cols(c, c), dmodulation.middle_cols(0, c));
  mhla::dense_adjoint(a.active.rows(count), model.dense(p, "last.modulation"), dmodulation, dactive,
                      model.dense(gradient, "last.modulation"), call);
  const auto condition = a.condition.rows(count), dcondition = a.dcondition.zero_rows(count);
  mhla::silu_adjoint(condition, dactive, dcondition);
  mhla::layer_norm_adjoint(a.pass.output(count), {}, kNormEps, dnormed, a.pass.zero_gradient(count),
                           {}, {}, call);
  a.pass.backward(model, count, gradient, condition, dcondition);
  const auto dclasses = model.table().matrix(gradient, "class.weight");
  for (Index b = 0; b < count; ++b) {
    const Index of = a.classes[static_cast<std::size_t>(b)];
    for (Index j = 0; j < c; ++j) dclasses(of, j) += dcondition(b, j);
  }
  mhla::mlp_adjoint(a.frequencies.rows(count), model.time_mlp(p), a.time_pre.rows(count),
                    a.time_hidden.rows(count), dcondition, {}, model.time_mlp(gradient), call);
  mhla::dense_adjoint(a.tokens.rows(rows), model.dense(p, "patch"), a.pass.gradient(count), {},
                      model.dense(gradient, "patch"), call);
}

}  // namespace draw_images
