#pragma once

/// \file
/// Tables of planted bugs: kernels as lists of steps, some of which are wrong on purpose.
///
///     const Bug kBugs[] = {{"no barrier", "race", {write, without(barrier), read_neighbour}}};
///     expect_found(kBugs);
///
/// Every thread runs the steps in turn. Under each of some schedules the kernel with the bug must
/// end with a fault that says the second string, and the kernel without the bug with none. Kernels
/// of many steps name them, and changed(kernel, "step", wrong) plants a bug in these.

#include <gtest/gtest.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "emulator/device.hpp"
#include "mhla/cuda/ptx/index.cuh"

namespace emulator::planted {

using Step = std::function<void()>;

/// A step of a kernel as it is right, and as it is with the bug.
struct Line {
  template <std::invocable F>
  Line(F f) : right(f), wrong(f) {}  // NOLINT: a step is a line
  Line(Step r, Step w) : right(std::move(r)), wrong(std::move(w)) {}
  template <std::invocable F>
  Line(std::string_view n, F f) : right(f), wrong(f), name(n) {}

  Step right, wrong;
  std::string_view name{};
};
using Kernel = std::vector<Line>;

inline void nothing() {}
/// The bug leaves the step out, has it alone, or has another step.
inline Line without(Step s) { return {std::move(s), nothing}; }
inline Line only_wrong(Step s) { return {nothing, std::move(s)}; }
inline Line instead(Step wrong, Step right) { return {std::move(right), std::move(wrong)}; }

/// A kernel whose steps of this name are wrong with the bug: left out, or wrong(i) for the i-th.
inline Kernel changed(Kernel kernel, std::string_view name, const std::function<Step(int)>& wrong) {
  int i = 0;
  for (Line& line : kernel) {
    if (line.name == name) line.wrong = wrong(i++);
  }
  return kernel;
}
inline Kernel changed(const Kernel& kernel, std::string_view name, const Step& wrong = nothing) {
  return changed(kernel, name, [&](int) { return wrong; });
}
/// A kernel that has a step more with the bug, before the first of this name.
inline Kernel inserted(Kernel kernel, std::string_view before, Step wrong) {
  const auto at = std::find_if(kernel.begin(), kernel.end(),
                               [&](const Line& line) { return line.name == before; });
  kernel.insert(at, only_wrong(std::move(wrong)));
  return kernel;
}

inline std::uint32_t me() { return mhla::cuda::ptx::tid_x(); }
/// Steps of threads [begin, end) alone, of one thread, of one warp, of all but one thread.
inline Step of_threads(std::uint32_t begin, std::uint32_t end, Step s) {
  return [=, s = std::move(s)] {
    if (me() >= begin && me() < end) s();
  };
}
inline Step by(std::uint32_t thread, Step s) {
  return of_threads(thread, thread + 1, std::move(s));
}
inline Step in_warp(std::uint32_t w, Step s) {
  return of_threads(32 * w, 32 * w + 32, std::move(s));
}
inline Step not_by(std::uint32_t thread, Step s) {
  return [=, s = std::move(s)] {
    if (me() != thread) s();
  };
}
struct EndOfThread {};
inline void end_thread() { throw EndOfThread{}; }

// ---- memory of planted kernels -----------------------------------------------------------------

inline constexpr int kNumbers = 1024;
inline constexpr int kGap = 32;                 // numbers after an array that kernels may not touch
alignas(128) inline float in[kNumbers + kGap];  ///< in[i] = i, read only
alignas(128) inline float out[kNumbers + kGap];  ///< 0 at first, read and written

/// Threads and blocks of a launch, and what else it may touch.
struct Shape {
  int threads = 64;
  std::uint32_t blocks = 1;
  int shared_bytes = 4096;
  std::function<void(Device&)> track{};
};

struct Bug {
  const char* name;
  const char* report;  ///< kinds of fault or parts of messages, with | between alternatives
  Kernel kernel;
  Shape shape{.threads = 0};  ///< the usual one of the table if it has no threads
};

template <int kThreadCount>
struct PlantedKernel {
  struct Params {
    const Kernel* kernel;
    bool bug;
    int shared_bytes;
  };
  static constexpr int kThreads = kThreadCount;
  static int shared_bytes(const Params& p) { return p.shared_bytes; }
  void operator()(const Params& p) const {
    try {
      for (const Line& line : *p.kernel) (p.bug ? line.wrong : line.right)();
    } catch (EndOfThread) {
    }
  }
};

struct Outcome {
  std::string fault;  ///< the message, empty if there is none
  Report report;
};

template <int... kThreads>
Report launch_on(Device& device, const Kernel& kernel, bool bug, const Shape& shape, bool early) {
  Report report;
  const bool known =
      ((shape.threads == kThreads && (report = device.launch<PlantedKernel<kThreads>>(
                                          shape.blocks, {&kernel, bug, shape.shared_bytes}, early),
                                      true)) ||
       ...);
  EXPECT_TRUE(known) << shape.threads << " threads";
  return report;
}
inline Report launch(Device& device, const Kernel& kernel, bool bug, const Shape& shape = {},
                     bool early = false) {
  return launch_on<32, 64, 96, 128, 256, 384>(device, kernel, bug, shape, early);
}

/// Sets `in` and `out` as they are at first, for kernels on the device.
inline void track_numbers(Device& device) {
  for (int i = 0; i < kNumbers; ++i) in[i] = static_cast<float>(i);
  std::fill(std::begin(out), std::end(out), 0.0f);
  device.track("in", in, 4 * kNumbers, Access::kRead);
  device.track("out", out, 4 * kNumbers, Access::kReadWrite);
}

inline Outcome run_planted(const Kernel& kernel, bool bug = false, const Shape& shape = {},
                           std::uint64_t seed = 0) {
  Device device(seed);
  track_numbers(device);
  if (shape.track) shape.track(device);
  try {
    return {"", launch(device, kernel, bug, shape)};
  } catch (const Fault& fault) {
    return {fault.what(), {}};
  }
}

/// The message is of a kind of the report, or has one of its parts.
inline bool says(const std::string& message, std::string_view report) {
  const std::size_t colon = message.find(':');
  while (colon != std::string::npos && !report.empty()) {
    const std::string_view part = report.substr(0, report.find('|'));
    if (message.substr(0, colon) == part || message.find(part, colon) != std::string::npos) {
      return true;
    }
    report.remove_prefix(std::min(report.size(), part.size() + 1));
  }
  return false;
}

inline constexpr std::uint64_t kSchedules = 10;

inline void expect_found(std::span<const Bug> bugs, const Shape& usual = {}) {
  for (const Bug& bug : bugs) {
    const Shape& shape = bug.shape.threads == 0 ? usual : bug.shape;
    for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
      const Outcome wrong = run_planted(bug.kernel, true, shape, seed);
      EXPECT_TRUE(says(wrong.fault, bug.report))
          << bug.name << ", schedule " << seed << ": expected " << bug.report << ", found "
          << wrong.fault;
      EXPECT_EQ(run_planted(bug.kernel, false, shape, seed).fault, "") << bug.name;
    }
  }
}

}  // namespace emulator::planted
