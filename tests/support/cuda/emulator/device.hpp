#pragma once

/// \file
/// Runs kernels without a GPU, for tests: a launch does what the grid would do, counts, and throws
/// at the first thing that a GPU might forgive but the programming model does not.
///
///     emulator::Device device(seed);
///     device.track("q", q.data(), q.size() * sizeof(q[0]), emulator::Access::kRead);
///     emulator::Report r = device.launch<Kernel>(16, params);
///
/// A kernel is a functor with Params, kThreads, kSharedBytes or static shared_bytes(Params), and
/// operator()(const Params&) const. Its unit is compiled with this folder before the library's, so
/// that the instructions (cuda/ptx) are the emulated ones, which are compiled apart.
///
/// Blocks run one after another; with seed 0 in order, else shuffled.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulator/counters.hpp"
#include "emulator/fault.hpp"

namespace emulator {

class Device {
 public:
  explicit Device(std::uint64_t seed = 0);
  ~Device();

  /// Lets kernels touch `bytes` bytes from `pointer` on: multiples of 4.
  /// \throws std::invalid_argument when ranges overlap.
  void track(const std::string& name, const void* pointer, std::size_t bytes, Access access);

  /// Of later launches these blocks alone run; all again where there are none.
  void run_only(std::vector<std::uint32_t> blocks);

  /// \param early  before the launch before has ended, as with programmatic stream serialization
  /// \throws Fault at the first fault; what was written until then stays.
  template <class K>
  Report launch(std::uint32_t blocks, const typename K::Params& params, bool early = false) {
    static_assert(K::kThreads % 32 == 0 && K::kThreads >= 32 && K::kThreads <= 1024);
    std::int64_t shared_bytes = 0;
    if constexpr (requires { K::kSharedBytes; }) {
      shared_bytes = K::kSharedBytes;
    } else {
      shared_bytes = K::shared_bytes(params);
    }
    return run(
        blocks, K::kThreads, shared_bytes,
        [](const void* p) { K{}(*static_cast<const typename K::Params*>(p)); }, &params, early);
  }

 private:
  struct State;

  /// Runs body(argument) in every thread of every block.
  Report run(std::uint32_t blocks, int threads, std::int64_t shared_bytes,
             void (*body)(const void*), const void* argument, bool early);

  std::unique_ptr<State> state_;
};

}  // namespace emulator
