#pragma once

/// \file
/// Runs shapes of forms on a device, and the shapes of all kinds of blocks.

#include <cstdint>
#include <cstdio>
#include <set>
#include <string>

#include "cuda/device/check.hpp"
#include "cuda/device/device_call.hpp"

namespace device_test {

inline std::uint64_t next_seed() {
  static std::uint64_t seed = first_seed();
  return seed++;
}

/// Names of the forms that ran, to detect a form that no test runs.
inline std::set<std::string>& forms_seen() {
  static std::set<std::string> forms;
  return forms;
}

/// Runs a shape with all kernels that this device has. A plan for one multiprocessor favours fused
/// forms.
template <class T, int D, int E>
void check(const CallShape& shape, std::int32_t multiprocessors = 1,
           Selected which = Selected::kAll) {
  const Stream stream;
  DeviceCall<T, D, E> call(shape, next_seed(), which);
  for (const mhla::cuda::Device& device : targets(multiprocessors)) {
    call.plan_for(device);
    forms_seen().insert(call.form());
    call.run(stream);
    stream.wait();
    call.expect_right();
    if (failures() > 0) std::printf("  %s: D %d, E %d\n", call.text().c_str(), D, E);
  }
}

/// Blocks of all kinds: single tokens, ragged ends and edges, one block, images, videos.
inline const CallShape kShapes[] = {
    {.tokens = 1, .block = 1},
    {.tokens = 40, .block = 1},
    {.batch = 2, .heads = 3, .tokens = 200, .block = 16},
    {.heads = 2, .tokens = 111, .block = 49, .layout = 2},
    {.tokens = 1000, .block = 64, .layout = 1},
    {.tokens = 1000, .block = 210},
    {.heads = 2, .tokens = 777, .block = 256, .layout = 2},
    {.tokens = 1000, .block = 1000},
    {.batch = 3, .tokens = {19, 14}, .block = {4, 3}, .layout = 2},
    {.heads = 2, .tokens = {6, 9, 10}, .block = {2, 3, 5}, .layout = 1},
    {.heads = 3, .tokens = {14, 12, 15}, .block = {7, 6, 5}},
    {.heads = 2, .tokens = {1, 23, 16}, .block = {1, 24, 4}},
    {.batch = 2, .heads = 2, .tokens = 16 * 37, .block = 37},
};

}  // namespace device_test
