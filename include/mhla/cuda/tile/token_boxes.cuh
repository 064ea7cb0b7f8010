#pragma once

/// \file
/// Blocks of tokens as boxes of a five-dimensional tensor, so that tensor copies gather them
/// (ptx/tensor_copy.cuh):
///
///     (channel, column, row, frame or head, batch item)
///
/// With one frame the head is in the fourth dimension. With several frames the head goes where the
/// strides allow it. If heads and batch items are evenly spaced together, it is in the last
/// dimension. Otherwise, if the heads of a token are adjacent, it is in the channels.
///
/// A block with more rows than a stage is cut into equal boxes, along frames first, then rows, then
/// columns. Rows of consecutive boxes are consecutive slots of the block. Slots beyond the tokens
/// are read as zeros.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// Origins of a block's boxes.
class TokenBoxes {
 public:
  /// Fewest rows, or slots of a block, that are worth a copy.
  static constexpr std::int32_t kLeastRows = 16;

  /// Slots per box.
  MHLA_HOST_DEVICE constexpr std::int32_t rows() const { return rows_; }
  /// Boxes per block: box j holds slots j rows().. (j + 1) rows() - 1.
  MHLA_HOST_DEVICE constexpr std::int32_t count() const { return count_; }

  /// First token of box `box` of the block at `at`.
  MHLA_HOST_DEVICE constexpr BlockOrigin first_token(BlockOrigin at, std::int32_t box) const {
    const std::int32_t line = box_columns_.quotient(box);
    const std::int32_t plane = box_rows_.quotient(line);
    return {at.frame + plane * extent_[2], at.row + (line - plane * box_rows_.value()) * extent_[1],
            at.column + (box - line * box_columns_.value()) * extent_[0]};
  }
  /// Origin of a box with that first token, from channel `channel` on.
  MHLA_HOST_DEVICE constexpr BoxOrigin origin(BlockOrigin token, BatchHead pair,
                                              std::int32_t channel) const {
    return {{channel + pair.head * head_channels_, token.column, token.row,
             token.frame + pair.head * head_frames_,
             pair.batch * batch_items_ + pair.head * head_items_}};
  }
  /// Origin of box `box` of the block at `at`, from channel `channel` on.
  MHLA_HOST_DEVICE constexpr BoxOrigin origin(BlockOrigin at, BatchHead pair, std::int32_t box,
                                              std::int32_t channel) const {
    return origin(first_token(at, box), pair, channel);
  }

  /// Finds the largest boxes of at most `most_rows` rows (1 to 256) that tile the blocks, and the
  /// tensor's description for tensor copies. The tensor has `width` channels, of which a box has
  /// box_columns(width). Returns false if no boxes fit: a side of a block may lack a divisor, or
  /// strides may not be positive multiples of 16 below 2^40. Only heads and batch items may have a
  /// stride of 0, and share rows.
  template <class Byte>
  static constexpr bool find(const TokenBlocks& blocks, const BasicTokenTensor<Byte>& tensor,
                             std::int32_t width, std::int32_t heads, std::int32_t batch,
                             std::int32_t most_rows, TokenBoxes& boxes, TensorBox& box);

  /// Cuts the box of a run of `rows` tokens into boxes of `tile` tokens; `last` is the remainder.
  static constexpr void in_tiles(std::int32_t rows, std::int32_t tile, TensorBox& box,
                                 TensorBox& last) {
    last = box;
    box.box[1] = static_cast<std::uint32_t>(tile);
    last.box[1] = static_cast<std::uint32_t>((rows - 1) % tile + 1);
  }

 private:
  /// Returns the largest divisor of n up to `most`.
  static constexpr std::int32_t divisor(std::int32_t n, std::int32_t most) {
    std::int32_t d = n < most ? n : most;
    while (d > 1 && n % d != 0) --d;
    return d;
  }

  constexpr bool cut(const TokenBlocks& blocks, std::int32_t most_rows);
  template <class Byte>
  constexpr bool place(const TokenBlocks& blocks, const BasicTokenTensor<Byte>& tensor,
                       std::int32_t width, std::int32_t heads, std::int32_t batch, TensorBox& box);
  template <class Byte>
  constexpr bool place_heads(const BasicTokenTensor<Byte>& tensor, std::int32_t width,
                             std::int32_t heads, std::int32_t batch, bool frames, TensorBox& box);

  std::int32_t rows_ = 1;
  std::int32_t count_ = 1;
  std::int32_t extent_[3] = {1, 1, 1};  // of a box along columns, rows, frames
  Divisor box_columns_;                 // boxes of a block along columns
  Divisor box_rows_;
  std::int32_t head_channels_ = 0;  // coordinate steps from one head to the next
  std::int32_t head_frames_ = 0;
  std::int32_t head_items_ = 0;
  std::int32_t batch_items_ = 0;  // last coordinate's step per batch item
};

/// Calls visit(block, box) for the boxes of all blocks.
template <class Visit>
MHLA_DEVICE void for_boxes(const TokenBlocks& blocks, const TokenBoxes& boxes, const Visit& visit) {
  MHLA_CUDA_LOOP
  for (std::int32_t block = 0; block < blocks.blocks(); ++block) {
    MHLA_CUDA_LOOP
    for (std::int32_t box = 0; box < boxes.count(); ++box) visit(block, box);
  }
}

// -------------------------------------------------------------------------------------------------

namespace detail {

/// Returns true if tensor copies support a stride of so many bytes.
constexpr bool is_box_stride(std::int64_t bytes) {
  return bytes > 0 && bytes % 16 == 0 && bytes < std::int64_t{1} << 40;
}

/// Returns a stride for the tensor map. An unsupported stride belongs to a dimension of one
/// element, and any valid one serves.
constexpr std::uint64_t box_stride(std::int64_t bytes) {
  return is_box_stride(bytes) ? static_cast<std::uint64_t>(bytes) : 16;
}

}  // namespace detail

/// Computes the sides of a box and the number of boxes per block.
constexpr bool TokenBoxes::cut(const TokenBlocks& blocks, std::int32_t most_rows) {
  const std::int32_t columns = blocks.block_columns();
  const std::int32_t lines = blocks.block_rows();
  extent_[0] = divisor(columns, most_rows);
  extent_[1] = extent_[0] < columns ? 1 : divisor(lines, most_rows / columns);
  const bool whole_lines = extent_[0] == columns && extent_[1] == lines;
  extent_[2] = whole_lines ? divisor(blocks.block_frames(), most_rows / (columns * lines)) : 1;
  rows_ = extent_[0] * extent_[1] * extent_[2];
  count_ = blocks.slots() / rows_;
  box_columns_ = Divisor(columns / extent_[0]);
  box_rows_ = Divisor(lines / extent_[1]);
  return rows_ >= kLeastRows || count_ == 1;
}

/// Chooses the dimensions of heads and batch items.
template <class Byte>
constexpr bool TokenBoxes::place_heads(const BasicTokenTensor<Byte>& tensor, std::int32_t width,
                                       std::int32_t heads, std::int32_t batch, bool frames,
                                       TensorBox& box) {
  const bool many_heads = heads > 1 && tensor.head_stride != 0;
  const bool many_items = batch > 1 && tensor.batch_stride != 0;
  if (many_heads && !detail::is_box_stride(tensor.head_stride)) return false;
  if (many_items && !detail::is_box_stride(tensor.batch_stride)) return false;
  if (many_items) {
    batch_items_ = 1;
    box.extent[4] = static_cast<std::uint64_t>(batch);
    box.stride[3] = static_cast<std::uint64_t>(tensor.batch_stride);
  }
  if (!many_heads) return true;
  if (!frames) {
    head_frames_ = 1;
    box.extent[3] = static_cast<std::uint64_t>(heads);
    box.stride[2] = static_cast<std::uint64_t>(tensor.head_stride);
    return true;
  }
  if (!many_items || tensor.batch_stride == heads * tensor.head_stride) {
    head_items_ = 1;
    batch_items_ *= heads;
    box.extent[4] = static_cast<std::uint64_t>(many_items ? heads * std::int64_t{batch} : heads);
    box.stride[3] = static_cast<std::uint64_t>(tensor.head_stride);
    return true;
  }
  const std::int64_t channels = tensor.head_stride / 2 * (heads - 1) + width;
  if (2 * channels > tensor.token_stride) return false;
  head_channels_ = static_cast<std::int32_t>(tensor.head_stride / 2);
  box.extent[0] = static_cast<std::uint64_t>(channels);
  return true;
}

/// Describes the tensor for tensor copies.
template <class Byte>
constexpr bool TokenBoxes::place(const TokenBlocks& blocks, const BasicTokenTensor<Byte>& tensor,
                                 std::int32_t width, std::int32_t heads, std::int32_t batch,
                                 TensorBox& box) {
  const std::int64_t extents[3] = {blocks.columns(), blocks.rows(), blocks.frames()};
  box.base = const_cast<unsigned char*>(tensor.data);
  box.extent[0] = static_cast<std::uint64_t>(width);
  box.extent[4] = 1;
  box.box[0] = static_cast<std::uint32_t>(box_columns(width));
  box.box[4] = 1;
  std::int64_t stride = tensor.token_stride;
  for (int i = 0; i < 3; ++i) {
    if (extents[i] > 1 && !detail::is_box_stride(stride)) return false;
    box.extent[i + 1] = static_cast<std::uint64_t>(extents[i]);
    box.stride[i] = detail::box_stride(stride);
    box.box[i + 1] = static_cast<std::uint32_t>(extent_[i]);
    stride *= extents[i];
  }
  box.stride[3] = detail::box_stride(stride);
  return place_heads(tensor, width, heads, batch, blocks.frames() > 1 || extent_[2] > 1, box);
}

template <class Byte>
constexpr bool TokenBoxes::find(const TokenBlocks& blocks, const BasicTokenTensor<Byte>& tensor,
                                std::int32_t width, std::int32_t heads, std::int32_t batch,
                                std::int32_t most_rows, TokenBoxes& boxes, TensorBox& box) {
  boxes = TokenBoxes();
  return boxes.cut(blocks, most_rows) && boxes.place(blocks, tensor, width, heads, batch, box);
}

}  // namespace mhla::cuda
