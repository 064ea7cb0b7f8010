#pragma once

/// \file
/// Calls of forms with random tensors, for tests.

#include <cmath>
#include <cstdint>
#include <utility>

#include "support/cuda/reference.hpp"
#include "support/random.hpp"

namespace cuda_test {

/// Sizes and choices of a call.
struct CallShape {
  int batch = 1, heads = 1;
  mhla::GridShape tokens = 64, block = 16;
  mhla::GridShape key_tokens = tokens, key_block = block;
  mhla::cuda::Operator op{};
  bool causal = false;
  int layout = 0;  ///< of Layout::any
};

/// Numbers of both signs in q, k and v, nonnegative mixing coefficients; `signed_weights` makes
/// them, too, of both signs.
template <class T, int D, int E>
Call<T> random_call(const CallShape& shape, std::uint64_t seed, bool signed_weights = false) {
  const auto count = [](const mhla::GridShape& grid) {
    return static_cast<int>(grid[0] * grid[1] * grid[2]);
  };
  const int nq = count(shape.tokens), nk = count(shape.key_tokens);
  const auto tensor = [&](int n, int d) {
    return Tensor<T>(shape.batch, n, shape.heads, d, Layout::any(shape.layout, n, shape.heads, d));
  };
  const auto mq = mhla::Grid(shape.tokens, shape.block).blocks();
  const auto mk = mhla::Grid(shape.key_tokens, shape.key_block).blocks();
  Call<T> call{
      {shape.tokens, shape.block, shape.key_tokens, shape.key_block, shape.op, shape.causal},
      tensor(nq, D),
      tensor(nk, D),
      tensor(nk, E),
      tensor(nq, E),
      Array<float>(mq * mk)};
  Random random(seed);
  const auto number = [&random] { return random.uniform(-1, 1); };
  call.q.fill(number);
  call.k.fill(number);
  call.v.fill(number);
  for (std::int64_t i = 0; i < call.mixing.size(); ++i) {
    call.mixing[i] = static_cast<float>(random.uniform(signed_weights ? -1 : 0, 1));
  }
  return call;
}

}  // namespace cuda_test
