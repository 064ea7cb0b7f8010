#pragma once

/// \file
/// Definitions of the measured forms, for their gradients.

#include "mhla/tokens/strip.hpp"
#include "support/gradient_definition.hpp"
#include "support/mixed.hpp"

namespace mhla::bench {

/// The tokens of every block.
template <Partition P>
std::vector<std::vector<Index>> tokens_of_blocks(const P& blocks) {
  std::vector<std::vector<Index>> tokens(static_cast<std::size_t>(blocks.blocks()));
  const std::vector<Index> block_of = blocks_of_tokens(blocks);
  for (std::size_t t = 0; t < block_of.size(); ++t) {
    tokens[static_cast<std::size_t>(block_of[t])].push_back(static_cast<Index>(t));
  }
  return tokens;
}

/// Sets Relu and KeySum, the choices of Operator{}.
template <Accumulator A>
void use_relu(GradientRule& rule) {
  rule.feature = [](double x) {
    return std::max(x, 0.0) + static_cast<double>(static_cast<A>(Relu{}.eps));
  };
  rule.slope = [](double x) { return x > 0 ? 1.0 : 0.0; };
}

/// Rule of the bidirectional form with Operator{}; refers to `mixing`.
template <Partition P, Accumulator A>
GradientRule bidirectional_rule(const P& blocks, const MixingMatrix<A>& mixing) {
  GradientRule rule;
  rule.blocks = tokens_of_blocks(blocks);
  rule.coefficient = [&mixing](Index i, Index b) { return static_cast<double>(mixing(i, b)); };
  rule.chain = number(largest_block(blocks) + mixing.cols());
  use_relu<A>(rule);
  return rule;
}

/// Rule of the causal form with language_operator(width); refers to `mixing`.
template <Accumulator A>
GradientRule causal_rule(const Contiguous& blocks, const MixingMatrix<A>& mixing, Index width) {
  GradientRule rule;
  rule.blocks = tokens_of_blocks(blocks);
  rule.coefficient = [&mixing](Index i, Index b) { return static_cast<double>(mixing(i, b)); };
  rule.scale = static_cast<double>(static_cast<A>(language_operator(width).scale));
  rule.chain = number(2 * blocks.block_length() + mixing.cols());
  rule.causal = true;
  rule.normalized = false;
  return rule;
}

/// Blocks in which the rule of a form without blocks is evaluated.
inline Contiguous pieces(Index tokens) { return {tokens, std::min<Index>(tokens, 256)}; }

/// Rule of linear attention with Operator{}: one summary of all tokens.
template <Accumulator A = float>
GradientRule linear_rule(Index tokens, bool causal) {
  GradientRule rule;
  rule.blocks = tokens_of_blocks(pieces(tokens));
  rule.coefficient = [](Index, Index) { return 1.0; };
  rule.chain = number(tokens + (causal ? 2 * detail::kStripTokens : 0));
  rule.causal = causal;
  use_relu<A>(rule);
  return rule;
}

/// Rule of softmax attention.
template <Accumulator A = float>
GradientRule softmax_rule(Index tokens, Index width) {
  GradientRule rule;
  rule.blocks = tokens_of_blocks(pieces(tokens));
  rule.coefficient = [](Index, Index) { return 1.0; };
  rule.scale = static_cast<double>(static_cast<A>(1 / std::sqrt(number(width))));
  rule.softmax = true;
  return rule;
}

}  // namespace mhla::bench
