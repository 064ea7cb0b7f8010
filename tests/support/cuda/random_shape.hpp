#pragma once

/// \file
/// Random sizes and options of a call, for tests in the emulator and on a device.

#include <algorithm>
#include <cmath>

#include "support/cuda/random_call.hpp"

namespace cuda_test {

/// Sizes of a grid and of its blocks, of one, two or three axes.
struct RandomGrid {
  mhla::GridShape tokens = 1, block = 1;

  /// \param whole  true if all blocks have one size
  RandomGrid(Random& random, int most_tokens, int axes, bool whole) {
    const int most = static_cast<int>(std::pow(most_tokens, 1.0 / axes));
    for (auto axis = static_cast<std::size_t>(3 - axes); axis < 3; ++axis) {
      const mhla::Index n = random.integer(1, most);
      const mhla::Index w = random.chance(0.2) ? 1 : random.integer(1, n);
      block.sizes[axis] = w;
      tokens.sizes[axis] = whole ? n / w * w : n;
    }
  }
};

/// Maps whose denominators are not near 0, or any.
inline mhla::cuda::FeatureMap random_map(Random& random, bool positive) {
  using mhla::cuda::FeatureMap;
  const FeatureMap maps[] = {FeatureMap::relu(), FeatureMap::relu(0.5f), FeatureMap::elu_plus_one(),
                             FeatureMap::identity()};
  return maps[random.integer(0, positive ? 2 : 3)];
}

/// A problem that all forms and gradients on a device take.
/// \param rotates  true if features may rotate
inline CallShape random_shape(Random& random, int most_tokens, bool rotates) {
  using mhla::cuda::Denominator, mhla::cuda::Matrices, mhla::cuda::Precision;
  const auto integer = [&](int low, int high) {
    return static_cast<int>(random.integer(low, high));
  };
  CallShape shape{.batch = integer(1, 2), .heads = integer(1, 3), .causal = random.chance(0.4)};
  shape.layout = integer(0, 2);
  shape.rotary = random.chance(0.2) && rotates;
  const Denominator denominators[] = {Denominator::kNone, Denominator::kKeySum,
                                      Denominator::kCrossQuery};
  const int last = shape.causal ? (shape.rotary ? 0 : 1) : 2;
  shape.op.denominator = denominators[integer(0, last)];
  const bool cross_query = shape.op.denominator == Denominator::kCrossQuery;

  const auto grid = [&] {
    return RandomGrid(random, most_tokens, shape.causal ? 1 : integer(1, 3), cross_query);
  };
  const RandomGrid queries = grid();
  shape.tokens = queries.tokens, shape.block = queries.block;
  const bool other_keys = !shape.causal && !cross_query && random.chance(0.25);
  const RandomGrid keys = other_keys ? grid() : queries;
  shape.key_tokens = keys.tokens, shape.key_block = keys.block;
  if (!cross_query && random.chance(0.2)) {
    shape.prefix = integer(1, 20);
    shape.key_prefix = other_keys ? integer(0, 20) : shape.prefix;
  }

  shape.normed = random.chance(0.2);
  shape.gated = shape.normed && random.chance(0.5);
  const bool positive = shape.normed || shape.op.denominator != Denominator::kNone;
  shape.op.query_map = random_map(random, positive);
  shape.op.key_map = random_map(random, positive);
  shape.own_maps = random.chance(0.1);
  shape.op.eps = cross_query || random.chance(0.2) ? 1e-3f : 0;
  shape.op.scale = random.chance(0.3) ? 0.125f : 1;
  shape.op.summaries = random.chance(0.3) ? Precision::kPair : Precision::kSingle;
  const Matrices matrices[] = {Matrices::kShared, Matrices::kPerHead, Matrices::kPerItemAndHead};
  shape.op.matrices = matrices[integer(0, 2)];
  if (shape.causal && shape.prefix == 0 && !shape.rotary && random.chance(0.2)) {
    shape.op.decay_terms = integer(1, 4);
    shape.op.matrices = matrices[integer(0, 1)];
  } else if (!cross_query && !other_keys && random.chance(0.2)) {
    const auto blocks = PrefixedGrid(shape.prefix, shape.tokens, shape.block).blocks();
    shape.pattern =
        mhla::Pattern(blocks, blocks, random.integer(0, blocks), random.integer(0, blocks));
  }
  return shape;
}

}  // namespace cuda_test
