#pragma once

/// \file
/// Blocks and mixing matrix of a shape, and the weights that MHLA's definition gives them.

#include <vector>

#include "mhla/attention/operator.hpp"
#include "mhla/policy/locality.hpp"
#include "mhla/policy/mixing_constraints.hpp"
#include "support/definition.hpp"
#include "support/shapes.hpp"

namespace mhla::bench {

/// Calls f(blocks) with the partition of a shape.
template <class F>
void with_blocks(const Shape& shape, F&& f) {
  if (shape.contiguous()) {
    f(Contiguous(shape.tokens(), shape.block_length()));
  } else {
    f(Grid(shape.grid, shape.block));
  }
}

/// The initial mixing matrix of a shape.
template <Accumulator A>
MixingMatrix<A> initial_mixing(const Shape& shape) {
  return locality<A>(Grid(shape.grid, shape.block).block_grid());
}

/// A banded matrix: every query block reads the kGrowthBand blocks around it with equal
/// coefficients.
template <Accumulator A>
MixingMatrix<A> band_mixing(Index blocks) {
  auto m =
      MixingMatrix<A>::banded(blocks, blocks, kGrowthBand / 2, kGrowthBand - kGrowthBand / 2 - 1);
  m.view().for_each([](A& c) { c = 1; });
  normalize_rows(m);
  return m;
}

/// The language model's operator; its feature maps and rotary embedding are applied beforehand.
inline auto language_operator(Index width) {
  return Operator{Identity{}, Identity{}, NoNormalizer{},
                  1 / std::sqrt(static_cast<double>(width))};
}

/// The block of every token.   // [N]
template <Partition P>
std::vector<Index> blocks_of_tokens(const P& blocks) {
  std::vector<Index> block_of(static_cast<std::size_t>(blocks.tokens()));
  for (Index b = 0; b < blocks.blocks(); ++b) {
    for (Index r = 0; r < blocks.runs(b); ++r) {
      const Run run = blocks.run(b, r);
      std::fill_n(block_of.begin() + run.begin, run.length, b);
    }
  }
  return block_of;
}

/// Weights of the bidirectional form with Operator{}. Roundings: W of a summary, M of mixing, D of
/// a score, 4 of the quotient and the normaliser, 2 of the feature maps.
template <Scalar T, Partition P>
auto bidirectional_weights(const P& blocks, const MixingMatrix<accumulator_t<T>>& mixing) {
  return [blocks, block_of = blocks_of_tokens(blocks), &mixing](const Inputs<T>& in, Index t) {
    const Index i = block_of[static_cast<std::size_t>(t)];
    Weights w = weights_of_row(
        in, t, blocks, [&](Index b) { return mixing(i, b); }, Operator{},
        static_cast<double>(largest_block(blocks) + mixing.cols() + in.q.cols + 6));
    if constexpr (kMatrixUnit && std::same_as<T, Eigen::bfloat16>) {
      for (double& error : w.error) error += 0x1p-13;  // factors have 16 bits: amx/unit.hpp
    }
    return w;
  };
}

/// Weights of the causal form with language_operator. Roundings: W of a summary, W of the keys in
/// the token's block, m of mixing, D of a score, and one of the scale.
/// \param coefficient  function: (i, b) -> m_ib
/// \param m            roundings of mixing
template <Scalar T, class Coefficient>
auto causal_weights(const Contiguous& blocks, const Coefficient& coefficient, Index m) {
  return [length = blocks.block_length(), coefficient, m](const Inputs<T>& in, Index t) {
    return weights_of_row(
        in, t, Contiguous(t + 1, length), [&](Index b) { return coefficient(t / length, b); },
        language_operator(in.q.cols), static_cast<double>(2 * length + m + in.q.cols + 6));
  };
}
template <Scalar T>
auto causal_weights(const Contiguous& blocks, const MixingMatrix<accumulator_t<T>>& mixing) {
  return causal_weights<T>(
      blocks, [&mixing](Index i, Index b) { return mixing(i, b); }, mixing.cols());
}

/// Weights of linear attention with Operator{}.
/// \param m  roundings besides N over the tokens and D of a score
inline auto linear_weights(bool causal, Index m) {
  return [=]<Scalar T>(const Inputs<T>& in, Index t) {
    const Index keys = causal ? t + 1 : in.k.rows;
    return weights_of_row(in, t, Contiguous(keys, keys), kAlike, Operator{},
                          static_cast<double>(in.k.rows + in.q.cols + m));
  };
}

}  // namespace mhla::bench
