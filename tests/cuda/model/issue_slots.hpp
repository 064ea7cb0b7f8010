#pragma once

/// \file
/// How many instructions warps issued, from the machine code of a kernel and from what the
/// emulation counted.
///
/// How often each run of instructions (control_flow.hpp) is entered is not known, but as often as
/// it is left; and the instructions of the emulation (loads, copies, products, ...) are all in the
/// code, so what the runs hold of each kind must add up to what was counted. Of all ways that agree
/// the one with the fewest instructions is taken: a bound from below. What waits in a loop and what
/// a warp runs for some threads only beside the others is not in it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "cuda/model/control_flow.hpp"
#include "cuda/model/machine.hpp"
#include "cuda/model/simplex.hpp"
#include "support/cuda/emulator/counters.hpp"

namespace mhla::cuda::model {

/// A counter of the emulation, and the instruction that it counts. A counter that is not here makes
/// nothing wrong, only the bound less tight.
struct Anchor {
  const char* counter;
  std::uint32_t operation;
};
inline constexpr Anchor kAnchors[] = {
    {"words of shared loads", kSharedLoad},
    {"words of shared stores", kSharedStore},
    {"global loads", 0x181},   // LDG
    {"global stores", 0x186},  // STG
    {"copies", 0x1ae},         // LDGSTS
    {"tensor loads", 0x1b4},   // UTMALDG
    {"tensor stores", 0x1b5},  // UTMASTG
    {"barriers", kBarrier},
    {"matrix loads", kMatrixLoad},
    {"mma", kMma},
    {"wgmma of a warp", kWgmma},
    {"shuffles", kShuffle},
    {"exponentials", kMufu},
};

/// How much of what the anchor counts one such instruction does.
constexpr int amount(const Anchor& anchor, const Instruction& i) {
  if (operation(i) != anchor.operation) return 0;
  if (operation(i) == kMufu) return (i.high >> 10 & 0xf) == 2 ? 1 : 0;  // EX2 of its functions
  if (operation(i) != kSharedLoad && operation(i) != kSharedStore) return 1;
  // ptxas joins loads of neighbours. 4, 5 and 6 are 32, 64 and 128 bits, less are single bytes.
  const auto size = static_cast<int>(i.high >> 9 & 7);
  return size < 4 ? 1 : 1 << (size - 4);
}

/// Clocks that the instructions of a run wait for results if the run waits once for each series:
/// for one operation some times, with no other one of kAnchors in between; of wgmma, which is
/// asynchronous, all that are started together.
inline double waits_of(const std::vector<Instruction>& code, const Run& run) {
  double clocks = 0;
  std::uint32_t latest = 0;
  bool under_way = false;  // wgmma
  for (std::size_t at = run.begin; at < run.end; ++at) {
    const std::uint32_t own = operation(code[at]);
    const auto is_own = [&](const auto& row) { return row.operation == own; };
    if (own == kWarpgroup) under_way = false;
    if (own == latest || (own == kWgmma && under_way)) continue;
    if (std::none_of(std::begin(kAnchors), std::end(kAnchors), is_own)) continue;
    if (own == kWgmma) {
      under_way = true;
    } else {
      latest = own;
    }
    const auto* const latency = std::find_if(std::begin(kLatencies), std::end(kLatencies), is_own);
    if (latency != std::end(kLatencies)) clocks += latency->clocks;
  }
  return clocks;
}

struct IssueSlots {
  double slots = 0;
  double waits = 0;   ///< clocks
  double missed = 0;  ///< of the counted instructions, those that the code does not explain
  double counted = 0;
};

/// Of `warps` warps that issued as `issued` says, by Counter::index.
inline IssueSlots issue_slots(const std::vector<Instruction>& code, int arch, double warps,
                              const std::vector<emulator::Issued>& issued) {
  const std::vector<Run> runs = runs_of(code, arch);
  constexpr std::size_t kKinds = std::size(kAnchors);
  // Rows: the runs; of each kind at least and at most as many; one entry.
  LinearProgram program(runs.size() + 2 * kKinds + 1);
  constexpr double kMissed = 1e4;
  std::vector<std::size_t> into;  // the run that an edge leads to
  const auto edge = [&](std::size_t from, std::size_t to) {
    const Run& run = runs[to];
    const std::size_t e = program.add(static_cast<double>(run.end - run.begin));
    into.push_back(to);
    program.set(to, e, 1);
    if (from < runs.size()) program.set(from, e, -1);
    for (std::size_t k = 0; k < kKinds; ++k) {
      double all = 0, unguarded = 0;
      for (std::size_t at = run.begin; at < run.end; ++at) {
        const int of_kind = amount(kAnchors[k], code[at]);
        all += of_kind;
        unguarded += guarded(code[at]) ? 0 : of_kind;
      }
      program.set(runs.size() + 2 * k, e, all);
      program.set(runs.size() + 2 * k + 1, e, unguarded);
    }
    return e;
  };
  program.set(runs.size() + 2 * kKinds, edge(runs.size(), 0), 1);
  program.right(runs.size() + 2 * kKinds) = 1;
  for (std::size_t from = 0; from < runs.size(); ++from) {
    for (const std::size_t to : runs[from].next) edge(from, to);
  }
  const std::size_t edges = into.size();
  for (std::size_t r = 0; r < runs.size(); ++r) {
    if (runs[r].ends) program.set(r, program.add(0), -1);
  }
  IssueSlots result;
  std::vector<std::size_t> misses;
  for (std::size_t k = 0; k < kKinds; ++k) {
    const std::size_t index = emulator::Counter::index_of(kAnchors[k].counter);
    const double times =
        index < issued.size() ? static_cast<double>(issued[index].times) / warps : 0;
    result.counted += times * warps;
    const std::size_t least = runs.size() + 2 * k, most = least + 1;
    program.right(least) = program.right(most) = times;
    program.set(least, program.add(0), -1);
    program.set(most, program.add(0), 1);
    misses.push_back(program.add(kMissed));
    program.set(least, misses.back(), 1);
    misses.push_back(program.add(kMissed));
    program.set(most, misses.back(), -1);
  }
  const std::vector<double> x = program.solve();
  for (std::size_t e = 0; e < edges; ++e) {
    const Run& run = runs[into[e]];
    result.slots += warps * x[e] * static_cast<double>(run.end - run.begin);
    result.waits += warps * x[e] * waits_of(code, run);
  }
  for (const std::size_t miss : misses) result.missed += warps * x[miss];
  return result;
}

}  // namespace mhla::cuda::model
