#pragma once

/// \file
/// Feature maps on the heads of rows before attention, for layers with a step between map and
/// attention, such as a rotary embedding.
///
///     y_h = phi(x_h)                          x [N,H*D], y [N,H*phi.features(D)], every head h
///     dx_h += J^T dy_h                        and the gradient of phi's weights, if it has any
///
/// Rows of all views are contiguous (column stride 1) at any row stride. Outputs overlap nothing
/// else. Cost: that of the map.

#include <algorithm>
#include <span>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/policy/feature_map.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes phi of every head of x [N,H*D] into y.
/// \param executor  splits over rows
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X, FeatureMap<detail::element_t<X>> Map>
void map_heads(const X& x, const Map& map, Index heads, const detail::output_t<X>& y,
               const ExecutorRef& executor = {});

/// Adds the gradients of x and of the map's weights for the gradient dy of y.
/// \param y         as written by map_heads
/// \param dx        [N,H*D] or absent
/// \param dweights  [map.weights()] or empty
/// \param call      its executor splits over chunks of rows, whose sums are added in order
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X, DifferentiableFeatureMap<detail::element_t<X>> Map>
void map_heads_adjoint(const X& x, const Map& map, Index heads, const detail::input_t<X>& y,
                       const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                       std::span<detail::element_t<X>> dweights, const Call& call = {});

/// Bytes of workspace of map_heads_adjoint: at most 64 rows of the map's weights, and 64 strips of
/// 64 rows of D.
template <Accumulator A>
std::size_t map_heads_adjoint_workspace_bytes(Index rows, Index width, Index weights);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Throws unless y has the features of x's heads. Returns D.
template <Accumulator A, class Map, class Y>
Index expect_heads(const char* function, MatrixView<const A> x, const Map& map, Index heads,
                   const char* argument, const MatrixView<Y>& y) {
  expect_rows(function, "x", x, -1, -1);
  if (heads < 1 || x.cols % heads != 0) {
    fail_option(function, "heads", "is " + std::to_string(heads),
                "a divisor of the " + std::to_string(x.cols) + " channels");
  }
  const Index width = x.cols / heads;
  expect_rows(function, argument, y, x.rows, heads * map.features(width));
  return width;
}

template <class T>
MatrixView<T> head_columns(MatrixView<T> x, Index begin, Index count, Index head, Index width) {
  return {x.data + begin * x.row_stride + head * width, count, width, x.row_stride};
}

/// Sums of the weights' gradients per chunk of rows, and memory for an unused gradient.
template <Accumulator A>
struct HeadMapSums {
  RowChunks chunks;
  Index weights;
  A* sums;     // [chunks, weights]
  A* ignored;  // [chunks, strip, width]

  HeadMapSums(const char* function, Arena& arena, Index rows, Index width, Index weights_)
      : chunks(rows, 64, kLayerStrip),
        weights(weights_),
        sums(arena.take<A>(function, {chunks.count(), weights_})),
        ignored(arena.take<A>(function, {chunks.count(), kLayerStrip, width})) {}
};

/// Adds J^T dy of a strip of one head.
template <Accumulator A, class Map>
void add_head_map(const Map& map, MatrixView<const A> x, MatrixView<const A> y,
                  MatrixView<const A> dy, MatrixView<A> dx, A* dweights) {
  if constexpr (DifferentiableStripFeatureMap<Map, A>) {
    map.strip_adjoint(x, y, dy, dx, dweights);
  } else {
    for (Index r = 0; r < x.rows; ++r) {
      map.adjoint(x.row(r), y.row(r), dy.row(r), dx.row(r), x.cols, dweights);
    }
  }
}

}  // namespace detail

template <LayerInput X, FeatureMap<detail::element_t<X>> Map>
void map_heads(const X& input, const Map& map, Index heads, const detail::output_t<X>& y,
               const ExecutorRef& executor) {
  using A = detail::element_t<X>;
  const detail::input_t<X> x(input);
  const Index width = detail::expect_heads<A>("map_heads", x, map, heads, "y", y);
  const Index features = map.features(width);
  detail::for_each_layer_strip(x.rows, executor, [&](Index begin, Index count) {
    for (Index h = 0; h < heads; ++h) {
      const auto from = detail::head_columns(x, begin, count, h, width);
      const auto to = detail::head_columns(y, begin, count, h, features);
      if constexpr (StripFeatureMap<Map, A>) {
        map.strip(from, to);
      } else {
        for (Index r = 0; r < count; ++r) map(from.row(r), to.row(r), width);
      }
    }
  });
}

template <Accumulator A>
std::size_t map_heads_adjoint_workspace_bytes(Index rows, Index width, Index weights) {
  return detail::counted_bytes([&](detail::Arena& arena) {
    return detail::HeadMapSums<A>("map_heads_adjoint", arena, rows, width, weights);
  });
}

template <LayerInput X, DifferentiableFeatureMap<detail::element_t<X>> Map>
void map_heads_adjoint(const X& input, const Map& map, Index heads, const detail::input_t<X>& y,
                       const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                       std::span<detail::element_t<X>> dweights, const Call& call) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "map_heads_adjoint";
  const detail::input_t<X> x(input);
  const Index width = detail::expect_heads<A>(kName, x, map, heads, "y", y);
  const Index features = map.features(width);
  detail::expect_rows(kName, "dy", dy, y.rows, y.cols);
  detail::expect_rows_or_none(kName, "dx", dx, x.rows, x.cols);
  detail::expect_elements_or_none(kName, "dweights", dweights.size(), map.weights());
  detail::Scratch scratch(kName, call.workspace,
                          map_heads_adjoint_workspace_bytes<A>(x.rows, width, map.weights()));
  const detail::HeadMapSums<A> sums(kName, scratch.arena(), x.rows, width, map.weights());
  call.executor.for_each(sums.chunks.count(), [&](Index chunk, Index /*worker*/) {
    A* const chunk_sums = dweights.empty() ? nullptr : sums.sums + chunk * sums.weights;
    if (chunk_sums != nullptr) std::fill_n(chunk_sums, sums.weights, A(0));
    const MatrixView<A> ignored(sums.ignored + chunk * detail::kLayerStrip * width,
                                detail::kLayerStrip, width, width);
    if (dx.absent()) std::fill_n(ignored.data, detail::kLayerStrip * width, A(0));
    const Index end = sums.chunks.end(chunk);
    for (Index begin = sums.chunks.begin(chunk); begin < end; begin += detail::kLayerStrip) {
      const Index count = std::min(detail::kLayerStrip, end - begin);
      for (Index h = 0; h < heads; ++h) {
        detail::add_head_map<A>(map, detail::head_columns(x, begin, count, h, width),
                                detail::head_columns(y, begin, count, h, features),
                                detail::head_columns(dy, begin, count, h, features),
                                dx.absent() ? ignored.middle_rows(0, count)
                                            : detail::head_columns(dx, begin, count, h, width),
                                chunk_sums);
      }
    }
  });
  if (dweights.empty()) return;
  detail::add_rows_to(sums.sums, sums.weights, sums.chunks.count(), dweights.data(), sums.weights);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
