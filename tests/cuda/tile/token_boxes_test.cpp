#include "mhla/cuda/tile/token_boxes.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/random.hpp"

namespace mhla::cuda {
namespace {

/// Strides of [B,N,H,D] or [B,H,N,D] tensors of 16-bit numbers, in bytes.
ConstTokenTensor tensor_of(bool tokens_first, std::int64_t n, std::int64_t h, std::int64_t d,
                           std::int64_t gap = 0) {
  static unsigned char memory[16];
  const std::int64_t row = 2 * d + gap;
  if (tokens_first) return {memory, n * h * row, row, h * row};
  return {memory, n * h * row, n * row, row};
}

/// Returns the bytes from the base to row `row` of the box that begins at `at`, or -1 outside the
/// tensor, as the copy engine computes them.
std::int64_t row_of(const TensorBox& box, const BoxOrigin& at, std::int32_t row) {
  std::int64_t offset = 2 * std::int64_t{at.x[0]};
  for (int i = 1; i < 5; ++i) {
    const auto size = static_cast<std::int32_t>(box.box[i]);
    const std::int64_t x = at.x[i] + row % size;
    row /= size;
    if (x < 0 || x >= static_cast<std::int64_t>(box.extent[i])) return -1;
    offset += x * static_cast<std::int64_t>(box.stride[i - 1]);
  }
  return offset;
}

/// Expects that boxes contain every slot of every block of every head, and that the driver accepts
/// the boxes.
void expect_tiles(const TokenBlocks& blocks, const ConstTokenTensor& tensor, std::int32_t width,
                  std::int32_t heads, std::int32_t batch, std::int32_t most_rows) {
  TokenBoxes boxes;
  TensorBox box;
  ASSERT_TRUE(TokenBoxes::find(blocks, tensor, width, heads, batch, most_rows, boxes, box));
  ASSERT_LE(boxes.rows(), most_rows);
  ASSERT_EQ(boxes.rows() * boxes.count(), blocks.slots());
  ASSERT_EQ(box.box[0], static_cast<std::uint32_t>(box_columns(width)));
  ASSERT_EQ(box.bytes(), static_cast<std::uint32_t>(boxes.rows()) * 2 * box.box[0]);
  ASSERT_EQ(box.base, tensor.data);
  for (int i = 0; i < 5; ++i) {
    ASSERT_GE(box.box[i], 1u);
    ASSERT_LE(box.box[i], 256u);
    ASSERT_GE(box.extent[i], 1u);
    if (i < 4) {
      ASSERT_TRUE(detail::is_box_stride(static_cast<std::int64_t>(box.stride[i]))) << i;
    }
  }
  for (std::int32_t pair = 0; pair < heads * batch; ++pair) {
    const BatchHead head = batch_head(pair, heads);
    for (std::int32_t b = 0; b < blocks.blocks(); ++b) {
      const BlockOrigin at = blocks.origin(b);
      for (std::int32_t slot = 0; slot < blocks.slots(); ++slot) {
        const std::int32_t channel = slot % 2 * (width - box_columns(width));
        const std::int32_t token = blocks.token(at, slot);
        const std::int64_t expected =
            token < 0 ? -1
                      : tensor.head(head) - tensor.data + token * tensor.token_stride + 2 * channel;
        const BoxOrigin origin = boxes.origin(at, head, slot / boxes.rows(), channel);
        ASSERT_EQ(row_of(box, origin, slot % boxes.rows()), expected)
            << "pair " << pair << ", block " << b << ", slot " << slot;
      }
    }
  }
}

bool can(const TokenBlocks& blocks, const ConstTokenTensor& tensor, std::int32_t heads,
         std::int32_t batch, std::int32_t most_rows = 256) {
  TokenBoxes boxes;
  TensorBox box;
  return TokenBoxes::find(blocks, tensor, 64, heads, batch, most_rows, boxes, box);
}

TokenBlocks sequence(std::int32_t tokens, std::int32_t length) {
  return {1, 1, tokens, 1, 1, length};
}

TEST(TokenBoxes, TileBlocksOfAllGrids) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    const auto number = [&](Index low, Index high) {
      return static_cast<std::int32_t>(rng.integer(low, high));
    };
    const std::int32_t axes = number(1, 3);
    const std::int32_t frames = axes > 2 ? number(1, 5) : 1, rows = axes > 1 ? number(1, 9) : 1;
    // Ranks may have fewer frames than a block.
    const TokenBlocks blocks(frames, rows, number(1, 40), number(1, frames + 2),
                             number(1, rows + 2), number(1, 12));
    const std::int32_t heads = number(1, 3), batch = number(1, 3);
    const std::int32_t width = rng.chance(0.2) ? 72 : 64 * number(1, 4);
    expect_tiles(blocks,
                 tensor_of(rng.chance(0.5), blocks.tokens(), heads, width, 16 * number(0, 2)),
                 width, heads, batch, 256);
  }
}

TEST(TokenBoxes, CutLargeBlocksInTheOrderOfSlots) {
  expect_tiles(sequence(2500, 1000), tensor_of(true, 2500, 2, 64), 64, 2, 1, 256);
  expect_tiles({1, 60, 45, 1, 40, 30}, tensor_of(false, 2700, 2, 64), 64, 2, 1, 256);
  expect_tiles({9, 12, 11, 8, 6, 10}, tensor_of(true, 9 * 12 * 11, 2, 64), 64, 2, 2, 128);
  expect_tiles({1, 6, 534, 1, 2, 267}, tensor_of(true, 6 * 534, 1, 64), 64, 1, 1, 256);  // 3 x 89
  expect_tiles({1, 5, 600, 1, 3, 512}, tensor_of(true, 3000, 1, 64), 64, 1, 1, 256);
}

TEST(TokenBoxes, AreAsLargeAsCanBe) {
  const auto rows = [](const TokenBlocks& blocks, std::int32_t most) {
    TokenBoxes boxes;
    TensorBox box;
    const bool found = TokenBoxes::find(blocks, tensor_of(true, blocks.tokens(), 1, 64), 64, 1, 1,
                                        most, boxes, box);
    return found ? boxes.rows() : -1;
  };
  EXPECT_EQ(rows({21, 30, 50, 7, 6, 5}, 256), 210);
  EXPECT_EQ(rows({21, 30, 50, 7, 6, 5}, 128), 30);
  EXPECT_EQ(rows(sequence(3000, 1000), 256), 250);
  EXPECT_EQ(rows(sequence(3000, 256), 256), 256);
  EXPECT_EQ(rows(sequence(3000, 64), 128), 64);
  EXPECT_EQ(rows(sequence(3000, 1), 128), 1);
  EXPECT_EQ(rows(sequence(3000, 257), 256), -1);   // a prime
  EXPECT_EQ(rows({1, 74, 7, 1, 37, 7}, 256), -1);  // lines of 7, one by one
}

TEST(TokenBoxes, HeadsMayShareRows) {
  ConstTokenTensor tensor = tensor_of(false, 100, 1, 64);
  tensor.head_stride = 0;
  expect_tiles(sequence(100, 32), tensor, 64, 5, 2, 256);
  tensor.batch_stride = 0;
  expect_tiles(sequence(100, 32), tensor, 64, 5, 2, 256);
  expect_tiles({4, 5, 5, 2, 2, 5}, tensor, 64, 5, 2, 256);
}

TEST(TokenBoxes, HeadsOfVideosGoWhereTheStridesAllow) {
  const TokenBlocks video(4, 5, 6, 2, 5, 3);
  expect_tiles(video, tensor_of(true, 120, 3, 128), 128, 3, 2, 256);
  expect_tiles(video, tensor_of(true, 120, 3, 128, 32), 128, 3, 2, 256);
  expect_tiles(video, tensor_of(false, 120, 3, 128), 128, 3, 2, 256);
  ConstTokenTensor gaps = tensor_of(false, 120, 3, 64);
  gaps.batch_stride += 64;
  EXPECT_FALSE(can(video, gaps, 3, 2));
  EXPECT_TRUE(can(video, gaps, 3, 1));
  EXPECT_TRUE(can(sequence(120, 30), gaps, 3, 2));
}

TEST(TokenBoxes, RefuseStridesOfNoTensorMap) {
  const TokenBlocks blocks = sequence(100, 10);
  const ConstTokenTensor good = tensor_of(true, 100, 2, 64);
  ASSERT_TRUE(can(blocks, good, 2, 2));
  for (const std::int64_t bad : {-128l, 8l, 136l, 1l << 40}) {
    ConstTokenTensor token = good, head = good, batch = good;
    token.token_stride = bad;
    head.head_stride = bad;
    batch.batch_stride = bad;
    EXPECT_FALSE(can(blocks, token, 2, 2)) << bad;
    EXPECT_FALSE(can(blocks, head, 2, 2)) << bad;
    EXPECT_FALSE(can(blocks, batch, 2, 2)) << bad;
    EXPECT_TRUE(can(blocks, head, 1, 2)) << "a head alone needs no stride";
    EXPECT_TRUE(can(blocks, batch, 2, 1)) << "a batch item alone needs no stride";
    EXPECT_TRUE(can(sequence(1, 1), token, 2, 2)) << "a token alone needs no stride";
  }
  ConstTokenTensor still = good;
  still.token_stride = 0;
  EXPECT_FALSE(can(blocks, still, 2, 2));
}

}  // namespace
}  // namespace mhla::cuda
