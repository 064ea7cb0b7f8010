#pragma once

/// \file
/// Small kernels for tests of the emulator, each with or without a bug.
///
///     void body(const Arrays& a) { ... if (!a.bug) ptx::bar_sync(); ... }
///     EXPECT_EQ(planted(body, {Kind::kRace}), "");

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "emulator/device.hpp"

namespace emulator {

/// Arrays of planted kernels: kCount numbers each.
struct Arrays {
  static constexpr int kCount = 1024;

  const float* in;  ///< in[i] = i, read only
  float* out;       ///< read and written
  bool bug = false;
};

using Body = void (*)(const Arrays&);

template <int kThreadCount>
struct PlantedKernel {
  struct Params : Arrays {
    Body body;
  };
  static constexpr int kThreads = kThreadCount, kSharedBytes = 4096;
  void operator()(const Params& p) const { p.body(p); }
};

struct Outcome {
  std::string fault;  ///< text of the exception, empty if none
  Kind kind{};
  Report report;
  std::vector<float> out;
};

template <int kThreads = 64>
Outcome run_planted(Body body, bool bug = false, std::uint64_t seed = 0, std::uint32_t blocks = 1) {
  struct alignas(16) Four {
    float x[4];
  };
  std::vector<Four> in(Arrays::kCount / 4), out(Arrays::kCount / 4);
  for (int i = 0; i < Arrays::kCount; ++i) {
    in[static_cast<std::size_t>(i / 4)].x[i % 4] = static_cast<float>(i);
  }
  Device device(seed);
  device.track("in", in.data(), 4 * Arrays::kCount, Access::kRead);
  device.track("out", out.data(), 4 * Arrays::kCount, Access::kReadWrite);
  Outcome outcome;
  try {
    outcome.report =
        device.launch<PlantedKernel<kThreads>>(blocks, {{in.data()->x, out.data()->x, bug}, body});
  } catch (const Fault& fault) {
    outcome.fault = fault.what();
    outcome.kind = fault.kind;
  }
  for (const Four& f : out) outcome.out.insert(outcome.out.end(), f.x, f.x + 4);
  return outcome;
}

/// Runs the body under several schedules. Returns an empty text if the body with the bug always
/// ends with a fault of one of the kinds, and without the bug never. Otherwise returns what
/// happened.
template <int kThreads = 64>
std::string planted(Body body, std::initializer_list<Kind> kinds, std::uint32_t blocks = 1) {
  std::string text;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const Outcome wrong = run_planted<kThreads>(body, true, seed, blocks);
    const Outcome right = run_planted<kThreads>(body, false, seed, blocks);
    const bool found =
        !wrong.fault.empty() && std::find(kinds.begin(), kinds.end(), wrong.kind) != kinds.end();
    const std::string which = "seed " + std::to_string(seed) + ": ";
    if (!found) text += which + "with the bug: " + wrong.fault + "\n";
    if (!right.fault.empty()) text += which + "without the bug: " + right.fault + "\n";
  }
  return text;
}

}  // namespace emulator
