#pragma once

/// \file
/// The extent of a grid of thread blocks, as kernels ask for it.
///
/// Kernels number what they work on along x, the only axis that counts up to 2^31 - 1; y and z end
/// at 65535.

namespace mhla::cuda {

/// Thread blocks along each axis.
struct Grid {
  unsigned x;
  unsigned y;
  unsigned z;
};

}  // namespace mhla::cuda
