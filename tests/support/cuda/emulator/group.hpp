#pragma once

/// \file
/// Instructions that all threads of a warp or of four warps call together.
///
/// Each thread passes an Arguments object on its stack. The last thread to arrive runs
/// `together(all)`, where all[i] are the arguments of the i-th thread of the group. It reads and
/// changes them, and then all threads continue. Memory is not ordered by that.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "emulator/block.hpp"

namespace emulator {

/// kThreads: 32 or 128. All threads must pass the same instruction and parameter.
template <int kThreads, class Arguments, class Together>
void call_together(const char* instruction, std::uint64_t parameter, Arguments& mine,
                   const Together& together) {
  static_assert(kThreads == 32 || kThreads == 128);
  Block& block = current();
  Thread& self = block.self();
  const int index = self.index / kThreads, first = index * kThreads;
  auto& groups = kThreads == 32 ? block.warps : block.quads;
  Group& group = groups[static_cast<std::size_t>(index)];
  if (group.ended != 0) {
    block.fail(Kind::kDivergent,
               std::string(instruction) + " called when other threads of its group have ended");
  }
  if (group.instruction == nullptr) {
    group.instruction = instruction;
    group.parameter = parameter;
  } else if (group.parameter != parameter || (group.instruction != instruction &&
                                              std::string_view(group.instruction) != instruction)) {
    block.fail(Kind::kDivergent, std::string(instruction) + " with " + std::to_string(parameter) +
                                     " called when other threads of its group wait in " +
                                     group.instruction + " with " +
                                     std::to_string(group.parameter));
  }
  group.arguments[self.index - first] = &mine;
  if (++group.arrived < kThreads) return block.suspend(instruction, parameter);
  group.arrived = 0;
  group.instruction = nullptr;
  Arguments* all[kThreads];
  for (int i = 0; i < kThreads; ++i) all[i] = static_cast<Arguments*>(group.arguments[i]);
  for (int w = first / 32; w < (first + kThreads) / 32; ++w) {
    block.banks[static_cast<std::size_t>(w)].flush();
  }
  together(all);
  for (int i = 0; i < kThreads; ++i) {
    if (first + i != self.index) block.resume(first + i);
  }
}

}  // namespace emulator
