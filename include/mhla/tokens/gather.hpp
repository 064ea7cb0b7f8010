#pragma once

/// \file
/// Reading and writing tokens: rows of a strip are gathered into contiguous rows of the accumulator
/// type, and scattered back.
///
/// The gather widens storage types, applies the feature map, follows grid runs and skips masked
/// tokens. Later code reads dense rows. A masked token is never loaded, so it reaches no output.

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/convert.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/kernel/unit.hpp"
#include "mhla/policy/feature_map.hpp"
#include "mhla/policy/partition.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Widens a row x of `count` numbers, `stride` apart, into y.
template <Scalar T, class A>
inline void widen(const T* x, Index stride, A* y, Index count) {
  if (stride == 1) {
    widen(x, y, count);
  } else {
    for (Index j = 0; j < count; ++j) y[j] = static_cast<A>(x[j * stride]);
  }
}

/// Returns x itself if it is a contiguous row of A; otherwise widens it into `raw`.
template <Scalar T, class A>
inline const A* widened(const T* x, Index stride, A* raw, Index count) {
  if constexpr (std::is_same_v<T, A>) {
    if (stride == 1) return x;
  }
  widen(x, stride, raw, count);
  return raw;
}

/// Prefetches a later row of a strip into L1 while row s is read. Rows come from L2. If another
/// program uses the same L2, a tenth of the rows are evicted, and each costs 200 ns. The prefetch
/// saves 2 to 10 % of a whole call there (4 or 16 rows ahead cost 1 % more).
template <Scalar T>
MHLA_INLINE inline void load_ahead(MatrixView<const T> x, const Index* tokens, Index s,
                                   Index count) {
  constexpr Index kAhead = 8;
  if (x.col_stride == 1 && s + kAhead < count) prefetch_row(x.row(tokens[s + kAhead]), x.cols);
}

/// Writes rows tokens[0..count) of x, widened.
template <Scalar T, class A>
MHLA_NOINLINE void gather(MatrixView<const T> x, const Index* tokens, Index count, Rows<A> rows) {
  for (Index s = 0; s < count; ++s) {
    load_ahead(x, tokens, s, count);
    widen(x.row(tokens[s]), x.col_stride, rows.row(s), x.cols);
  }
}

/// True if a product that reads rows this many bytes apart more than once should read a copy. A
/// strip of such rows fills all ways of the L1 sets that they share. With 8 ways, six heads of 64
/// floats do. The copy saves 2 to 4 % of a whole call on AMD processors. On Intel processors with
/// 12 ways it would cost 2 to 4 %.
inline bool alias(Index stride_bytes) {
  const Index sets = kL1WayBytes / std::gcd(stride_bytes, kL1WayBytes);  // sets in which rows begin
  return stride_bytes != 0 && kStripTokens >= kL1Ways * sets;
}

/// True if there are tokens and each follows the one before.
inline bool consecutive(const Index* tokens, Index count) {
  const auto apart = [](Index t, Index next) { return next != t + 1; };
  return count > 0 && std::adjacent_find(tokens, tokens + count, apart) == tokens + count;
}

/// Returns rows tokens[0..count) of x. They stay in place if they are consecutive, of type A and do
/// not alias; otherwise they are gathered into `scratch`. Rows that are apart cost a product less
/// than a copy.
template <Scalar T, class A>
Rows<const A> gathered(MatrixView<const T> x, const Index* tokens, Index count, Rows<A> scratch) {
  if constexpr (std::is_same_v<T, A>) {
    if (x.col_stride == 1 && !alias(x.row_stride * Index{sizeof(A)}) &&
        consecutive(tokens, count)) {
      return {x.row(tokens[0]), x.row_stride};
    }
  }
  gather(x, tokens, count, scratch);
  return scratch;
}

/// Writes rows tokens[0..count) of x, widened, row s times factors[s]; zeros for a factor of 0.
template <Scalar T, class A>
MHLA_NOINLINE void gather_scaled(MatrixView<const T> x, const Index* tokens, Index count,
                                 const A* factors, Rows<A> rows) {
  for (Index s = 0; s < count; ++s) {
    load_ahead(x, tokens, s, count);
    const T* const row = x.row(tokens[s]);
    if (factors[s] == 0) {
      std::fill_n(rows.row(s), x.cols, A(0));
      continue;
    }
    if constexpr (std::is_same_v<T, A>) {
      if (x.col_stride == 1) {
        transform(row, rows.row(s), x.cols, [factor = factors[s]](auto p) {
          return Eigen::internal::pmul(p, Eigen::internal::pset1<decltype(p)>(factor));
        });
        continue;
      }
    }
    widen(row, x.col_stride, rows.row(s), x.cols);
    scale(factors[s], rows.row(s), x.cols);
  }
}

/// Size of `raw`, the rows that a map reads, for tokens of `width` numbers: one row, or a strip.
template <class A, class Map>
constexpr Index raw_size(Index width) {
  if constexpr (!StripFeatureMap<Map, A>) return width;
  return product_or_largest(unaliased_stride<A>(width), kStripTokens);
}
template <class A>
Rows<A> raw_rows(A* raw, Index width) {
  return {raw, unaliased_stride<A>(width)};
}

/// Writes phi of rows tokens[0..count) of x.
/// \param count  at most kStripTokens     \param raw  scratch of raw_size numbers
template <Scalar T, class A, class Map>
MHLA_NOINLINE void gather_features(MatrixView<const T> x, const Index* tokens, Index count,
                                   const Map& map, A* raw, Rows<A> rows) {
  if constexpr (StripFeatureMap<Map, A>) {
    const Rows<A> strip = raw_rows(raw, x.cols);
    gather(x, tokens, count, strip);
    map.strip(strip.matrix(count, x.cols), rows.matrix(count, map.features(x.cols)));
    return;
  }
  for (Index s = 0; s < count; ++s) {
    load_ahead(x, tokens, s, count);
    map(widened(x.row(tokens[s]), x.col_stride, raw, x.cols), rows.row(s), x.cols);
  }
}

/// Writes the tangents of the features of rows tokens[0..count) of x, along dx and the map's
/// weights. Either dx or dweights may be absent, which counts as zeros.
/// \param features  phi of the rows
/// \param raw       scratch of twice raw_size numbers
template <Scalar T, class A, TangentFeatureMap<A> Map>
MHLA_NOINLINE void gather_features_tangent(MatrixView<const T> x, MatrixView<const T> dx,
                                           const Index* tokens, Index count, const Map& map,
                                           const A* dweights, Rows<A> features, A* raw,
                                           Rows<A> rows) {
  const Index width = x.cols, d = map.features(width);
  if constexpr (TangentStripFeatureMap<Map, A>) {
    const Rows<A> strip = raw_rows(raw, width), along = strip.below(kStripTokens);
    gather(x, tokens, count, strip);
    if (!dx.absent()) gather(dx, tokens, count, along);
    map.strip_tangent(strip.matrix(count, width), features.matrix(count, d),
                      dx.absent() ? MatrixView<A>() : along.matrix(count, width),
                      rows.matrix(count, d), dweights);
    return;
  }
  for (Index s = 0; s < count; ++s) {
    const A* const row = widened(x.row(tokens[s]), x.col_stride, raw, width);
    const A* along = nullptr;
    if (!dx.absent()) along = widened(dx.row(tokens[s]), dx.col_stride, raw + width, width);
    write_tangent(map, row, features.row(s), along, rows.row(s), width, dweights);
  }
}

/// Writes the first out.cols elements of each row, rounded to T, to rows tokens[0..count) of out.
template <Scalar T, class A>
MHLA_NOINLINE void scatter(Rows<A> rows, const Index* tokens, Index count, MatrixView<T> out) {
  for (Index s = 0; s < count; ++s) {
    const A* const from = rows.row(s);
    T* const to = out.row(tokens[s]);
    if (out.col_stride == 1) {
      narrow(from, to, out.cols);
    } else {
      for (Index j = 0; j < out.cols; ++j) to[j * out.col_stride] = static_cast<T>(from[j]);
    }
  }
}

/// y[j] += x[j], rounded once to T.
template <Scalar T, class A>
inline void add_narrowed(const A* x, T* y, Index count) {
  if constexpr (std::is_same_v<T, A>) return add_to(x, y, count);
  constexpr Index kPiece = 64;
  A sums[kPiece];
  for (Index j = 0; j < count; j += kPiece) {
    const Index some = std::min(kPiece, count - j);
    widen(static_cast<const T*>(y + j), sums, some);
    add_to(x + j, sums, some);
    narrow(static_cast<const A*>(sums), y + j, some);
  }
}

/// Adds rows to rows tokens[0..count) of out, rounding each sum once to T.
template <Scalar T, class A>
MHLA_NOINLINE void add_to_tokens(Rows<A> rows, const Index* tokens, Index count,
                                 MatrixView<T> out) {
  for (Index s = 0; s < count; ++s) {
    const A* const from = rows.row(s);
    T* const to = out.row(tokens[s]);
    if (out.col_stride == 1) {
      add_narrowed(from, to, out.cols);
      continue;
    }
    for (Index j = 0; j < out.cols; ++j) {
      T& sum = to[j * out.col_stride];
      sum = static_cast<T>(static_cast<A>(sum) + from[j]);
    }
  }
}

/// The adjoint of gather_features. Adds the sums J^T dy to rows tokens[0..count) of dx, rounded
/// once to T, and the gradient of the map's weights to `dweights`. Either may be absent. A row of
/// dy that is 0 adds nothing, whatever x is.
/// \param features  phi of the rows of x, which may be overwritten
/// \param raw       scratch of twice raw_size numbers
template <Scalar T, class A, class Map>
MHLA_NOINLINE void add_features_adjoint(MatrixView<const T> x, const Index* tokens, Index count,
                                        const Map& map, Rows<A> features, Rows<A> dy, A* raw,
                                        MatrixView<T> dx, A* dweights) {
  if (dx.absent() && (dweights == nullptr || map.weights() == 0)) return;
  const Index width = x.cols, d = map.features(width);
  if constexpr (DifferentiableStripFeatureMap<Map, A>) {
    const Rows<A> strip = raw_rows(raw, width), sums = strip.below(kStripTokens);
    gather(x, tokens, count, strip);
    for (Index s = 0; s < count; ++s) {
      std::fill_n(sums.row(s), width, A(0));
      if (!is_zero(dy.row(s), d)) continue;
      std::fill_n(strip.row(s), width, A(0));
      std::fill_n(features.row(s), d, A(0));
    }
    map.strip_adjoint(strip.matrix(count, width), features.matrix(count, d), dy.matrix(count, d),
                      sums.matrix(count, width), dweights);
    if (!dx.absent()) add_to_tokens(sums, tokens, count, dx);
    return;
  }
  const Rows<A> sum(raw + width, width);
  for (Index s = 0; s < count; ++s) {
    if (is_zero(dy.row(s), d)) continue;
    const A* const row = widened(x.row(tokens[s]), x.col_stride, raw, width);
    std::fill_n(sum.data, width, A(0));
    map.adjoint(row, features.row(s), dy.row(s), sum.data, width, dweights);
    if (!dx.absent()) add_to_tokens(sum, tokens + s, 1, dx);
  }
}

/// Zeroes the rows of a block that a mask excludes.
template <Scalar T, Partition P>
MHLA_NOINLINE void clear_masked(const P& blocks, Index block, Mask mask, MatrixView<T> out) {
  if (mask.all()) return;
  for (Index r = 0; r < blocks.runs(block); ++r) {
    const Run run = blocks.run(block, r);
    for (Index token = run.begin; token < run.begin + run.length; ++token) {
      if (mask[token]) continue;
      for (Index j = 0; j < out.cols; ++j) out(token, j) = T(0);
    }
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
