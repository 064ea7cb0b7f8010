#pragma once

/// \file
/// Helpers of the self-tests of asynchronous instructions: whole numbers as tensors of 16-bit
/// numbers, the kind of a launch's fault, and the faults that planted bugs cause.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <vector>

#include "emulator/async_box.hpp"
#include "emulator/device.hpp"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"

namespace emulator::trial {

/// Schedules of each test. Schedule 0 runs threads in turn.
inline constexpr std::array<std::uint64_t, 6> kSeeds = {0, 1, 2, 3, 4, 5};

/// Returns a whole number from -3 to 3 that depends on two indices.
constexpr int number(int i, int j) { return (i * 7 + j * 5 + i * j) % 7 - 3; }

/// Returns the bits of a whole number as bfloat16.
inline std::uint16_t bits(int x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 16);
}

/// Returns the number with these bfloat16 bits.
inline float value(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

/// Returns the bits of a number in device memory.
inline std::uint32_t load_word(const std::uint32_t* from) {
  return std::bit_cast<std::uint32_t>(
      mhla::cuda::ptx::ld_global_nc_f32(reinterpret_cast<const float*>(from)));
}

/// 16-bit numbers, aligned to 128 bytes, so that tests do not depend on the allocator.
class Numbers {
 public:
  explicit Numbers(std::size_t count) : lines_((count + 63) / 64), size_(count) {}

  std::uint16_t* data() { return lines_.data()->x; }
  std::uint16_t& operator[](std::size_t i) { return lines_[i / 64].x[i % 64]; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * 2; }

 private:
  struct alignas(128) Line {
    std::uint16_t x[64] = {};
  };
  std::vector<Line> lines_;
  std::size_t size_;
};

/// A tensor with rows of `columns` numbers, and boxes of `box_rows` rows of 64.
inline mhla::cuda::TensorBox matrix_box(Numbers& x, std::uint64_t columns, std::uint32_t box_rows) {
  const std::uint64_t rows = x.size() / columns;
  const std::uint64_t row = columns * 2;
  return {x.data(),
          {columns, rows, 1, 1, 1},
          {row, rows * row, rows * row, rows * row},
          {64, box_rows, 1, 1, 1}};
}

/// Returns the kind of a launch's fault, if any.
template <class K>
std::optional<Kind> fault_of(Device& device, const typename K::Params& params) {
  try {
    device.launch<K>(1, params);
  } catch (const Fault& fault) {
    return fault.kind;
  }
  return std::nullopt;
}

/// A bug, and the kinds of fault that it may cause.
template <class Bug>
struct Planted {
  Bug bug;
  std::vector<Kind> kinds;
};

/// Expects that Run(seed, bug), which keeps its `fault` and `message`, finds every bug under every
/// schedule.
template <class Run, class Bug>
void expect_found(const std::vector<Planted<Bug>>& bugs) {
  for (const std::uint64_t seed : kSeeds) {
    for (const auto& [bug, kinds] : bugs) {
      const Run run(seed, bug);
      const bool found =
          run.fault && std::find(kinds.begin(), kinds.end(), *run.fault) != kinds.end();
      EXPECT_TRUE(found) << "bug " << static_cast<int>(bug) << ", seed " << seed << ": "
                         << run.message;
    }
  }
}

}  // namespace emulator::trial
