#pragma once

/// \file
/// Patches of images and videos as rows of tokens, and images from such rows; with the adjoints.
///
///     patches       y[n, ((c*pf + i)*py + j)*px + k] = p
///     unpatchify    p = tokens[n, ((i*py + j)*px + k)*C + c]
///     where         p = image[c, f*pf + i, r*py + j, s*px + k]
///
/// for channel c of C, number (i, j, k) of a patch of pf x py x px, and token n of the N = F/pf *
/// Y/py * X/px patches (f, r, s) of an image in raster order. As in PyTorch, images are
/// channel-first: image b of B is rows [b*C*F*Y, (b+1)*C*F*Y) of a matrix with X columns, where
/// row (c*F + f)*Y + r is row r of frame f of channel c. Its tokens are rows [b*N, (b+1)*N).
///
/// Features of `patches` are in the order of a convolution's weight [O, C, pf, py, px], those of
/// `unpatchify` in that of DiT. So a patch embedding, Conv2d or Conv3d with stride = kernel, is
///
///     patches(image, grid, y);
///     dense(y, {weight, bias}, tokens);                weight [O, C*pf*py*px], tokens [B*N, O]
///
/// and its adjoint, where dy is 0 before, or absent with the last call left out:
///
///     dense_adjoint(y, {weight, bias}, dtokens, dy, {dweight, dbias});
///     patches_adjoint(dy, grid, dimage);
///
/// Rows of all views are contiguous (column stride 1) at any row stride; what is written overlaps
/// nothing else. Cost: every number is read and written once.
/// Sources: Dosovitskiy et al., arXiv:2010.11929; Peebles and Xie, arXiv:2212.09748.

#include <algorithm>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Images and their patches: PatchGrid{3, {224, 224}, {16, 16}}.
struct PatchGrid {
  Index channels;   ///< C >= 1
  GridShape image;  ///< {F, Y, X}, multiples of the patch
  GridShape patch;  ///< {pf, py, px}
  Index batch = 1;  ///< B >= 0
};

/// Writes the patches of image [B*C*F*Y, X] into y [B*N, C*pf*py*px].
/// \param executor  splits over tokens
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void patches(const X& image, const PatchGrid& grid, const detail::output_t<X>& y,
             const ExecutorRef& executor = {});
/// Adds the gradient dy of y to dimage [B*C*F*Y, X].
/// \throws shape_error, option_error for anything that does not fit, before dimage is touched.
template <LayerInput X>
void patches_adjoint(const X& dy, const PatchGrid& grid, const detail::output_t<X>& dimage,
                     const ExecutorRef& executor = {});

/// Writes image [B*C*F*Y, X] from tokens [B*N, pf*py*px*C].
/// \param executor  splits over tokens
/// \throws shape_error, option_error for anything that does not fit, before image is touched.
template <LayerInput X>
void unpatchify(const X& tokens, const PatchGrid& grid, const detail::output_t<X>& image,
                const ExecutorRef& executor = {});
/// Adds the gradient dimage of image to dtokens [B*N, pf*py*px*C].
/// \throws shape_error, option_error for anything that does not fit, before dtokens is touched.
template <LayerInput X>
void unpatchify_adjoint(const X& dimage, const PatchGrid& grid, const detail::output_t<X>& dtokens,
                        const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

/// A row of a patch: `length` numbers of a channel, next to each other in the image.
struct PatchRow {
  Index token;
  Index image_row, image_column;
  Index channel, row;  // row i*py + j of the patch
  Index length;
};

/// Where the patches of a checked PatchGrid are.
class PatchLayout {
 public:
  /// \throws shape_error, option_error for a grid that is none.
  PatchLayout(const char* function, const PatchGrid& grid)
      : grid_(checked(function, grid)),
        counts_(grid.image[0] / grid.patch[0], grid.image[1] / grid.patch[1],
                grid.image[2] / grid.patch[2]) {}

  Index tokens() const { return grid_.batch * counts_[0] * counts_[1] * counts_[2]; }
  Index patch_rows() const { return grid_.patch[0] * grid_.patch[1]; }
  Index features() const { return grid_.channels * patch_rows() * grid_.patch[2]; }
  Index image_rows() const {
    return grid_.batch * grid_.channels * grid_.image[0] * grid_.image[1];
  }
  Index image_columns() const { return grid_.image[2]; }
  Index channels() const { return grid_.channels; }

  /// f(PatchRow) for all rows of all patches; the executor splits over tokens.
  template <class F>
  void for_each_row(const ExecutorRef& executor, F&& f) const {
    for_each_layer_strip(tokens(), executor, [&](Index begin, Index count) {
      for (Index token = begin; token < begin + count; ++token) for_each_row_of(token, f);
    });
  }

 private:
  static const PatchGrid& checked(const char* function, const PatchGrid& grid) {
    if (grid.channels < 1) {
      fail_option(function, "grid.channels", "is " + std::to_string(grid.channels), "1 or more");
    }
    if (grid.batch < 0) {
      fail_option(function, "grid.batch", "is " + std::to_string(grid.batch), "0 or more");
    }
    expect_grid(function, "grid.image", grid.image);
    expect_grid(function, "grid.patch", grid.patch);
    for (int axis = 0; axis < 3; ++axis) {
      if (grid.image[axis] % grid.patch[axis] == 0) continue;
      fail_shape(function, "grid.image", "is " + grid_text(grid.image),
                 "multiples of the patch " + grid_text(grid.patch));
    }
    checked_product(function, "grid",
                    {grid.batch, grid.channels, grid.image[0], grid.image[1], grid.image[2]});
    return grid;
  }

  template <class F>
  void for_each_row_of(Index token, F&& f) const {
    const auto& [frames, rows, columns] = counts_.sizes;
    const auto& [patch_frames, patch_rows, length] = grid_.patch.sizes;
    const Index item = token / (frames * rows * columns);
    const Index frame = token / (rows * columns) % frames * patch_frames;
    const Index row = token / columns % rows * patch_rows;
    const Index column = token % columns * length;
    for (Index c = 0; c < grid_.channels; ++c) {
      for (Index i = 0; i < patch_frames; ++i) {
        const Index plane = (item * grid_.channels + c) * grid_.image[0] + frame + i;
        const Index first = plane * grid_.image[1] + row;
        for (Index j = 0; j < patch_rows; ++j) {
          f(PatchRow{token, first + j, column, c, i * patch_rows + j, length});
        }
      }
    }
  }

  PatchGrid grid_;
  GridShape counts_;
};

/// First feature of a row of a patch, in the order (channel, frame, row, column).
inline Index convolution_feature(const PatchLayout& layout, const PatchRow& at) {
  return (at.channel * layout.patch_rows() + at.row) * at.length;
}

/// Feature of column k of a row of a patch, in the order (frame, row, column, channel).
inline Index dit_feature(const PatchLayout& layout, const PatchRow& at, Index k) {
  return (at.row * at.length + k) * layout.channels() + at.channel;
}

template <class T>
void expect_patches(const char* function, const char* argument, const MatrixView<T>& tokens,
                    const PatchLayout& layout) {
  expect_rows(function, argument, tokens, layout.tokens(), layout.features());
}

template <class T>
void expect_image(const char* function, const char* argument, const MatrixView<T>& image,
                  const PatchLayout& layout) {
  expect_rows(function, argument, image, layout.image_rows(), layout.image_columns());
}

}  // namespace detail

template <LayerInput X>
void patches(const X& input, const PatchGrid& grid, const detail::output_t<X>& y,
             const ExecutorRef& executor) {
  constexpr const char* kName = "patches";
  const detail::PatchLayout layout(kName, grid);
  const detail::input_t<X> image(input);
  detail::expect_image(kName, "image", image, layout);
  detail::expect_patches(kName, "y", y, layout);
  layout.for_each_row(executor, [&](const detail::PatchRow& at) {
    std::copy_n(image.row(at.image_row) + at.image_column, at.length,
                y.row(at.token) + detail::convolution_feature(layout, at));
  });
}

template <LayerInput X>
void patches_adjoint(const X& input, const PatchGrid& grid, const detail::output_t<X>& dimage,
                     const ExecutorRef& executor) {
  constexpr const char* kName = "patches_adjoint";
  const detail::PatchLayout layout(kName, grid);
  const detail::input_t<X> dy(input);
  detail::expect_patches(kName, "dy", dy, layout);
  detail::expect_image(kName, "dimage", dimage, layout);
  layout.for_each_row(executor, [&](const detail::PatchRow& at) {
    detail::add_to(dy.row(at.token) + detail::convolution_feature(layout, at),
                   dimage.row(at.image_row) + at.image_column, at.length);
  });
}

template <LayerInput X>
void unpatchify(const X& input, const PatchGrid& grid, const detail::output_t<X>& image,
                const ExecutorRef& executor) {
  constexpr const char* kName = "unpatchify";
  const detail::PatchLayout layout(kName, grid);
  const detail::input_t<X> tokens(input);
  detail::expect_patches(kName, "tokens", tokens, layout);
  detail::expect_image(kName, "image", image, layout);
  layout.for_each_row(executor, [&](const detail::PatchRow& at) {
    for (Index k = 0; k < at.length; ++k) {
      image(at.image_row, at.image_column + k) =
          tokens(at.token, detail::dit_feature(layout, at, k));
    }
  });
}

template <LayerInput X>
void unpatchify_adjoint(const X& input, const PatchGrid& grid, const detail::output_t<X>& dtokens,
                        const ExecutorRef& executor) {
  constexpr const char* kName = "unpatchify_adjoint";
  const detail::PatchLayout layout(kName, grid);
  const detail::input_t<X> dimage(input);
  detail::expect_image(kName, "dimage", dimage, layout);
  detail::expect_patches(kName, "dtokens", dtokens, layout);
  layout.for_each_row(executor, [&](const detail::PatchRow& at) {
    for (Index k = 0; k < at.length; ++k) {
      dtokens(at.token, detail::dit_feature(layout, at, k)) +=
          dimage(at.image_row, at.image_column + k);
    }
  });
}

}  // namespace MHLA_TARGET
}  // namespace mhla
