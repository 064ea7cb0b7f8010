#pragma once

/// \file
/// A denoiser of video: a layer of one's own (mhla/layer/graph.hpp). Frames are the items of its
/// batch, and each has a level of noise of its own. Tokens are patches of P pixels, W in a frame.
///
///     h = x Win^T + b + e                              [N,C], e: the embedding of the position
///     shifts, scales and gates = c Wm^T + bm           [6C] of a frame, in each block
///     h = h + gate * attention(norm(h) * (1 + scale) + shift)
///     h = h + gate * mlp(norm(h) * (1 + scale) + shift)
///     y = norm(h) Wout^T + b                           [N,P], the pixels without noise
///
/// A token reads its frame and the frames before it whole, up to a reach of R frames. The mixing
/// coefficient of a head depends on the distance of two frames alone, so that the model runs on
/// videos of any length. With streams, a call is one frame, and a state keeps the frames before it.

#include <cmath>
#include <cstdint>
#include <memory>
#include <mhla/layer/block.hpp>
#include <mhla/layer/layer.hpp>
#include <mhla/layer/position_embedding.hpp>
#include <mhla/mhla.hpp>
#include <utility>
#include <vector>

namespace stream_video {

using mhla::Index;

/// One attention as a stream of frames, and the states of its heads.
template <class T>
struct Stream {
  mhla::BlockStreaming<T, mhla::Contiguous> form;
  std::vector<mhla::StreamingState<T>> heads;
};
template <class T>
using Streams = std::vector<Stream<T>>;

template <class T>
struct Options {
  Index channels = 16;  ///< P, numbers of a patch
  Index width = 64;     ///< C
  Index depth = 3, heads = 4;
  Index side = 4;    ///< patches along a side of a frame
  Index frames = 8;  ///< of a clip, in calls without streams
  Index reach = 3;   ///< R, frames before a frame that it reads
  std::shared_ptr<Streams<T>> streams = std::make_shared<Streams<T>>();  ///< empty, or one a block

  Index patches() const { return side * side; }  ///< W
  /// Pixels along a side of a patch.
  Index patch() const {
    return static_cast<Index>(std::lround(std::sqrt(static_cast<double>(channels))));
  }
};

/// Numbers that tell a model the level of noise of a frame.
inline constexpr Index kLevels = 6;

/// Returns the mixing matrices [H,M,M] of M frames.
/// \param table  [H,R+1], the coefficients of each distance
template <class T>
mhla::MixingMatrix<T> by_distance(mhla::MatrixView<const T> table, Index frames) {
  mhla::MixingMatrix<T> m(mhla::Pattern(frames, frames, table.cols - 1, 0), table.rows);
  m.view().for_each_place([&](Index h, Index i, Index b, T& place) { place = table(h, i - b); });
  return m;
}

/// The attention of a block over frames, of queries, keys and values that lie side by side.
template <class T>
struct FrameAttention {
  mhla::Value qkv, y;
  mhla::ParameterSlice table;
  Options<T> options;
  std::size_t block;

  void forward(const mhla::Pass<T>& p) const {
    const auto in = inputs<mhla::BatchInputs<T>>(p, p.in(qkv));
    const auto out = heads(p, p.out(y));
    if (!options.streams->empty()) {
      Stream<T>& stream = (*options.streams)[block];
      if (p.counting()) return p.needs(mhla::append_workspace_bytes(stream.form, p.executor));
      return mhla::append(stream.form, std::span(stream.heads), in, out, p.call());
    }
    if (p.counting()) {
      return p.needs(
          mhla::bidirectional_workspace_bytes(in, blocks(), mhla::Operator<>(), p.executor));
    }
    const auto mixing = by_distance(table.matrix(p.parameters), options.frames);
    mhla::block_causal(in, blocks(), mixing, 1, mhla::Operator<>(), out, p.call());
  }
  void adjoint(const mhla::Pass<T>& p) const {
    const auto in = inputs<mhla::BatchInputs<T>>(p, p.in(qkv));
    const mhla::Matrix<T> ones = mhla::Matrix<T>::Ones(table.rows, table.cols);
    const auto mixing =
        by_distance<T>(p.counting() ? mhla::MatrixView<const T>(ones) : table.matrix(p.parameters),
                       options.frames);
    if (p.counting()) {
      return p.needs(mhla::bidirectional_gradient_workspace_bytes(in, blocks(), mixing.view(),
                                                                  mhla::Operator<>(), p.executor));
    }
    auto dmixing = zeros_like(mixing);
    mhla::block_causal_gradient(in, blocks(), mixing, 1, mhla::Operator<>(), heads(p, p.dout(y)),
                                inputs<mhla::BatchGradients<T>>(p, p.din(qkv)), {.mixing = dmixing},
                                p.call());
    const auto dtable = table.matrix(p.gradients);
    dmixing.view().for_each_place(
        [&](Index h, Index i, Index b, T& place) { dtable(h, i - b) += place; });
  }

 private:
  mhla::Contiguous blocks() const {
    return {options.frames * options.patches(), options.patches()};
  }
  /// The heads of some columns of the tokens.
  template <class U>
  mhla::TensorView<U> heads(const mhla::Pass<T>& p, mhla::MatrixView<U> x, Index first = 0) const {
    const Index clips = options.streams->empty() ? p.sizes.batch / options.frames : p.sizes.batch;
    const Index n = clips == 0 ? 0 : x.rows / clips, d = options.width / options.heads;
    return {x.data == nullptr ? nullptr : x.data + first * options.width,
            {clips, n, options.heads, d},
            {n * x.row_stride, x.row_stride, d, 1}};
  }
  template <class Batch, class U>
  Batch inputs(const mhla::Pass<T>& p, mhla::MatrixView<U> x) const {
    return {.q = heads(p, x, 0), .k = heads(p, x, 1), .v = heads(p, x, 2)};
  }
};

/// The family of the denoiser (mhla/layer/layer.hpp).
template <class T>
struct DenoiserFamily {
  using Scalar = T;
  using Options = stream_video::Options<T>;
  static constexpr const char* kName = "Denoiser";
  static constexpr const char* kOutput = "out.weight";
  static constexpr bool kConditioned = true;

  static Index tokens(const Options& o) { return o.patches(); }
  static mhla::Value build(mhla::Graph<T>& g, mhla::Value x, const Options& o) {
    const Index c = o.width;
    const mhla::Value level = g.condition(kLevels);
    const auto weights = [&g](const char* name, Index outputs, Index inputs) {
      return g.dense(name, {outputs, inputs}, {}, {}, mhla::Initial::normal(inputs));
    };
    const auto norm = [&g](mhla::Value h) { return mhla::layer_norm_step(g, h, {}, {}, 1e-6); };
    mhla::Value h = mhla::dense_step(g, x, weights("in", c, o.channels));
    const auto positions = std::make_shared<mhla::Matrix<T>>(mhla::sincos_2d<T>(o.side, o.side, c));
    const auto embed = [=](const mhla::Pass<T>& p) {
      if (p.counting()) return;
      const auto rows = p.out(h);
      for (Index t = 0; t < rows.rows; ++t) {
        for (Index j = 0; j < c; ++j) rows(t, j) += (*positions)(t % positions->rows(), j);
      }
    };
    g.add({.sum = h}, embed, [](const mhla::Pass<T>&) {});
    for (Index b = 0; b < o.depth; ++b) {
      h = g.below("blocks." + std::to_string(b) + ".", [&] {
        const auto m = mhla::dense_step(
            g, level, g.dense("level", {6 * c, kLevels}, {}, {}, mhla::Initial::zeros()));
        const auto attended = mhla::branch_steps(g, h, {m}, 0, norm, [&](mhla::Value n) {
          const auto qkv = mhla::dense_step(g, n, weights("qkv", 3 * c, c));
          const auto table = g.tensor("mixing", {o.heads, o.reach + 1}, mhla::Initial::ones());
          const mhla::Value y = g.value(c);
          const FrameAttention<T> a{qkv, y, table, o, static_cast<std::size_t>(b)};
          g.add(
              {.output = y, .inputs = {qkv}, .read = {qkv}},
              [a](const mhla::Pass<T>& p) { a.forward(p); },
              [a](const mhla::Pass<T>& p) { a.adjoint(p); });
          return mhla::dense_step(g, y, weights("proj", c, c));
        });
        return mhla::branch_steps(g, attended, {m}, 1, norm, [&](mhla::Value n) {
          const auto up = weights("up", 4 * c, c), down = weights("down", c, 4 * c);
          return mhla::mlp_step<mhla::Gelu>(g, n, up, down);
        });
      });
    }
    return mhla::dense_step(g, norm(h), weights("out", o.channels, c));
  }
};

template <class T>
using Denoiser = mhla::Layer<DenoiserFamily<T>>;

/// Sets the initial parameters. Head h weighs the frames at distance h most.
template <class T>
void initialize(Denoiser<T>& model, std::uint64_t seed) {
  model.initialize(seed);
  for (const mhla::Parameter& p : model.table().all()) {
    if (!p.name.ends_with("mixing")) continue;
    const auto table = p.place().matrix(model.parameters());
    for (Index h = 0; h < table.rows; ++h) {
      for (Index d = 0; d < table.cols; ++d) {
        if (d != h % table.cols) table(h, d) = static_cast<T>(0.25);
      }
    }
  }
}

/// Writes the numbers that tell level s of noise, from 0 to 1.
template <class T>
void write_level(double s, T* to) {
  const double pi = std::acos(-1.0);
  const double numbers[kLevels] = {
      1, s, s * s, std::cos(pi * s), std::sin(pi * s), s == 0 ? 1. : 0.};
  for (Index i = 0; i < kLevels; ++i) to[i] = static_cast<T>(numbers[i]);
}

}  // namespace stream_video
