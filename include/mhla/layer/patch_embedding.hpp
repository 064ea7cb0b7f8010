#pragma once

/// \file
/// Patches of images and videos as rows of tokens, and images from such rows; with the adjoints.
///
///     patches       y[n, ((c*pf + i)*py + j)*px + k] = p
///     unpatchify    p = tokens[n, ((i*py + j)*px + k)*C + c]
///     where         p = image[c, f*pf + i, r*py + j, s*px + k]
///
/// for channel c of C and number (i, j, k) of a patch of pf x py x px. Token n is patch (f, r, s)
/// in raster order, of the N = F/pf * Y/py * X/px patches of an image. Images are channel-first,
/// like PyTorch's: image b of B is rows [b*C*F*Y, (b+1)*C*F*Y) of a matrix with X columns. Its row
/// (c*F + f)*Y + r is row r of frame f of channel c. Its tokens are rows [b*N, (b+1)*N).
///
/// Features of `patches` have the order of a convolution's weight [O, C, pf, py, px], features of
/// `unpatchify` the order of DiT. So a patch embedding, Conv2d or Conv3d with stride = kernel, is
///
///     patches(image, grid, y);
///     dense(y, {weight, bias}, tokens);                weight [O, C*pf*py*px], tokens [B*N, O]
///
/// and its adjoint, with dy = 0 before. If dy is absent, leave out the last call:
///
///     dense_adjoint(y, {weight, bias}, dtokens, dy, {dweight, dbias});
///     patches_adjoint(dy, grid, dimage);
///
/// Rows of all views are contiguous (column stride 1) at any row stride. Outputs overlap nothing
/// else. Cost: every number is read and written once. Sources: Dosovitskiy et al.,
/// arXiv:2010.11929; Peebles and Xie, arXiv:2212.09748.

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

/// Throws unless the grid has whole patches.
inline void expect_patch_grid(const char* function, const PatchGrid& grid) {
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
  const Index numbers = checked_product(
      function, "grid", {grid.channels, grid.image[0], grid.image[1], grid.image[2]});
  checked_product(function, "grid", {grid.batch, numbers});
}

/// Runs f(pixels, token, channel, row) for every row i*py + j of every patch: the row's px numbers
/// of a channel in the image, and the features of the patch. The executor splits over tokens.
/// \throws shape_error, option_error for a grid or views that do not fit.
template <class I, class P, class F>
void for_each_patch_row(const char* function, const PatchGrid& grid, const char* image_name,
                        const MatrixView<I>& image, const char* tokens_name,
                        const MatrixView<P>& tokens, const ExecutorRef& executor, const F& f) {
  expect_patch_grid(function, grid);
  const Index patch_frames = grid.patch[0], patch_rows = grid.patch[1], length = grid.patch[2];
  const Index frames = grid.image[0] / patch_frames, rows = grid.image[1] / patch_rows,
              columns = grid.image[2] / length;
  expect_rows(function, image_name, image,
              grid.batch * grid.channels * grid.image[0] * grid.image[1], grid.image[2]);
  expect_rows(function, tokens_name, tokens, grid.batch * frames * rows * columns,
              grid.channels * patch_frames * patch_rows * length);
  const auto run = [&](Index token) {
    const Index item = token / (frames * rows * columns);
    const Index frame = token / (rows * columns) % frames * patch_frames;
    const Index row = token / columns % rows * patch_rows;
    const Index column = token % columns * length;
    for (Index c = 0; c < grid.channels; ++c) {
      for (Index i = 0; i < patch_frames; ++i) {
        const Index plane = (item * grid.channels + c) * grid.image[0] + frame + i;
        const Index first = plane * grid.image[1] + row;
        for (Index j = 0; j < patch_rows; ++j) {
          f(image.row(first + j) + column, tokens.row(token), c, i * patch_rows + j);
        }
      }
    }
  };
  for_each_layer_strip(tokens.rows, executor, [&](Index begin, Index count) {
    for (Index token = begin; token < begin + count; ++token) run(token);
  });
}

/// Returns the first feature of a row of a patch, in the order (channel, frame, row, column).
inline Index convolution_feature(const PatchGrid& grid, Index channel, Index row) {
  return (channel * grid.patch[0] * grid.patch[1] + row) * grid.patch[2];
}

/// Returns the feature of column k of a row of a patch, in the order (frame, row, column, channel).
inline Index dit_feature(const PatchGrid& grid, Index channel, Index row, Index k) {
  return (row * grid.patch[2] + k) * grid.channels + channel;
}

}  // namespace detail

template <LayerInput X>
void patches(const X& image, const PatchGrid& grid, const detail::output_t<X>& y,
             const ExecutorRef& executor) {
  detail::for_each_patch_row("patches", grid, "image", detail::input_t<X>(image), "y", y, executor,
                             [&](auto* pixels, auto* token, Index channel, Index row) {
                               std::copy_n(pixels, grid.patch[2],
                                           token + detail::convolution_feature(grid, channel, row));
                             });
}

template <LayerInput X>
void patches_adjoint(const X& dy, const PatchGrid& grid, const detail::output_t<X>& dimage,
                     const ExecutorRef& executor) {
  detail::for_each_patch_row("patches_adjoint", grid, "dimage", dimage, "dy",
                             detail::input_t<X>(dy), executor,
                             [&](auto* pixels, auto* token, Index channel, Index row) {
                               const Index first = detail::convolution_feature(grid, channel, row);
                               detail::add_to(token + first, pixels, grid.patch[2]);
                             });
}

template <LayerInput X>
void unpatchify(const X& tokens, const PatchGrid& grid, const detail::output_t<X>& image,
                const ExecutorRef& executor) {
  detail::for_each_patch_row("unpatchify", grid, "image", image, "tokens",
                             detail::input_t<X>(tokens), executor,
                             [&](auto* pixels, auto* token, Index channel, Index row) {
                               for (Index k = 0; k < grid.patch[2]; ++k) {
                                 pixels[k] = token[detail::dit_feature(grid, channel, row, k)];
                               }
                             });
}

template <LayerInput X>
void unpatchify_adjoint(const X& dimage, const PatchGrid& grid, const detail::output_t<X>& dtokens,
                        const ExecutorRef& executor) {
  detail::for_each_patch_row("unpatchify_adjoint", grid, "dimage", detail::input_t<X>(dimage),
                             "dtokens", dtokens, executor,
                             [&](auto* pixels, auto* token, Index channel, Index row) {
                               for (Index k = 0; k < grid.patch[2]; ++k) {
                                 token[detail::dit_feature(grid, channel, row, k)] += pixels[k];
                               }
                             });
}

}  // namespace MHLA_TARGET
}  // namespace mhla
