#pragma once

/// \file
/// Row operations that stages share, on Eigen's packet primitives: one source for every target.
/// Bits depend on values and length only, never on alignment: loads are unaligned.

#include <Eigen/Core>
#include <cmath>
#include <limits>

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The widest vector of A; A itself if the target has none.
template <class A>
using Packet = typename Eigen::internal::packet_traits<A>::type;

template <class P>
inline constexpr Index kLanes = Eigen::internal::unpacket_traits<P>::size;

template <class A, class P>
MHLA_INLINE inline P load(const A* x) {
  return Eigen::internal::ploadu<P>(x);
}

template <class A, class P>
MHLA_INLINE inline void store(A* x, P p) {
  Eigen::internal::pstoreu(x, p);
}

/// a * b + c, rounded once if the target can, on scalars too.
template <class P>
MHLA_INLINE inline P multiply_add(P a, P b, P c) {
  if constexpr (Accumulator<P> && kFusedMultiplyAdd) {
    return std::fma(a, b, c);
  } else {
    return Eigen::internal::pmadd(a, b, c);
  }
}

/// Adds a * b to sum, with the bits of multiply_add.
template <class A, class P>
MHLA_INLINE inline void accumulate(P a, P b, P& sum) {
  if constexpr (kAddsProducts && !Accumulator<P>) {
    add_product<A>(a, b, sum);
  } else {
    sum = multiply_add(a, b, sum);
  }
}

/// Loads `count` lanes from x and sets the others to `fill`.
template <class P, class A>
inline P load_partial(const A* x, Index count, A fill) {
  A lanes[kLanes<P>];
  for (Index i = 0; i < kLanes<P>; ++i) lanes[i] = i < count ? x[i] : fill;
  return load<A, P>(lanes);
}

template <class P, class A>
inline void store_partial(A* x, P p, Index count) {
  A lanes[kLanes<P>];
  store(lanes, p);
  for (Index i = 0; i < count; ++i) x[i] = lanes[i];
}

/// The last `count` elements of a row that ends at `end`, in the last lanes; the lanes before them
/// are `fill`. The row must have a whole packet.
template <class P, class A>
MHLA_INLINE inline P load_tail(const A* end, Index count, A fill) {
  using namespace Eigen::internal;
  const P before = pcmp_lt(plset<P>(A(0)), pset1<P>(static_cast<A>(kLanes<P> - count)));
  return pselect(before, pset1<P>(fill), load<A, P>(end - kLanes<P>));
}

/// Calls f(packet of x) for all packets of a row. `fill` completes the last packet: its first lanes
/// if the row has a whole packet, otherwise its last lanes.
template <class A, class F>
MHLA_INLINE inline void for_each_packet(const A* x, Index count, A fill, F&& f) {
  using P = Packet<A>;
  Index i = 0;
  for (; i + kLanes<P> <= count; i += kLanes<P>) f(load<A, P>(x + i));
  if (i == count) return;
  f(i > 0 ? load_tail<P>(x + count, count - i, fill) : load_partial<P>(x, count, fill));
}

/// Calls f.operator()<P, n>(j) for the columns [j, j + n packets P) of a row: panels of kVectors
/// packets, of half as many, then packets, then numbers. Panels hide the latency between a packet's
/// sums of successive rows.
template <class A, int kVectors = kVectorRegisters / 4, class F>
MHLA_INLINE inline void for_each_panel(Index count, F&& f) {
  using P = Packet<A>;
  Index j = 0;
  for (; j + kVectors * kLanes<P> <= count; j += kVectors * kLanes<P>) {
    f.template operator()<P, kVectors>(j);
  }
  for (; j + kVectors / 2 * kLanes<P> <= count; j += kVectors / 2 * kLanes<P>) {
    f.template operator()<P, kVectors / 2>(j);
  }
  for (; j + kLanes<P> <= count; j += kLanes<P>) f.template operator()<P, 1>(j);
  for (; j < count; ++j) f.template operator()<A, 1>(j);
}

/// Transforms the elements from i on, fewer than a packet. A short row is padded with ones, which
/// every function accepts.
template <class A, class F>
MHLA_NOINLINE void transform_tail(const A* x, A* y, Index i, Index count, const F& f) {
  using P = Packet<A>;
  if (i > 0 && x != y) {  // recompute the last whole packet: the same bits
    store(y + count - kLanes<P>, f(load<A, P>(x + count - kLanes<P>)));
  } else {
    store_partial(y + i, f(load_partial<P>(x + i, count - i, A(1))), count - i);
  }
}

/// y[i] = f(x[i]) for whole packets f; x and y may be the same, but not overlap otherwise.
template <class A, class F>
MHLA_INLINE inline void transform(const A* x, A* y, Index count, const F& f) {
  using P = Packet<A>;
  constexpr Index kTogether = 4 * kLanes<P>;
  Index i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    MHLA_UNROLL
    for (Index j = 0; j < kTogether; j += kLanes<P>) {
      store(y + i + j, f(load<A, P>(x + i + j)));
    }
  }
  for (; i + kLanes<P> <= count; i += kLanes<P>) store(y + i, f(load<A, P>(x + i)));
  if (i < count) transform_tail(x, y, i, count, f);
}

/// y[i] = f(x[i]...) for whole packets f; no row overlaps y.
template <class A, class F, class... X>
inline void combine(A* y, Index count, F&& f, const X*... x) {
  using P = Packet<A>;
  Index i = 0;
  for (; i + kLanes<P> <= count; i += kLanes<P>) store(y + i, f(load<A, P>(x + i)...));
  if (i == count) return;
  const Index last = count - kLanes<P>;
  if (i > 0) {  // recompute the last whole packet: the same bits
    store(y + last, f(load<A, P>(x + last)...));
  } else {
    store_partial(y, f(load_partial<P>(x, count, A(0))...), count);
  }
}

/// y[i] = f(y[i], x[i]...) for whole packets f; no row overlaps y.
template <class A, class F, class... X>
inline void update(A* y, Index count, F&& f, const X*... x) {
  using P = Packet<A>;
  Index i = 0;
  for (; i + kLanes<P> <= count; i += kLanes<P>) {
    store(y + i, f(load<A, P>(y + i), load<A, P>(x + i)...));
  }
  if (i == count) return;
  const Index tail = count - i;
  if (i > 0) {  // the last whole packet, whose first lanes are done
    using namespace Eigen::internal;
    const P before = pcmp_lt(plset<P>(A(0)), pset1<P>(static_cast<A>(kLanes<P> - tail)));
    const Index last = count - kLanes<P>;
    const P done = load<A, P>(y + last);
    store(y + last, pselect(before, done, f(done, load<A, P>(x + last)...)));
  } else {
    store_partial(y, f(load_partial<P>(y, tail, A(0)), load_partial<P>(x, tail, A(0))...), tail);
  }
}

/// y += factor * x, with one multiply-add per element.
template <class A>
inline void add_scaled(A factor, const A* x, A* y, Index count) {
  const Packet<A> f = Eigen::internal::pset1<Packet<A>>(factor);
  update(
      y, count, [f](auto sum, auto p) { return multiply_add(f, p, sum); }, x);
}

/// y[j] += x[0, j] + ... + x[rows - 1, j], row by row, for rows `stride` numbers apart.
template <class A>
inline void add_rows_to(const A* x, Index stride, Index rows, A* y, Index count) {
  for_each_panel<A, 4>(count, [&]<class P, int kVectors>(Index j) {
    P sums[kVectors];
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[v] = load<A, P>(y + j + v * kLanes<P>);
    for (Index r = 0; r < rows; ++r) {
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sums[v] = Eigen::internal::padd(sums[v], load<A, P>(x + r * stride + j + v * kLanes<P>));
      }
    }
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) store(y + j + v * kLanes<P>, sums[v]);
  });
}

/// y += x.
template <class A>
inline void add_to(const A* x, A* y, Index count) {
  add_rows_to(x, Index{0}, Index{1}, y, count);
}

/// y = factor * x.
template <class A>
inline void scale_to(A factor, const A* x, A* y, Index count) {
  transform(x, y, count, [factor](auto p) {
    return Eigen::internal::pmul(Eigen::internal::pset1<decltype(p)>(factor), p);
  });
}

/// x *= factor.
template <class A>
inline void scale(A factor, A* x, Index count) {
  using P = Packet<A>;
  const P f = Eigen::internal::pset1<P>(factor);
  Index i = 0;
  for (; i + kLanes<P> <= count; i += kLanes<P>) {
    store(x + i, Eigen::internal::pmul(f, load<A, P>(x + i)));
  }
  for (; i < count; ++i) x[i] *= factor;
}

/// x . y; no term is rounded more than `count` times.
template <class A>
inline A dot(const A* x, const A* y, Index count) {
  using P = Packet<A>;
  P sum = Eigen::internal::pset1<P>(A(0));
  Index i = 0;
  for (; i + kLanes<P> <= count; i += kLanes<P>) {
    sum = multiply_add(load<A, P>(x + i), load<A, P>(y + i), sum);
  }
  if (i < count) {
    const Index tail = count - i;
    sum = i > 0 ? multiply_add(load_tail<P>(x + count, tail, A(0)),
                               load_tail<P>(y + count, tail, A(0)), sum)
                : multiply_add(load_partial<P>(x, tail, A(0)), load_partial<P>(y, tail, A(0)), sum);
  }
  return Eigen::internal::predux(sum);
}

/// x[0] + ... + x[count - 1].
template <class A>
inline A sum(const A* x, Index count) {
  using P = Packet<A>;
  P sum = Eigen::internal::pset1<P>(A(0));
  for_each_packet(x, count, A(0), [&sum](P p) { sum = Eigen::internal::padd(sum, p); });
  return Eigen::internal::predux(sum);
}

/// True if all elements are 0.
template <class T>
inline bool is_zero(const T* x, Index count, Index stride = 1) {
  for (Index j = 0; j < count; ++j) {
    if (x[j * stride] != T(0)) return false;
  }
  return true;
}

/// The largest element; -infinity for an empty row.
template <class A>
inline A maximum(const A* x, Index count) {
  using P = Packet<A>;
  constexpr A kLowest = -std::numeric_limits<A>::infinity();
  P largest = Eigen::internal::pset1<P>(kLowest);
  for_each_packet(x, count, kLowest,
                  [&largest](P p) { largest = Eigen::internal::pmax(largest, p); });
  return Eigen::internal::predux_max(largest);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
