#pragma once

/// \file
/// Layer normalisation of the rows of a matrix, and its adjoint.
///
///     y = n * gain + shift,   n = (x - m) / sqrt(v + eps)           x, y [N,C], gain, shift [C]
///     m = sum_c x_c / C,      v = sum_c (x_c - m)^2 / C
///     dx     += (g - mean(g) - n mean(g n)) / sqrt(v + eps),   g = dy * gain
///     dgain  += sum over rows of dy * n
///     dshift += sum over rows of dy
///
/// Without affine parameters, gain and shift are empty and stand for 1 and 0. The variance is a
/// second pass over the row, so a large mean does not cancel it. The adjoint computes mean and
/// variance again. Rows of all views are contiguous (column stride 1) at any row stride. Cost:
/// about 8*N*C flops, the adjoint 20*N*C. Source: Ba, Kiros and Hinton, arXiv:1607.06450.

#include <algorithm>
#include <cmath>
#include <span>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/rows.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes the normalised rows of x [N,C] into y [N,C], which overlaps nothing else.
/// \param gain, shift  [C], or both empty
/// \param executor     splits over rows
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void layer_norm(const X& x, std::span<const detail::element_t<X>> gain,
                std::span<const detail::element_t<X>> shift, double eps,
                const detail::output_t<X>& y, const ExecutorRef& executor = {});

/// Adds the gradients of x, gain and shift for the gradient dy of y.
/// \param gain           [C] or empty
/// \param dx             [N,C] or absent
/// \param dgain, dshift  [C] or empty
/// \param call           its executor splits over chunks of rows, whose sums are added in order
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X>
void layer_norm_adjoint(const X& x, std::span<const detail::element_t<X>> gain, double eps,
                        const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                        std::span<detail::element_t<X>> dgain,
                        std::span<detail::element_t<X>> dshift, const Call& call = {});

/// Bytes of workspace of layer_norm_adjoint: at most 64 rows of 2C numbers.
template <Accumulator A>
std::size_t layer_norm_adjoint_workspace_bytes(Index rows, Index cols);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Mean of a row, and 1 / sqrt(variance + eps).
template <Accumulator A>
struct RowStatistics {
  A mean, scale;

  RowStatistics(const A* x, Index cols, A eps) : mean(sum(x, cols) / static_cast<A>(cols)) {
    using P = Packet<A>;
    const P m = Eigen::internal::pset1<P>(mean);
    P squares = Eigen::internal::pset1<P>(A(0));
    for_each_packet(x, cols, mean, [&](P p) {
      const P difference = Eigen::internal::psub(p, m);
      squares = multiply_add(difference, difference, squares);
    });
    const A variance = Eigen::internal::predux(squares) / static_cast<A>(cols);
    scale = 1 / std::sqrt(variance + eps);
  }

  template <class P>
  MHLA_INLINE P normalised(P p) const {
    using namespace Eigen::internal;
    return pmul(psub(p, pset1<P>(mean)), pset1<P>(scale));
  }
};

/// The sums over rows of dy * n and dy, two rows per chunk.
template <Accumulator A>
class LayerNormAdjoint {
  static constexpr Index kChunks = 64;

 public:
  LayerNormAdjoint(const char* function, Arena& arena, Index rows, Index cols)
      : cols_(cols),
        chunks_(rows, kChunks, kLayerStrip),
        sums_(arena.take<A>(function, {chunks_.count(), 2, cols})) {}

  /// \param gain  [C] or null
  void run(MatrixView<const A> x, const A* gain, A eps, MatrixView<const A> dy, MatrixView<A> dx,
           std::span<A> dgain, std::span<A> dshift, const ExecutorRef& executor) {
    const bool want_parameters = !dgain.empty() || !dshift.empty();
    executor.for_each(chunks_.count(), [&](Index chunk, Index /*worker*/) {
      A* const gains = sums_ + chunk * 2 * cols_;
      if (want_parameters) std::fill_n(gains, 2 * cols_, A(0));
      for (Index r = chunks_.begin(chunk); r < chunks_.end(chunk); ++r) {
        const RowStatistics<A> statistics(x.row(r), cols_, eps);
        if (want_parameters) add_parameters(statistics, x.row(r), dy.row(r), gains);
        if (dx.absent()) continue;
        if (gain == nullptr) {
          add_input<false>(statistics, x.row(r), dy.row(r), dy.row(r), dx.row(r));
        } else {
          add_input<true>(statistics, x.row(r), gain, dy.row(r), dx.row(r));
        }
      }
    });
    if (!dgain.empty()) add_rows_to(sums_, 2 * cols_, chunks_.count(), dgain.data(), cols_);
    if (!dshift.empty()) {
      add_rows_to(sums_ + cols_, 2 * cols_, chunks_.count(), dshift.data(), cols_);
    }
  }

 private:
  void add_parameters(const RowStatistics<A>& statistics, const A* x, const A* dy, A* gains) const {
    update(
        gains, cols_,
        [&](auto total, auto p, auto g) {
          return multiply_add(g, statistics.normalised(p), total);
        },
        x, dy);
    update(
        gains + cols_, cols_, [](auto total, auto g) { return Eigen::internal::padd(total, g); },
        dy);
  }

  /// \param gain  [C]; not read without kGain
  template <bool kGain>
  void add_input(const RowStatistics<A>& statistics, const A* x, const A* gain, const A* dy,
                 A* dx) const {
    using namespace Eigen::internal;
    using P = Packet<A>;
    const auto weigh = [](P g, P weight) { return kGain ? pmul(g, weight) : g; };
    P sum = pset1<P>(A(0)), product = sum;
    const auto add = [&](P p, P weight, P g) {
      const P weighted = weigh(g, weight);
      sum = padd(sum, weighted);
      product = multiply_add(weighted, statistics.normalised(p), product);
    };
    Index c = 0;
    for (; c + kLanes<P> <= cols_; c += kLanes<P>) {
      add(load<A, P>(x + c), load<A, P>(gain + c), load<A, P>(dy + c));
    }
    if (c < cols_) {
      const Index tail = cols_ - c;
      add(load_partial<P>(x + c, tail, statistics.mean), load_partial<P>(gain + c, tail, A(0)),
          load_partial<P>(dy + c, tail, A(0)));
    }
    const A n = static_cast<A>(cols_);
    const P mean = pset1<P>(predux(sum) / n), slope = pset1<P>(predux(product) / n);
    const P scale = pset1<P>(statistics.scale);
    update(
        dx, cols_,
        [&](auto total, auto p, auto weight, auto g) {
          const P centred = psub(weigh(g, weight), mean);
          const P along = pmul(statistics.normalised(p), slope);
          return multiply_add(psub(centred, along), scale, total);
        },
        x, gain, dy);
  }

  Index cols_;
  RowChunks chunks_;
  A* sums_;  // [chunks, 2, C]
};

}  // namespace detail

template <LayerInput X>
void layer_norm(const X& input, std::span<const detail::element_t<X>> gain,
                std::span<const detail::element_t<X>> shift, double eps,
                const detail::output_t<X>& y, const ExecutorRef& executor) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "layer_norm";
  const detail::input_t<X> x(input);
  detail::expect_rows(kName, "x", x, -1, -1);
  detail::expect_elements_or_none(kName, "gain", gain.size(), x.cols);
  detail::expect_elements(kName, "shift", shift.size(), static_cast<Index>(gain.size()));
  detail::expect_not_negative(kName, "eps", eps);
  detail::expect_rows(kName, "y", y, x.rows, x.cols);
  detail::for_each_layer_strip(x.rows, executor, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) {
      const detail::RowStatistics<A> statistics(x.row(r), x.cols, static_cast<A>(eps));
      if (gain.empty()) {
        const auto normalised = [&](auto p) { return statistics.normalised(p); };
        detail::combine(y.row(r), x.cols, normalised, x.row(r));
        continue;
      }
      detail::combine(
          y.row(r), x.cols,
          [&](auto p, auto weight, auto offset) {
            return detail::multiply_add(statistics.normalised(p), weight, offset);
          },
          x.row(r), gain.data(), shift.data());
    }
  });
}

template <Accumulator A>
std::size_t layer_norm_adjoint_workspace_bytes(Index rows, Index cols) {
  return detail::counted_bytes([&](detail::Arena& arena) {
    return detail::LayerNormAdjoint<A>("layer_norm_adjoint", arena, rows, cols);
  });
}

template <LayerInput X>
void layer_norm_adjoint(const X& input, std::span<const detail::element_t<X>> gain, double eps,
                        const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                        std::span<detail::element_t<X>> dgain,
                        std::span<detail::element_t<X>> dshift, const Call& call) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "layer_norm_adjoint";
  const detail::input_t<X> x(input);
  detail::expect_rows(kName, "x", x, -1, -1);
  detail::expect_elements_or_none(kName, "gain", gain.size(), x.cols);
  detail::expect_not_negative(kName, "eps", eps);
  detail::expect_rows(kName, "dy", dy, x.rows, x.cols);
  detail::expect_rows_or_none(kName, "dx", dx, x.rows, x.cols);
  detail::expect_elements_or_none(kName, "dgain", dgain.size(), x.cols);
  detail::expect_elements_or_none(kName, "dshift", dshift.size(), x.cols);
  detail::Scratch scratch(kName, call.workspace,
                          layer_norm_adjoint_workspace_bytes<A>(x.rows, x.cols));
  detail::LayerNormAdjoint<A>(kName, scratch.arena(), x.rows, x.cols)
      .run(x, gain.empty() ? nullptr : gain.data(), static_cast<A>(eps), dy, dx, dgain, dshift,
           call.executor);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
