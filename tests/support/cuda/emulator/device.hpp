#pragma once

/// \file
/// Runs kernels without a GPU, for tests: a launch does what the grid would do, counts, and throws
/// at the first thing that a GPU might forgive but the programming model does not.
///
///     emulator::Device device(seed);
///     device.track("q", q.data(), q.size() * sizeof(q[0]), emulator::Access::kRead);
///     emulator::Report r = device.launch<Kernel>({2, 8, 1}, params);
///
/// A kernel is a functor with Params, kThreads, kSharedBytes or static shared_bytes(Params), and
/// operator()(const Params&) const. Its unit is compiled with this folder before the library's, so
/// that the instructions (cuda/ptx) are the emulated ones.
///
/// Blocks run one after another; with seed 0 in order, else shuffled.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "emulator/accesses.hpp"
#include "emulator/barriers.hpp"
#include "emulator/block.hpp"
#include "emulator/copies.hpp"
#include "emulator/counters.hpp"
#include "emulator/fault.hpp"
#include "emulator/global_memory.hpp"
#include "emulator/matrices.hpp"
#include "emulator/schedule.hpp"
#include "mhla/cuda/arch.cuh"

namespace emulator {

class Device {
 public:
  explicit Device(std::uint64_t seed = 0) : schedule_(seed) {}

  /// Lets kernels touch `bytes` bytes from `pointer` on: multiples of 4.
  /// \throws std::invalid_argument when ranges overlap.
  void track(const std::string& name, const void* pointer, std::size_t bytes, Access access) {
    memory_.track(name, pointer, bytes, access);
  }

  /// \throws Fault at the first fault; what was written until then stays.
  template <class K>
  Report launch(Grid grid, const typename K::Params& params);

 private:
  Schedule schedule_;
  GlobalMemory memory_;
};

// -------------------------------------------------------------------------------------------------

template <class K>
Report Device::launch(Grid grid, const typename K::Params& params) {
  static_assert(K::kThreads % 32 == 0 && K::kThreads >= 32 && K::kThreads <= 1024);
  const auto shared_bytes = [&] {
    if constexpr (requires { K::kSharedBytes; }) {
      return static_cast<std::int64_t>(K::kSharedBytes);
    } else {
      return static_cast<std::int64_t>(K::shared_bytes(params));
    }
  }();
  if (shared_bytes < 0 || shared_bytes > mhla::cuda::shared_limit(mhla::cuda::Arch::kSm90a)) {
    throw Fault(Kind::kOutside, std::to_string(shared_bytes) + " bytes of shared memory");
  }
  std::vector<Grid> order;
  for (std::uint32_t z = 0; z < grid.z; ++z) {
    for (std::uint32_t y = 0; y < grid.y; ++y) {
      for (std::uint32_t x = 0; x < grid.x; ++x) order.push_back({x, y, z});
    }
  }
  Report report;
  memory_.begin_launch();
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::swap(order[i], order[i + schedule_.below(order.size() - i)]);
    Block block(K::kThreads, static_cast<std::uint32_t>(shared_bytes), grid, order[i], schedule_,
                memory_, report);
    block.run([](const void* p) { K{}(*static_cast<const typename K::Params*>(p)); }, &params);
  }
  memory_.report(report);
  return report;
}

}  // namespace emulator
