#pragma once

/// \file
/// Masks of tokens of random calls.

#include <cmath>
#include <cstdint>

#include "support/cuda/random_call.hpp"

namespace cuda_test {

/// Makes rows of masked tokens NaN.
template <class T>
void spoil_masked(Tensor<T>& x, const Array<unsigned char>& keep) {
  x.each([&](int b, int t, int h, int d) {
    if (keep[b * x.tokens() + t] == 0) x.at(b, t, h, d) = from_double<T>(NAN);
  });
}

/// Masks about a third of the tokens, all queries of block 1, and all keys of item 0 in block 0. In
/// causal forms the first key remains, so that every query reads one. Rows of masked tokens are
/// NaN.
template <class T>
void mask_some(Call<T>& call, int block) {
  Random random(11);
  const auto mask = [&](Array<unsigned char>& keep, const Tensor<T>& x, int first, int items) {
    keep = Array<unsigned char>(std::int64_t{x.batches()} * x.tokens());
    for (std::int64_t i = 0; i < keep.size(); ++i) keep[i] = random.uniform(0, 1) > 0.3 ? 1 : 0;
    for (int b = 0; b < items; ++b) {
      for (int t = first; t < first + block; ++t) keep[b * x.tokens() + t] = 0;
    }
  };
  mask(call.query_keep, call.q, block, call.q.batches());
  mask(call.key_keep, call.k, 0, 1);
  for (int b = 0; call.causal && b < call.k.batches(); ++b) call.key_keep[b * call.k.tokens()] = 1;
  spoil_masked(call.q, call.query_keep);
  spoil_masked(call.k, call.key_keep);
  spoil_masked(call.v, call.key_keep);
}

}  // namespace cuda_test
