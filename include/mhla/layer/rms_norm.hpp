#pragma once

/// \file
/// Root-mean-square normalisation of rows in groups of channels, with or without a gate, and the
/// adjoints.
///
///     y = n * gain                  n = x / r,   r = sqrt(mean over the group of x^2 + eps)
///     y = n * gain * silu(gate)     x, gate, y [N,C], gain [G]
///     dx    += (g - n mean(g n)) / r,   g = dy * gain, gated dy * silu(gate) * gain
///     dgain += sum over rows and groups of dy * n, gated dy * silu(gate) * n
///     dgate += dy * n * gain * silu'(gate)
///
/// G divides C. Every G consecutive channels are a group with a separate mean, and all groups share
/// the gain. G = C normalises rows, and G = D normalises each head of [N,H*D]. activation.hpp
/// defines silu. Rows of all views are contiguous (column stride 1) at any row stride. Outputs
/// overlap nothing else. Cost: about 4*N*C flops, the adjoint 14*N*C. The gate adds one exponential
/// per element, in the adjoint two.
/// Sources: Zhang and Sennrich, arXiv:1910.07467; the gated form is the output gate of
/// flash-linear-attention (fla/modules/fused_norm_gate.py).

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/activation.hpp"
#include "mhla/layer/rows.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes y = n * gain, x and y [N,C], gain [G].
/// \param executor  splits over rows
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void rms_norm(const X& x, std::span<const detail::element_t<X>> gain, double eps,
              const detail::output_t<X>& y, const ExecutorRef& executor = {});

/// Adds the gradients of x and gain for the gradient dy of y.
/// \param dx     [N,C] or absent
/// \param dgain  [G] or empty
/// \param call   its executor splits over chunks of rows, whose sums are added in order
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X>
void rms_norm_adjoint(const X& x, std::span<const detail::element_t<X>> gain, double eps,
                      const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                      std::span<detail::element_t<X>> dgain, const Call& call = {});

/// Bytes of workspace of rms_norm_adjoint: at most 64 times two rows of G numbers.
template <Accumulator A>
std::size_t rms_norm_adjoint_workspace_bytes(Index rows, Index group);

/// Writes y = n * gain * silu(gate), x, gate and y [N,C], gain [G].
/// \param executor  splits over rows
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void gated_rms_norm(const X& x, std::span<const detail::element_t<X>> gain, double eps,
                    const detail::input_t<X>& gate, const detail::output_t<X>& y,
                    const ExecutorRef& executor = {});

/// Adds the gradients of x, gain and gate for the gradient dy of y.
/// \param dx, dgate  [N,C] or absent
/// \param dgain      [G] or empty
/// \param call       its executor splits as that of rms_norm_adjoint
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X>
void gated_rms_norm_adjoint(const X& x, std::span<const detail::element_t<X>> gain, double eps,
                            const detail::input_t<X>& gate, const detail::input_t<X>& dy,
                            const detail::output_t<X>& dx, std::span<detail::element_t<X>> dgain,
                            const detail::output_t<X>& dgate, const Call& call = {});

/// Bytes of workspace of gated_rms_norm_adjoint, as many as of rms_norm_adjoint.
template <Accumulator A>
std::size_t gated_rms_norm_adjoint_workspace_bytes(Index rows, Index group);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// 1 / sqrt(mean of squares + eps) of a group.
template <Accumulator A>
struct RmsScale {
  A scale;

  RmsScale(const A* x, Index group, double eps)
      : scale(1 / std::sqrt(dot(x, x, group) / static_cast<A>(group) + static_cast<A>(eps))) {}

  template <class P>
  MHLA_INLINE P normalised(P p) const {
    return Eigen::internal::pmul(p, Eigen::internal::pset1<P>(scale));
  }
};

/// Inputs of a norm; the gate only if kGated is true.
template <Accumulator A>
struct RmsNorm {
  MatrixView<const A> x;
  std::span<const A> gain;
  double eps;
  MatrixView<const A> gate{};

  Index group() const { return static_cast<Index>(gain.size()); }

  template <bool kGated>
  void check(const char* function) const {
    expect_rows(function, "x", x, -1, -1);
    if (gain.empty() || x.cols % group() != 0) {
      fail_shape(function, "gain", "has " + std::to_string(gain.size()) + " elements",
                 "a divisor of " + std::to_string(x.cols));
    }
    expect_not_negative(function, "eps", eps);
    if (kGated) expect_rows(function, "gate", gate, x.rows, x.cols);
  }
};

template <Accumulator A>
struct RmsNormGradients {
  MatrixView<A> dx;
  std::span<A> dgain;
  MatrixView<A> dgate{};
};

template <bool kGated, Accumulator A>
void normalise_groups(const char* function, const RmsNorm<A>& norm, MatrixView<A> y,
                      const ExecutorRef& executor) {
  norm.template check<kGated>(function);
  expect_rows(function, "y", y, norm.x.rows, norm.x.cols);
  const Index group = norm.group();
  for_each_layer_strip(y.rows, executor, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) {
      for (Index c = 0; c < y.cols; c += group) {
        const A* const x = norm.x.row(r) + c;
        const RmsScale<A> rms(x, group, norm.eps);
        const auto value = [&](auto p, auto weight) {
          return Eigen::internal::pmul(rms.normalised(p), weight);
        };
        if constexpr (kGated) {
          const auto gated = [&](auto p, auto weight, auto z) {
            return Eigen::internal::pmul(value(p, weight), Silu::value(z));
          };
          combine(y.row(r) + c, group, gated, x, norm.gain.data(), norm.gate.row(r) + c);
        } else {
          combine(y.row(r) + c, group, value, x, norm.gain.data());
        }
      }
    }
  });
}

/// The gradients, with two rows of memory per chunk of rows.
template <Accumulator A>
class RmsNormAdjoint {
  static constexpr Index kChunks = 64;

 public:
  RmsNormAdjoint(const char* function, Arena& arena, Index rows, Index group)
      : group_(group),
        stride_(unaliased_stride<A>(group)),
        chunks_(rows, kChunks, kLayerStrip),
        memory_(arena.take<A>(function, {chunks_.count(), 2, stride_})) {}

  template <bool kGated>
  void run(const RmsNorm<A>& norm, MatrixView<const A> dy, const RmsNormGradients<A>& to,
           const ExecutorRef& executor) const {
    executor.for_each(chunks_.count(), [&](Index chunk, Index /*worker*/) {
      A* const sums = memory_ + chunk * 2 * stride_;
      if (!to.dgain.empty()) std::fill_n(sums, group_, A(0));
      for (Index r = chunks_.begin(chunk); r < chunks_.end(chunk); ++r) {
        for (Index c = 0; c < dy.cols; c += group_) add_group<kGated>(norm, dy, to, r, c, sums);
      }
    });
    if (to.dgain.empty()) return;
    add_rows_to(memory_, 2 * stride_, chunks_.count(), to.dgain.data(), group_);
  }

 private:
  /// The group of row r that starts at channel c; adds to `sums`.
  template <bool kGated>
  void add_group(const RmsNorm<A>& norm, MatrixView<const A> dy, const RmsNormGradients<A>& to,
                 Index r, Index c, A* sums) const {
    using namespace Eigen::internal;
    const A *const x = norm.x.row(r) + c, *const d = dy.row(r) + c, *const gain = norm.gain.data();
    const RmsScale<A> rms(x, group_, norm.eps);
    A* const factor = sums + stride_;  // of n in dgain, and times the gain g
    if constexpr (kGated) {
      const A* const gate = norm.gate.row(r) + c;
      combine(
          factor, group_, [](auto g, auto z) { return pmul(g, Silu::value(z)); }, d, gate);
      const auto add = [&](auto total, auto p, auto weight, auto z, auto g) {
        return multiply_add(pmul(g, Silu::slope(z)), pmul(rms.normalised(p), weight), total);
      };
      if (!to.dgate.absent()) update(to.dgate.row(r) + c, group_, add, x, gain, gate, d);
    } else {
      std::copy_n(d, group_, factor);
    }
    if (!to.dgain.empty()) {
      const auto add = [&](auto total, auto p, auto f) {
        return multiply_add(f, rms.normalised(p), total);
      };
      update(sums, group_, add, x, factor);
    }
    if (to.dx.absent()) return;
    update(
        factor, group_, [](auto f, auto weight) { return pmul(f, weight); }, gain);
    add_input(rms, x, factor, to.dx.row(r) + c);
  }

  void add_input(const RmsScale<A>& rms, const A* x, const A* g, A* dx) const {
    using namespace Eigen::internal;
    using P = Packet<A>;
    const A mean = rms.scale * dot(x, g, group_) / static_cast<A>(group_);  // of g n
    const P slope = pset1<P>(mean), scale = pset1<P>(rms.scale);
    const auto add = [&](P total, P p, P q) {
      return multiply_add(psub(q, pmul(rms.normalised(p), slope)), scale, total);
    };
    update(dx, group_, add, x, g);
  }

  Index group_, stride_;
  RowChunks chunks_;
  A* memory_;  // [chunks, 2, stride]: the sums for dgain, and the factors of a group
};

template <Accumulator A>
std::size_t rms_norm_bytes(const char* function, Index rows, Index group) {
  return counted_bytes(
      [&](Arena& arena) { return RmsNormAdjoint<A>(function, arena, rows, group); });
}

template <bool kGated, Accumulator A>
void add_rms_norm_gradients(const char* function, const RmsNorm<A>& norm, MatrixView<const A> dy,
                            const RmsNormGradients<A>& to, const Call& call) {
  const Index rows = norm.x.rows, cols = norm.x.cols, group = norm.group();
  norm.template check<kGated>(function);
  expect_rows(function, "dy", dy, rows, cols);
  expect_rows_or_none(function, "dx", to.dx, rows, cols);
  expect_elements_or_none(function, "dgain", to.dgain.size(), group);
  if (kGated) expect_rows_or_none(function, "dgate", to.dgate, rows, cols);
  Scratch scratch(function, call.workspace, rms_norm_bytes<A>(function, rows, group));
  RmsNormAdjoint<A>(function, scratch.arena(), rows, group)
      .template run<kGated>(norm, dy, to, call.executor);
}

}  // namespace detail

template <LayerInput X>
void rms_norm(const X& x, std::span<const detail::element_t<X>> gain, double eps,
              const detail::output_t<X>& y, const ExecutorRef& executor) {
  detail::normalise_groups<false, detail::element_t<X>>("rms_norm", {x, gain, eps}, y, executor);
}

template <LayerInput X>
void gated_rms_norm(const X& x, std::span<const detail::element_t<X>> gain, double eps,
                    const detail::input_t<X>& gate, const detail::output_t<X>& y,
                    const ExecutorRef& executor) {
  detail::normalise_groups<true, detail::element_t<X>>("gated_rms_norm", {x, gain, eps, gate}, y,
                                                       executor);
}

template <Accumulator A>
std::size_t rms_norm_adjoint_workspace_bytes(Index rows, Index group) {
  return detail::rms_norm_bytes<A>("rms_norm_adjoint", rows, group);
}

template <Accumulator A>
std::size_t gated_rms_norm_adjoint_workspace_bytes(Index rows, Index group) {
  return detail::rms_norm_bytes<A>("gated_rms_norm_adjoint", rows, group);
}

template <LayerInput X>
void rms_norm_adjoint(const X& x, std::span<const detail::element_t<X>> gain, double eps,
                      const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                      std::span<detail::element_t<X>> dgain, const Call& call) {
  detail::add_rms_norm_gradients<false, detail::element_t<X>>("rms_norm_adjoint", {x, gain, eps},
                                                              dy, {dx, dgain}, call);
}

template <LayerInput X>
void gated_rms_norm_adjoint(const X& x, std::span<const detail::element_t<X>> gain, double eps,
                            const detail::input_t<X>& gate, const detail::input_t<X>& dy,
                            const detail::output_t<X>& dx, std::span<detail::element_t<X>> dgain,
                            const detail::output_t<X>& dgate, const Call& call) {
  detail::add_rms_norm_gradients<true, detail::element_t<X>>(
      "gated_rms_norm_adjoint", {x, gain, eps, gate}, dy, {dx, dgain, dgate}, call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
