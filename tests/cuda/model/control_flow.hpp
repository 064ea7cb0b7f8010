#pragma once

/// \file
/// The control flow of a kernel's machine code: runs of instructions without branches, and which
/// may follow which.
///
/// What is decoded: the guard (bits 12 to 15), and of BRA its other conditions (bits 87 to 91) and
/// its distance, which sm_80 and sm_90 keep in other places. Source: the output of nvdisasm -hex.
/// A call goes on behind it, as if what it calls returned at once: slow paths, such as of a
/// division; or it never returns, and is a jump. So a return ends nothing.

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "cuda/build/cubin.hpp"

namespace mhla::cuda::model {

using build::Instruction;

/// The opcode without the bits that say where operands come from.
constexpr std::uint32_t operation(const Instruction& i) { return i.low & 0x1ff; }
inline constexpr std::uint32_t kCall = 0x144, kBranch = 0x147, kExit = 0x14d, kReturn = 0x150;
inline constexpr std::uint32_t kMatrixLoad = 0x03b, kMma = 0x03c, kMufu = 0x108, kBarrier = 0x11d,
                               kSharedLoad = 0x184, kSharedStore = 0x188, kShuffle = 0x189,
                               kWarpgroup = 0x1c5, kWgmma = 0x1f0;

/// Whether a guard may keep the instruction from running.
constexpr bool guarded(const Instruction& i) { return (i.low >> 12 & 0xf) != 7; }
/// Not .DIV or .CONV, which ask whether the warp's threads are together.
constexpr bool always(const Instruction& jump) {
  if (operation(jump) == kCall || guarded(jump)) return false;
  return operation(jump) != kBranch || (jump.high >> 23 & 0x1f) == 7;
}

/// Instructions from the end of a branch to where it leads.
constexpr std::int64_t distance(const Instruction& branch, int arch) {
  const auto bits = static_cast<std::int64_t>(branch.low >> 34 | branch.high << 30);
  const std::int64_t high = (bits << 16) >> 16;  // 48 bits with a sign
  const auto low = static_cast<std::int64_t>(branch.low >> 16 & 0xff);
  return arch >= 90 ? ((high << 10) + (low << 2)) / 16 : high * 4 / 16;
}

/// Instructions [begin, end) that run one after another, and the runs that may follow.
struct Run {
  std::size_t begin, end;
  std::vector<std::size_t> next;
  bool ends;  ///< threads may end after it
};

/// The runs of a function in the order of addresses; it begins with the first.
inline std::vector<Run> runs_of(const std::vector<Instruction>& code, int arch) {
  const auto target = [&](std::size_t at) {
    return static_cast<std::size_t>(static_cast<std::int64_t>(at) + 1 + distance(code[at], arch));
  };
  const auto leads = [&](std::size_t at) {
    return operation(code[at]) == kBranch || operation(code[at]) == kCall;
  };
  const auto jumps = [&](std::size_t at) {
    return leads(at) || operation(code[at]) == kExit || operation(code[at]) == kReturn;
  };
  std::set<std::size_t> begins{0};
  for (std::size_t at = 0; at < code.size(); ++at) {
    if (jumps(at)) begins.insert(at + 1);
    if (leads(at)) begins.insert(target(at));
  }
  begins.erase(begins.lower_bound(code.size()), begins.end());
  std::vector<Run> runs;
  for (auto begin = begins.begin(); begin != begins.end(); ++begin) {
    const auto after = std::next(begin);
    runs.push_back({*begin, after == begins.end() ? code.size() : *after, {}, false});
  }
  const auto number = [&](std::size_t at) {
    return static_cast<std::size_t>(std::distance(begins.begin(), begins.find(at)));
  };
  for (Run& run : runs) {
    const std::size_t last = run.end - 1;
    const bool goes_on = run.end < code.size() && !(jumps(last) && always(code[last]));
    run.ends = operation(code[last]) == kExit;
    if (leads(last) && target(last) < code.size()) run.next.push_back(number(target(last)));
    if (goes_on && !(leads(last) && target(last) == run.end)) run.next.push_back(number(run.end));
  }
  return runs;
}

}  // namespace mhla::cuda::model
