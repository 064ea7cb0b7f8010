#pragma once

/// \file
/// Runs functions of tile/ in the threads of one emulated block, from any callable.

#include <cstdint>
#include <functional>
#include <limits>

#include "emulator/device.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace cuda_test {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <int kThreads_, int kSharedBytes_>
struct InBlock {
  struct Params {
    const std::function<void(std::uint32_t)>* run;
  };
  static constexpr int kThreads = kThreads_;
  static constexpr int kSharedBytes = kSharedBytes_;

  void operator()(const Params& params) const { (*params.run)(mhla::cuda::ptx::tid_x()); }
};

/// Calls run(thread) in every thread of a block. The callable must not own memory while it waits
/// for other threads. It stores its results in arrays outside.
template <int kThreads = 32, int kSharedBytes = 128 * 1024>
emulator::Report in_block(emulator::Device& device, const std::function<void(std::uint32_t)>& run) {
  return device.launch<InBlock<kThreads, kSharedBytes>>(1, {&run});
}

/// Writes bits(row, column) as the numbers of a tile, by all threads of a block, and ends with a
/// barrier.
template <int kThreads = 32, class Tile, class Bits>
void fill_tile(Tile tile, std::uint32_t thread, const Bits& bits) {
  constexpr std::uint32_t kWords = Tile::kRows * Tile::kColumns / 2;
  for (std::uint32_t i = thread; i < kWords; i += kThreads) {
    const std::uint32_t row = i / (Tile::kColumns / 2), column = i % (Tile::kColumns / 2) * 2;
    const std::uint32_t low = bits(row, column), high = bits(row, column + 1);
    mhla::cuda::ptx::st_shared(tile.piece(row, column / 8) + column % 8 * 2, low | high << 16);
  }
  mhla::cuda::ptx::bar_sync();
}

}  // namespace cuda_test
