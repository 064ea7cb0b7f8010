#pragma once

/// \file
/// A problem given to the bidirectional form, and its longest chain of roundings.

#include <gtest/gtest.h>

#include <type_traits>

#include "mhla/attention/bidirectional.hpp"
#include "support/outputs.hpp"
#include "support/problem.hpp"

namespace mhla::test {

/// Longest chain of roundings: the tokens of a block, the blocks, the features, eps.
inline constexpr auto kChain = [](const auto& p) {
  return largest_block(p.key_blocks) + p.key_blocks.blocks() + p.query_map.features(p.q.cols()) + 1;
};

inline constexpr auto kRunWith = [](const auto& p, auto&& executor) {
  using T = typename std::remove_cvref_t<decltype(p.q)>::Scalar;
  Matrix<T> out = unwritten<T>(p.q.rows(), p.v.cols());
  p.with_operator([&](const auto& op) {
    const auto in = p.inputs();
    GuardedWorkspace workspace(
        bidirectional_workspace_bytes(in, p.query_blocks, p.key_blocks, op, executor));
    bidirectional(in, p.query_blocks, p.key_blocks, p.mixing(), op, out, workspace.get(), executor);
    EXPECT_TRUE(workspace.intact()) << p.text();
  });
  return out;
};
inline constexpr auto kRun = [](const auto& p) { return kRunWith(p, Sequential{}); };

}  // namespace mhla::test
