#pragma once

/// \file
/// The parameters of depthwise convolutions, and the sums over taps that these share.
///
///     y_r   (+)= bias + sum over taps t of weight_t * x_source(t, r)      weight_t, bias, rows [C]
///     dweight_t += sum over rows r of dy_r * x_source(t, r)
///
/// Up to 4 adjacent rows with the same taps are computed together, and load each weight once.
/// Channels are split into panels whose sums stay in registers over the taps. Every sum is one
/// chain in ascending order, so bits depend neither on rows computed together nor on panels.

#include <algorithm>
#include <span>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/rows.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {

/// The parameters of a depthwise convolution (T const) or their gradients.
template <class T>
struct ConvolutionView {
  MatrixView<T> weight{};  ///< [C,taps], one row per channel; a gradient may be absent
  std::span<T> bias{};     ///< [C] or empty: no bias, or no gradient of it

  constexpr operator ConvolutionView<const T>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {weight, bias};
  }
};

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator A>
void expect_convolution(const char* function, const ConvolutionView<const A>& parameters,
                        Index channels, Index taps) {
  expect_rows(function, "weight", parameters.weight, channels, taps);
  expect_elements_or_none(function, "bias", parameters.bias.size(), channels);
}

template <Accumulator A>
void expect_convolution_gradients(const char* function, const ConvolutionView<A>& gradients,
                                  Index channels, Index taps) {
  expect_rows_or_none(function, "gradient of weight", gradients.weight, channels, taps);
  expect_elements_or_none(function, "gradient of bias", gradients.bias.size(), channels);
}

/// One row of C numbers per tap, and one for the bias.
template <Accumulator A>
struct TapWeights {
  Index taps, stride;
  A* data;  // [taps + 1, stride]

  TapWeights(const char* function, Arena& arena, Index channels, Index taps_)
      : taps(taps_),
        stride(unaliased_stride<A>(channels)),
        data(arena.take<A>(function, {taps + 1, stride})) {}

  /// The transposed weight, and the bias or zeros.
  void fill(const ConvolutionView<const A>& parameters) const {
    const MatrixView<const A>& w = parameters.weight;
    for (Index t = 0; t < taps; ++t) {
      for (Index c = 0; c < w.rows; ++c) data[t * stride + c] = w(c, t);
    }
    std::fill_n(data + taps * stride, w.rows, A(0));
    std::copy(parameters.bias.begin(), parameters.bias.end(), data + taps * stride);
  }
  const A* tap(Index t) const { return data + t * stride; }
  const A* bias() const { return tap(taps); }
};

/// Rows that have the same taps, and the source of each tap for each row.
template <Accumulator A>
struct TapRows {
  static constexpr int kTogether = 4;
  static constexpr Index kMost = 64;  // taps; more taps come in several parts

  Index count = 1;       // of rows: 1 or kTogether
  Index row[kTogether];  // in the matrix of results
  bool first = true;     // true in the first part
  Index taps = 0;        // of this part
  Index tap[kMost];      // index of the weight
  const A* source[kMost][kTogether];
};

/// f(TapRows) for the rows at positions [begin, end), in order.
/// \param taps  at(position) returns the rows from `position` on that have the same taps (`alike`).
///              Its row(i) is the i-th row, for_each(f) calls f(tap, source) for the first row, and
///              from(source) reads source + i for the i-th row.
template <Accumulator A, class Taps, class F>
void for_each_tap_rows(const Taps& taps, Index begin, Index end, const F& f) {
  TapRows<A> rows;
  for (Index position = begin; position < end; position += rows.count) {
    const auto at = taps.at(position);
    rows.count = std::min(at.alike, end - position) < rows.kTogether ? 1 : rows.kTogether;
    for (Index i = 0; i < rows.count; ++i) rows.row[i] = at.row(i);
    rows.first = true;
    rows.taps = 0;
    at.for_each([&](Index tap, Index source) {
      if (rows.taps == rows.kMost) {
        f(rows);
        rows.first = false;
        rows.taps = 0;
      }
      rows.tap[rows.taps] = tap;
      for (Index i = 0; i < rows.count; ++i) rows.source[rows.taps][i] = at.from(source + i);
      ++rows.taps;
    });
    f(rows);
  }
}

/// f<P, Packets>(c) for panels of packets P that cover the channels.
template <Accumulator A, int Rows, class F>
void for_each_channel_panel(Index channels, const F& f) {
  using P = Packet<A>;
  constexpr int kPackets = Rows == 1 ? 4 : kVectorRegisters / (2 * Rows);
  Index c = 0;
  for (; c + kPackets * kLanes<P> <= channels; c += kPackets * kLanes<P>) {
    f.template operator()<P, kPackets>(c);
  }
  for (; c + kLanes<P> <= channels; c += kLanes<P>) f.template operator()<P, 1>(c);
  for (; c < channels; ++c) f.template operator()<A, 1>(c);
}

/// y = start + sum over taps of weight * source, for rows of `channels` numbers.
template <int Rows, Accumulator A>
void sum_taps(const TapRows<A>& rows, const TapWeights<A>& weights, const A* const* start,
              A* const* y, Index channels) {
  for_each_channel_panel<A, Rows>(channels, [&]<class P, int Packets>(Index c) {
    P sums[Rows][Packets];
    MHLA_UNROLL
    for (int i = 0; i < Rows; ++i) {
      MHLA_UNROLL
      for (int p = 0; p < Packets; ++p) sums[i][p] = load<A, P>(start[i] + c + p * kLanes<P>);
    }
    for (Index t = 0; t < rows.taps; ++t) {
      const A* const weight = weights.tap(rows.tap[t]) + c;
      MHLA_UNROLL
      for (int p = 0; p < Packets; ++p) {
        const P w = load<A, P>(weight + p * kLanes<P>);
        MHLA_UNROLL
        for (int i = 0; i < Rows; ++i) {
          const P x = load<A, P>(rows.source[t][i] + c + p * kLanes<P>);
          sums[i][p] = multiply_add(w, x, sums[i][p]);
        }
      }
    }
    MHLA_UNROLL
    for (int i = 0; i < Rows; ++i) {
      MHLA_UNROLL
      for (int p = 0; p < Packets; ++p) store(y[i] + c + p * kLanes<P>, sums[i][p]);
    }
  });
}

/// y = start + sum over taps, for the rows at positions [begin, end); y += where start is null.
template <Accumulator A, class Taps>
void convolve(const Taps& taps, const TapWeights<A>& weights, std::type_identity_t<const A*> start,
              MatrixView<A> y, Index begin, Index end) {
  for_each_tap_rows<A>(taps, begin, end, [&](const TapRows<A>& rows) {
    const A* from[TapRows<A>::kTogether];
    A* to[TapRows<A>::kTogether];
    for (Index i = 0; i < rows.count; ++i) {
      to[i] = y.row(rows.row[i]);
      from[i] = rows.first && start != nullptr ? start : to[i];
    }
    if (rows.count == 1) return sum_taps<1>(rows, weights, from, to, y.cols);
    sum_taps<TapRows<A>::kTogether>(rows, weights, from, to, y.cols);
  });
}

/// The same for all rows of y, in strips.
template <Accumulator A, class Taps>
void convolve(const Taps& taps, const TapWeights<A>& weights, std::type_identity_t<const A*> start,
              MatrixView<A> y, const ExecutorRef& executor) {
  for_each_layer_strip(y.rows, executor, [&](Index begin, Index count) {
    convolve(taps, weights, start, y, begin, begin + count);
  });
}

/// sums_t += dy * source, row after row.
template <int Rows, Accumulator A>
void add_tap_products(const TapRows<A>& rows, MatrixView<const A> dy, A* sums, Index stride) {
  for_each_channel_panel<A, Rows>(dy.cols, [&]<class P, int Packets>(Index c) {
    P gradient[Rows][Packets];
    MHLA_UNROLL
    for (int i = 0; i < Rows; ++i) {
      const A* const row = dy.row(rows.row[i]) + c;
      MHLA_UNROLL
      for (int p = 0; p < Packets; ++p) gradient[i][p] = load<A, P>(row + p * kLanes<P>);
    }
    for (Index t = 0; t < rows.taps; ++t) {
      A* const total = sums + rows.tap[t] * stride + c;
      MHLA_UNROLL
      for (int p = 0; p < Packets; ++p) {
        P sum = load<A, P>(total + p * kLanes<P>);
        MHLA_UNROLL
        for (int i = 0; i < Rows; ++i) {
          const P x = load<A, P>(rows.source[t][i] + c + p * kLanes<P>);
          sum = multiply_add(gradient[i][p], x, sum);
        }
        store(total + p * kLanes<P>, sum);
      }
    }
  });
}

/// The gradients of weight and bias: the sums of chunks of rows, added in order.
template <Accumulator A>
class ConvolutionGradient {
  static constexpr Index kChunks = 64, kLeastRows = 256;

 public:
  ConvolutionGradient(const char* function, Arena& arena, Index rows, Index channels, Index taps)
      : channels_(channels),
        taps_(taps),
        stride_(unaliased_stride<A>(channels)),
        chunks_(rows, kChunks, kLeastRows),
        sums_(arena.take<A>(function, {chunks_.count(), taps + 1, stride_})) {}

  /// \param taps  of x, for for_each_tap_rows
  template <class Taps>
  void add(const Taps& taps, MatrixView<const A> dy, const ConvolutionView<A>& gradients,
           const ExecutorRef& executor) const {
    const bool want_weight = !gradients.weight.absent(), want_bias = !gradients.bias.empty();
    if ((!want_weight && !want_bias) || chunks_.count() == 0) return;
    executor.for_each(chunks_.count(), [&](Index chunk, Index /*worker*/) {
      const Index begin = chunks_.begin(chunk), end = chunks_.end(chunk);
      A* const sums = sums_ + chunk * size();
      std::fill_n(sums, size(), A(0));
      add_rows_to(dy.row(begin), dy.row_stride, end - begin, sums + taps_ * stride_, channels_);
      if (!want_weight) return;
      for_each_tap_rows<A>(taps, begin, end, [&](const TapRows<A>& rows) {
        if (rows.count == 1) return add_tap_products<1>(rows, dy, sums, stride_);
        add_tap_products<TapRows<A>::kTogether>(rows, dy, sums, stride_);
      });
    });
    executor.for_each(taps_ + 1, [&](Index tap, Index /*worker*/) {
      A* const total = sums_ + tap * stride_;
      add_rows_to(total + size(), size(), chunks_.count() - 1, total, channels_);
      if (tap == taps_ && want_bias) add_to(total, gradients.bias.data(), channels_);
      if (tap == taps_ || !want_weight) return;
      for (Index c = 0; c < channels_; ++c) gradients.weight(c, tap) += total[c];
    });
  }

 private:
  Index size() const { return (taps_ + 1) * stride_; }  // of the sums of a chunk

  Index channels_, taps_, stride_;
  RowChunks chunks_;
  A* sums_;  // [chunks, taps + 1, stride]: of the weight, of the bias
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
