#pragma once

/// \file
/// Runs kernels without a GPU, for tests. A launch computes what the grid would compute, counts,
/// and throws at the first violation of the programming model, even if a GPU might forgive it.
///
///     emulator::Device device(seed);
///     device.track("q", q.data(), q.size() * sizeof(q[0]), emulator::Access::kRead);
///     emulator::Report r = device.launch<Kernel>(16, params);
///
/// A kernel is a functor with Params, kThreads, kSharedBytes or static shared_bytes(Params), and
/// operator()(const Params&) const. Its unit is compiled with this folder before the library's in
/// the include path. It then uses the emulated instructions (cuda/ptx), which are compiled
/// separately.
///
/// Blocks run one after another, in order with seed 0, otherwise shuffled.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "emulator/counters.hpp"
#include "emulator/fault.hpp"

namespace emulator {

class Device {
 public:
  explicit Device(std::uint64_t seed = 0);
  ~Device();

  /// Lets kernels access `bytes` bytes from `pointer` on, multiples of 4.
  /// \throws std::invalid_argument if ranges overlap.
  void track(const std::string& name, const void* pointer, std::size_t bytes, Access access);

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
