#pragma once

/// \file
/// Calls of forms with random tensors, for tests.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "mhla/layer/rotary_table.hpp"
#include "support/cuda/own_maps.hpp"
#include "support/cuda/reference.hpp"
#include "support/random.hpp"

namespace cuda_test {

/// Sizes and options of a call.
struct CallShape {
  int batch = 1, heads = 1;
  mhla::GridShape tokens = 64, block = 16;
  mhla::GridShape key_tokens = tokens, key_block = block;
  mhla::cuda::Operator op{};
  bool causal = false;
  int layout = 0;                       ///< by Layout::any
  bool rotary = false;                  ///< queries and keys have separate tables
  bool normed = false, gated = false;   ///< of outputs
  int prefix = 0, key_prefix = prefix;  ///< tokens before `tokens`
  mhla::Pattern pattern{};              ///< of mixing matrices; without rows all coefficients
  bool own_maps = false;                ///< Softplus of queries, kSquaredRelu of keys
};

/// A map of one's own in double, as the CPU library computes it.
template <class Map>
ExactMap exact(const Map& map) {
  const mhla::Elementwise of_cpu([map](auto x) { return map.function(x); },
                                 [map](auto x) { return map.derivative(x); });
  static_assert(mhla::DifferentiableFeatureMap<decltype(of_cpu), double>);
  return {[of_cpu](double x) {
            double y = 0;
            of_cpu(&x, &y, mhla::Index{1});
            return y;
          },
          [of_cpu](double x) {
            const double y = 0, dy = 1;
            double dx = 0;
            of_cpu.adjoint(&x, &y, &dy, &dx, mhla::Index{1});
            return dx;
          }};
}
/// No map of one's own: that of the operator.
inline ExactMap exact(const mhla::cuda::FeatureMap&) { return {}; }

/// Angles of tokens in raster order, or of a causal sequence from position `first` on. The tokens
/// of a prefix have those of a sequence.
inline Array<float> rotary_angles(const CallShape& shape, const mhla::GridShape& tokens,
                                  mhla::Index D, int first, int prefix = 0) {
  using Table = mhla::RotaryTable<float>;
  const auto sequence = [&](mhla::Index positions, int from) {
    return Table::sequence(positions, D, {.first = from, .pairs = mhla::RotaryPairs::kInterleaved});
  };
  const auto before = sequence(prefix, first + 3);
  const auto table = shape.causal ? sequence(tokens[2], first) : Table::grid(tokens, D, 100);
  Array<float> numbers((prefix + table.positions()) * D);
  std::copy_n(table.row(0), table.positions() * D,
              std::copy_n(before.row(0), prefix * D, numbers.data()));
  return numbers;
}

/// Random call with numbers of both signs in q, k and v, and nonnegative mixing coefficients. With
/// `signed_weights` these also have both signs. Values of normalised outputs are positive, so that
/// no norm is near 0.
template <class T, int D, int E>
Call<T> random_call(const CallShape& shape, std::uint64_t seed, bool signed_weights = false) {
  const auto count = [](const mhla::GridShape& grid) {
    return static_cast<int>(grid[0] * grid[1] * grid[2]);
  };
  const int nq = shape.prefix + count(shape.tokens);
  const int nk = shape.key_prefix + count(shape.key_tokens);
  const auto tensor = [&](int n, int d) {
    return Tensor<T>(shape.batch, n, shape.heads, d, Layout::any(shape.layout, n, shape.heads, d));
  };
  const CallOptions options{shape.tokens, shape.block,  shape.key_tokens, shape.key_block, shape.op,
                            shape.causal, shape.prefix, shape.key_prefix, shape.pattern};
  Call<T> call{options,       tensor(nq, D),
               tensor(nk, D), tensor(nk, E),
               tensor(nq, E), Array<float>(options.matrix_numbers(shape.batch, shape.heads))};
  Random random(seed);
  const auto number = [&random] { return random.uniform(-1, 1); };
  call.q.fill(number);
  call.k.fill(number);
  call.v.fill(number);
  call.each_coefficient(
      [&](float& m, int) { m = static_cast<float>(random.uniform(signed_weights ? -1 : 0, 1)); });
  if (shape.pattern.rows() > 0) {
    call.bits = PatternMemory(shape.pattern);
    std::int64_t place = 0;
    call.each_coefficient([&](float& m, int) {
      const std::int64_t i = place++ % call.coefficients();
      if (!call.has(i / call.columns(), i % call.columns())) m = 0;
    });
  }
  if (shape.own_maps) {
    call.own_query_map = exact(Softplus{});
    call.own_key_map = exact(kSquaredRelu);
  }
  if (shape.rotary) {
    call.query_angles = rotary_angles(shape, shape.tokens, D, 0, shape.prefix);
    call.key_angles = rotary_angles(shape, shape.key_tokens, D, 20, shape.key_prefix);
  }
  if (shape.normed) {
    call.v.fill([&random] { return random.uniform(0.25, 1); });
    call.gain = Array<float>(E);
    for (int e = 0; e < E; ++e) call.gain[e] = static_cast<float>(random.uniform(-2, 2));
  }
  if (shape.gated) {
    const Layout layout = Layout::any((shape.layout + 1) % 3, nq, shape.heads, E);
    call.gate = Tensor<T>(shape.batch, nq, shape.heads, E, layout);
    call.gate.fill([&random] { return random.uniform(-4, 4); });
  }
  return call;
}

}  // namespace cuda_test
