// A unit of the library that is compiled with flags of its own: MHLA_UNIT is its function.

#include "unit.hpp"

#include <mhla/mhla.hpp>

void MHLA_UNIT(const float* q, const float* k, const float* v, float* out, float* dv) {
  using mhla::bnhd;
  constexpr mhla::Shape kShape{1, kTokens, 1, kWidth};
  const auto in = mhla::inputs(q, k, v, kShape);
  const mhla::ContiguousBlocks blocks{8};
  const auto mixing = mhla::uniform_causal<float>(kTokens / 8);
  mhla::ThreadPool pool(2);
  const mhla::Call call{.executor = pool};
  mhla::causal(in, blocks, mixing, mhla::Operator<>(), bnhd(out, kShape), call);
  mhla::causal_gradient(in, blocks, mixing, mhla::Operator<>(), bnhd(v, kShape),
                        {.v = bnhd(dv, kShape)}, {}, call);
}
