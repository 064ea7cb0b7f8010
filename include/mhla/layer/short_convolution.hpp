#pragma once

/// \file
/// The short causal depthwise convolution of language layers, its state and its adjoint.
///
///     pre[t,c] = bias[c] + sum over j < K of weight[c,j] * x[t - (K - 1) + j, c]
///     y = silu(pre) or pre
///     dx[t,c]      += sum over j < K of weight[c,j] * dpre[t + (K - 1) - j, c]
///     dweight[c,j] += sum over t of dpre[t,c] * x[t - (K - 1) + j, c],   dpre = dy * silu'(pre)
///     dbias[c]     += sum over t of dpre[t,c]
///
///     x, pre, y [B*N,C]: B sequences of N tokens, weight [C,K], bias [C]
///
/// The inputs before the first token of a sequence are the last K - 1 inputs of the previous call,
/// or zeros. The adjoint has zeros. activation.hpp defines silu. The weight has the memory layout
/// of PyTorch's [C,1,K]. Rows of all views are contiguous (column stride 1) at any row stride.
/// Outputs overlap nothing else. Cost: 2*B*N*C*K flops and B*N*C exponentials, the adjoint three
/// times that.

#include <algorithm>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/activation.hpp"
#include "mhla/layer/convolution_taps.hpp"
#include "mhla/layer/rows.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {

struct ShortConvolutionOptions {
  Index batch = 1;   ///< B sequences, one after another
  bool silu = true;  ///< y = silu(pre), else y = pre
};

/// Writes the convolution of each sequence of x into y.
/// \param x, y        [B*N,C]
/// \param parameters  weight [C,K] with K >= 1, bias [C] or empty
/// \param state       [B*(K-1),C], the last K - 1 inputs of each sequence: read, then advanced by N
///                    tokens. So a sequence may be split into several calls, with the bits of one.
///                    Zeros begin a sequence. An absent state is zeros, and nothing is kept.
/// \param call        its executor splits over rows
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X>
void short_convolution(const X& x, const ConvolutionView<const detail::element_t<X>>& parameters,
                       const ShortConvolutionOptions& options, const detail::output_t<X>& y,
                       const detail::output_t<X>& state = {}, const Call& call = {});

/// Bytes of workspace of short_convolution: about (K + 2) * C numbers.
template <Accumulator A>
std::size_t short_convolution_workspace_bytes(Index channels, Index taps);

/// Adds the gradients of x and of the parameters for the gradient dy of y. The sequences have no
/// state.
/// \param x, dy      [B*N,C]
/// \param dx         [B*N,C] or absent
/// \param gradients  of the parameters; absent ones are skipped
/// \param call       its executor splits over rows; the gradients of the parameters over chunks of
///                   rows, whose sums are added in order
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X>
void short_convolution_adjoint(const X& x,
                               const ConvolutionView<const detail::element_t<X>>& parameters,
                               const ShortConvolutionOptions& options, const detail::input_t<X>& dy,
                               const detail::output_t<X>& dx,
                               const ConvolutionView<detail::element_t<X>>& gradients,
                               const Call& call = {});

/// Bytes of workspace of short_convolution_adjoint for B*N rows: B*N*C numbers with silu, and up
/// to about 65 times (K + 1) * C for the weight and the sums of its gradient.
template <Accumulator A>
std::size_t short_convolution_adjoint_workspace_bytes(Index rows, Index channels, Index taps,
                                                      const ShortConvolutionOptions& options = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

/// The taps of the rows of x, at positions in all sequences: token t reads t - (K - 1) .. t.
template <Accumulator A>
struct CausalTaps {
  MatrixView<const A> x;
  Index tokens;               // N
  Index taps;                 // K
  MatrixView<const A> state;  // before the first token, or absent
  const A* zeros;             // [C], for an absent state

  class Position {
   public:
    Index alike;

    Position(const CausalTaps& taps, Index position)
        : alike(taps.tokens - position % taps.tokens),
          taps_(taps),
          item_(position / taps.tokens),
          token_(taps.tokens - alike) {}
    Index row(Index i) const { return item_ * taps_.tokens + token_ + i; }
    const A* from(Index source) const {
      if (source >= 0) return taps_.x.row(item_ * taps_.tokens + source);
      if (taps_.state.absent()) return taps_.zeros;
      return taps_.state.row((item_ + 1) * (taps_.taps - 1) + source);
    }
    template <class F>
    void for_each(const F& f) const {
      for (Index j = 0; j < taps_.taps; ++j) f(j, token_ - (taps_.taps - 1) + j);
    }

   private:
    const CausalTaps& taps_;
    Index item_, token_;
  };
  Position at(Index position) const { return Position(*this, position); }
};

/// The taps of the adjoint: token t reads tokens t .. t + K - 1 of the sequence.
template <Accumulator A>
struct AnticausalTaps {
  MatrixView<const A> dpre;
  Index tokens;  // N
  Index taps;    // K

  class Position {
   public:
    Index alike;

    Position(const AnticausalTaps& taps, Index position)
        : taps_(taps), position_(position), left_(taps.tokens - position % taps.tokens) {
      alike = std::max<Index>(1, left_ - (taps.taps - 1));
    }
    Index row(Index i) const { return position_ + i; }
    const A* from(Index source) const { return taps_.dpre.row(source); }
    template <class F>
    void for_each(const F& f) const {
      const Index count = std::min(taps_.taps, left_);
      for (Index j = 0; j < count; ++j) f(taps_.taps - 1 - j, position_ + j);
    }

   private:
    const AnticausalTaps& taps_;
    Index position_, left_;
  };
  Position at(Index position) const { return Position(*this, position); }
};

/// Copies the last K - 1 rows of (state, x) of each sequence into the state.
template <Accumulator A>
void move_state(MatrixView<const A> x, Index batch, MatrixView<A> state) {
  const Index tokens = x.rows / batch, kept = state.rows / batch;
  if (tokens == 0) return;
  for (Index b = 0; b < batch; ++b) {
    for (Index r = 0; r < kept; ++r) {
      const Index token = r + tokens - kept;
      const A* const from =
          token < 0 ? state.row((b + 1) * kept + token) : x.row(b * tokens + token);
      std::copy_n(from, x.cols, state.row(b * kept + r));
    }
  }
}

template <Accumulator A>
void expect_short_convolution(const char* function, const MatrixView<const A>& x,
                              const ConvolutionView<const A>& parameters, Index batch) {
  expect_rows(function, "x", x, -1, -1);
  expect_positive(function, "batch", batch);
  expect_whole_items(function, "x", x.rows, batch, "the batch");
  expect_convolution(function, parameters, x.cols, -1);
  if (parameters.weight.cols < 1) fail_shape(function, "weight", "has no taps", "at least one");
}

template <Accumulator A>
struct ShortConvolutionMemory {
  TapWeights<A> weights;
  A* zeros;  // [C]

  ShortConvolutionMemory(const char* function, Arena& arena, Index channels, Index taps)
      : weights(function, arena, channels, taps), zeros(arena.take<A>(function, channels)) {}

  void fill(const ConvolutionView<const A>& parameters) const {
    weights.fill(parameters);
    std::fill_n(zeros, parameters.weight.rows, A(0));
  }
};

template <Accumulator A>
struct ShortConvolutionAdjointMemory {
  ShortConvolutionMemory<A> forward;
  Index stride;
  A* dpre;  // [B*N, stride], with silu
  ConvolutionGradient<A> gradient;

  ShortConvolutionAdjointMemory(const char* function, Arena& arena, Index rows, Index channels,
                                Index taps, bool silu)
      : forward(function, arena, channels, taps),
        stride(unaliased_stride<A>(channels)),
        dpre(arena.take<A>(function, {silu ? rows : 0, stride})),
        gradient(function, arena, rows, channels, taps) {}
};

}  // namespace detail

template <Accumulator A>
std::size_t short_convolution_workspace_bytes(Index channels, Index taps) {
  return detail::counted_bytes([&](detail::Arena& arena) {
    return detail::ShortConvolutionMemory<A>("short_convolution", arena, channels, taps);
  });
}

template <LayerInput X>
void short_convolution(const X& input,
                       const ConvolutionView<const detail::element_t<X>>& parameters,
                       const ShortConvolutionOptions& options, const detail::output_t<X>& y,
                       const detail::output_t<X>& state, const Call& call) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "short_convolution";
  const detail::input_t<X> x(input);
  const Index size = parameters.weight.cols;
  detail::expect_short_convolution(kName, x, parameters, options.batch);
  detail::expect_rows(kName, "y", y, x.rows, x.cols);
  const Index kept = detail::checked_product(kName, "state", {options.batch, size - 1});
  detail::expect_rows_or_none(kName, "state", state, kept, x.cols);
  detail::Scratch scratch(kName, call.workspace,
                          short_convolution_workspace_bytes<A>(x.cols, size));
  const detail::ShortConvolutionMemory<A> memory(kName, scratch.arena(), x.cols, size);
  memory.fill(parameters);
  const detail::CausalTaps<A> taps{x, x.rows / options.batch, size, state, memory.zeros};
  detail::for_each_layer_strip(x.rows, call.executor, [&](Index begin, Index count) {
    detail::convolve(taps, memory.weights, memory.weights.bias(), y, begin, begin + count);
    if (!options.silu) return;
    for (Index r = begin; r < begin + count; ++r) {
      detail::transform(y.row(r), y.row(r), y.cols, [](auto p) { return detail::Silu::value(p); });
    }
  });
  if (!state.absent()) detail::move_state(x, options.batch, state);
}

template <Accumulator A>
std::size_t short_convolution_adjoint_workspace_bytes(Index rows, Index channels, Index taps,
                                                      const ShortConvolutionOptions& options) {
  return detail::counted_bytes([&](detail::Arena& arena) {
    return detail::ShortConvolutionAdjointMemory<A>("short_convolution_adjoint", arena, rows,
                                                    channels, taps, options.silu);
  });
}

template <LayerInput X>
void short_convolution_adjoint(const X& input,
                               const ConvolutionView<const detail::element_t<X>>& parameters,
                               const ShortConvolutionOptions& options, const detail::input_t<X>& dy,
                               const detail::output_t<X>& dx,
                               const ConvolutionView<detail::element_t<X>>& gradients,
                               const Call& call) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "short_convolution_adjoint";
  const detail::input_t<X> x(input);
  detail::expect_short_convolution(kName, x, parameters, options.batch);
  const Index size = parameters.weight.cols, tokens = x.rows / options.batch;
  detail::expect_rows(kName, "dy", dy, x.rows, x.cols);
  detail::expect_rows_or_none(kName, "dx", dx, x.rows, x.cols);
  detail::expect_convolution_gradients(kName, gradients, x.cols, size);
  detail::Scratch scratch(
      kName, call.workspace,
      short_convolution_adjoint_workspace_bytes<A>(x.rows, x.cols, size, options));
  const detail::ShortConvolutionAdjointMemory<A> memory(kName, scratch.arena(), x.rows, x.cols,
                                                        size, options.silu);
  const detail::TapWeights<A>& weights = memory.forward.weights;
  memory.forward.fill(parameters);
  const detail::CausalTaps<A> causal{x, tokens, size, {}, memory.forward.zeros};
  const MatrixView<A> storage(memory.dpre, x.rows, x.cols, memory.stride);
  const MatrixView<const A> dpre = options.silu ? MatrixView<const A>(storage) : dy;
  if (options.silu) {
    detail::for_each_layer_strip(x.rows, call.executor, [&](Index begin, Index count) {
      detail::convolve(causal, weights, weights.bias(), storage, begin, begin + count);
      for (Index r = begin; r < begin + count; ++r) {
        detail::update(
            storage.row(r), storage.cols,
            [](auto p, auto g) { return Eigen::internal::pmul(g, detail::Silu::slope(p)); },
            dy.row(r));
      }
    });
  }
  if (!dx.absent()) {
    const detail::AnticausalTaps<A> anticausal{dpre, tokens, size};
    detail::convolve(anticausal, weights, nullptr, dx, call.executor);
  }
  memory.gradient.add(causal, dpre, gradients, call.executor);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
