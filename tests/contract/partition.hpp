#pragma once

/// \file
/// The laws of a Partition, for checks of the library's and of users' partitions.

#include <gtest/gtest.h>

#include <vector>

#include "mhla/policy/partition.hpp"

namespace mhla::test {

/// Returns the tokens of block b in the order of their slots.
template <Partition P>
std::vector<Index> tokens_of(const P& blocks, Index b) {
  std::vector<Index> tokens;
  for (Index r = 0; r < blocks.runs(b); ++r) {
    const Run run = blocks.run(b, r);
    for (Index i = 0; i < run.length; ++i) tokens.push_back(run.begin + i);
  }
  return tokens;
}

/// Every token lies in exactly one block, and sizes are those of the runs, also for copies.
template <Partition P>
void expect_partition_laws(const P& original) {
  const P blocks = original;
  ASSERT_EQ(blocks.tokens(), original.tokens());
  ASSERT_EQ(blocks.blocks(), original.blocks());
  std::vector<int> covered(static_cast<std::size_t>(blocks.tokens()), 0);
  for (Index b = 0; b < blocks.blocks(); ++b) {
    for (Index r = 0; r < blocks.runs(b); ++r) {
      ASSERT_GE(blocks.run(b, r).length, 0) << "block " << b;
    }
    const std::vector<Index> tokens = tokens_of(blocks, b);
    ASSERT_EQ(tokens, tokens_of(original, b)) << "block " << b;
    ASSERT_EQ(blocks.block_size(b), std::ssize(tokens)) << "block " << b;
    for (const Index token : tokens) {
      ASSERT_TRUE(token >= 0 && token < blocks.tokens()) << token << " in block " << b;
      ++covered[static_cast<std::size_t>(token)];
    }
  }
  for (const int times : covered) ASSERT_EQ(times, 1);
}

}  // namespace mhla::test
