#pragma once

/// \file
/// The time that a launch takes on a machine, predicted: the longest of
///
///     memory   bytes that device memory moves: of each array what the launch asks for, at most all
///              of it once; of what the launch before wrote a part is still in the second cache
///     cache    bytes asked for, over the second cache's bandwidth; those that come to the
///              multiprocessor with the most items over its own
///     issue    warp instructions (issue_slots.hpp) of that multiprocessor
///     tensor   multiply-adds of its matrix units
///     chain    instructions of one warp one after another, with the latencies between series of
///              loads, products and shuffles of the machine code, times the items that its block
///              does
///
/// as if they overlapped without loss: a bound from below for these constants.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "cuda/model/issue_slots.hpp"
#include "cuda/model/machine.hpp"
#include "cuda/model/sample.hpp"

namespace mhla::cuda::model {

/// What an item takes.
struct Work {
  double slots = 0;  ///< warp instructions
  double wgmma = 0;  ///< multiply-adds
  double mma = 0;    ///< multiply-adds
  struct Warp {
    double chain;  ///< clocks, without products by wgmma
    double wgmma;  ///< multiply-adds
  };
  std::vector<Warp> warps = {};
  double explained;  ///< part of the counted instructions that the machine code explains
};

inline Work work_of(const Launch& launch, const std::vector<Instruction>& code, int arch) {
  Work work{};
  double counted = 0, missed = 0;
  const emulator::Report& report = launch.report;
  const double items = launch.sampled_items;
  for (std::size_t w = 0; w < report.warps.size(); ++w) {
    const IssueSlots issue = issue_slots(code, arch, launch.sampled_blocks, report.warps[w]);
    counted += issue.counted;
    missed += issue.missed;
    const auto times = [&](const char* counter) {
      return static_cast<double>(report.issued(w, counter).times) / items;
    };
    const Work::Warp own{(kDependent * issue.slots + issue.waits) / items,
                         times("multiply-adds of wgmma")};
    work.warps.push_back(own);
    work.slots += issue.slots / items;
    work.wgmma += own.wgmma;
    work.mma += times("multiply-adds of mma");
  }
  work.explained = counted > 0 ? 1 - missed / counted : 1;
  return work;
}

/// Seconds of a launch.
struct Prediction {
  double memory_bytes, cache_bytes;
  double memory, cache, issue, tensor, chain;
  double gap;  ///< before it

  double time() const { return std::max({memory, cache, issue, tensor, chain}); }
  const char* bound() const {
    const double t = time();
    return t == memory   ? "memory"
           : t == cache  ? "cache"
           : t == issue  ? "issue"
           : t == tensor ? "tensor"
                         : "chain";
  }
};

/// \param before  the launch before in the same call, or null
inline Prediction predict(const Launch& launch, const Work& work, const Call& call,
                          const Launch* before, const Machine& m) {
  Prediction p{};
  const double scale = launch.items / launch.sampled_items;
  for (const auto& [name, traffic] : launch.report.traffic) {
    const double all = call.arrays.at(name);
    const double read = scale * static_cast<double>(traffic.read);
    const double written = scale * static_cast<double>(traffic.written);
    p.cache_bytes += read + written;
    const bool fresh = before != nullptr && before->report.bytes_written(name) > 0;
    const double kept = fresh ? kKept * m.cache_bytes : 0;
    p.memory_bytes += std::max(0.0, std::min(read, all) - kept) + std::min(written, all);
  }
  const double at_once = m.multiprocessors * launch.blocks_per_multiprocessor;
  const double busiest = std::ceil(launch.items / m.multiprocessors);
  p.memory = p.memory_bytes / m.bandwidth;
  p.cache = std::max(p.cache_bytes / m.cache_bandwidth,
                     busiest * p.cache_bytes / launch.items / m.multiprocessor_bandwidth);
  p.issue = busiest * work.slots / kIssue / m.clock;
  p.tensor = busiest * work.mma / m.mma / m.clock;
  if (m.wgmma > 0) p.tensor += busiest * work.wgmma / m.wgmma / m.clock;
  double chain = 0;
  for (const Work::Warp& warp : work.warps) {
    const double products = m.wgmma > 0 ? 4 * warp.wgmma / m.wgmma : 0;  // four warps share one
    chain = std::max(chain, warp.chain + products);
  }
  const bool persistent = launch.sampled_items > launch.sampled_blocks;
  const double rounds = std::ceil(launch.items / at_once);
  p.chain = (rounds * chain + (persistent ? 1 : rounds) * kBlock) / m.clock;
  p.gap = launch.early ? m.early : m.launch;
  return p;
}

}  // namespace mhla::cuda::model
