#include "mhla/cuda/launch/map_cache.cuh"

#include <gtest/gtest.h>

namespace {

using mhla::cuda::MapCache;
using mhla::cuda::TensorBox;
using mhla::cuda::TensorMap;

TEST(MapCache, EncodesWhatHasChangedAlone) {
  unsigned char memory[3] = {};
  const auto box = [&](int at) {
    return TensorBox{&memory[at], {64, 1, 1, 1, 9}, {16, 16, 16, 128}, {64, 1, 1, 1, 8}};
  };
  std::uint64_t encoded = 0;
  const auto encode = [&](const TensorBox&) { return TensorMap{{++encoded}}; };
  MapCache cache;
  const auto map = [&](const TensorBox& b) { return cache.map(b, encode).opaque[0]; };
  EXPECT_EQ(map(box(0)), 1u);
  EXPECT_EQ(map(box(0)), 2u);  // the same box for another kernel
  cache.begin();
  EXPECT_EQ(map(box(0)), 1u);
  EXPECT_EQ(map(box(1)), 3u);
  cache.begin();
  TensorBox longer = box(0);
  longer.extent[4] = 10;
  EXPECT_EQ(map(longer), 4u);
  EXPECT_EQ(map(box(1)), 3u);
}

}  // namespace
