#pragma once

/// \file
/// A form on a device, run in the emulator by the library's host code, and compared with the CPU's
/// form.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "emulator/device.hpp"
#include "mhla/cuda/launch/forms.cuh"
#include "support/cuda/compiled_calls.hpp"
#include "support/cuda/emulated_stream.hpp"
#include "support/cuda/reference.hpp"

namespace cuda_test {

/// Results of a call.
struct Outcome {
  mhla::cuda::Plan plan;
  double worst;                   ///< largest error over its bound
  std::uint64_t tensor_bytes;     ///< q, k, v read and o written
  std::uint64_t workspace_bytes;  ///< read and written
  std::uint64_t bank_conflicts;
  int early_launches;
};

template <class T>
mhla::cuda::Problem problem_of(Call<T>& call) {
  const auto selection = [](const Array<unsigned char>& keep, int tokens) {
    return mhla::cuda::Selection{
        .masked = keep.size() > 0, .keep = keep.data(), .batch_stride = tokens, .token_stride = 1};
  };
  const auto blocks = [](const mhla::GridShape& n, const mhla::GridShape& w) {
    const auto size = [](mhla::Index x) { return static_cast<std::int32_t>(x); };
    return mhla::cuda::TokenBlocks(size(n[0]), size(n[1]), size(n[2]), size(w[0]), size(w[1]),
                                   size(w[2]));
  };
  auto queries = selection(call.query_keep, call.q.tokens());
  auto keys = selection(call.key_keep, call.k.tokens());
  const mhla::cuda::Problem problem{
      .q = call.q.input(),
      .k = call.k.input(),
      .v = call.v.input(),
      .o = call.o.output(),
      .batch = call.q.batches(),
      .heads = call.q.heads(),
      .query_blocks = queries.add_prefix(call.prefix, blocks(call.tokens, call.block)),
      .key_blocks = keys.add_prefix(call.key_prefix, blocks(call.key_tokens, call.key_block)),
      .op = call.op,
      .own_query_map = static_cast<bool>(call.own_query_map),
      .own_key_map = static_cast<bool>(call.own_key_map),
      .norm = {.normed = call.normed(),
               .gated = call.gated(),
               .eps = call.op.norm_eps,
               .gain = call.gain.data(),
               .gate = call.gate.input()},
      .rotary = call.rotary(),
      .query_angles = {call.query_angles.data(), call.q.width()},
      .key_angles = {call.angles_of_keys().data(), call.k.width()},
      .causal = call.causal,
      .queries = queries,
      .keys = keys};
  return std::is_same_v<T, float> ? mhla::cuda::of_floats(problem) : problem;
}

template <class T>
void track_masks(const Call<T>& call, emulator::Device& device) {
  for (const Array<unsigned char>* keep : {&call.query_keep, &call.key_keep}) {
    if (keep->size() == 0) continue;
    device.track("mask", keep->raw(), keep->bytes(), emulator::Access::kRead);
  }
}

/// Runs a call under a schedule.
/// \tparam kRotary  call.rotary()
/// \param maps  call.op, or a MappedOperator of the call's own feature maps
template <int D, int E, bool kRotary = false, class T, class Maps>
Outcome run_only(Call<T>& call, const mhla::cuda::Plan& plan, mhla::cuda::Device target,
                 unsigned seed, const Maps& maps) {
  using emulator::Access;
  const mhla::cuda::Problem problem = problem_of(call);
  emulator::Device device(seed);
  Array<unsigned char> workspace(static_cast<std::int64_t>(plan.workspace_bytes) + 1);
  device.track("q", call.q.raw(), call.q.bytes(), Access::kRead);
  device.track("k", call.k.raw(), call.k.bytes(), Access::kRead);
  device.track("v", call.v.raw(), call.v.bytes(), Access::kRead);
  device.track("mixing", call.mixing.raw(), call.mixing.bytes(), Access::kRead);
  device.track("o", call.o.raw(), call.o.bytes(), Access::kWrite);
  if (kRotary) {
    device.track("query angles", call.query_angles.raw(), call.query_angles.bytes(), Access::kRead);
    if (call.key_angles.size() > 0) {
      device.track("key angles", call.key_angles.raw(), call.key_angles.bytes(), Access::kRead);
    }
  }
  if (call.normed()) {
    device.track("gain", call.gain.raw(), call.gain.bytes(), Access::kRead);
  }
  track_masks(call, device);
  if (call.bits.bytes() > 0) {
    device.track("pattern", call.bits.data(), call.bits.bytes(), Access::kRead);
  }
  if (call.gated()) device.track("gate", call.gate.raw(), call.gate.bytes(), Access::kRead);
  if (plan.workspace_bytes > 0) {
    device.track("workspace", workspace.data(), plan.workspace_bytes, Access::kReadWrite);
  }
  const EmulatedStream stream(device, target.shared_bytes);
  const mhla::cuda::MixingArray mixing = call.mixing_array();
  if (call.causal) {
    mhla::cuda::run<T, D, E, true, kRotary>(plan, problem, mixing, workspace.data(), target, stream,
                                            maps);
  } else {
    mhla::cuda::run<T, D, E, false, kRotary>(plan, problem, mixing, workspace.data(), target,
                                             stream, maps);
  }

  Outcome outcome{plan, 0, 0, 0, 0, stream.early_launches()};
  for (const emulator::Report& report : stream.reports()) {
    for (const char* name : {"q", "k", "v"}) outcome.tensor_bytes += report.bytes_read(name);
    outcome.tensor_bytes += report.bytes_written("o");
    if (plan.workspace_bytes > 0) {
      outcome.workspace_bytes += report.bytes_read("workspace") + report.bytes_written("workspace");
    }
    outcome.bank_conflicts += report.bank_conflicts;
  }
  EXPECT_TRUE(call.o.padding_is_untouched());
  return outcome;
}

template <int D, int E, bool kRotary = false, class T>
Outcome run_only(Call<T>& call, const mhla::cuda::Plan& plan, mhla::cuda::Device target,
                 unsigned seed) {
  return run_only<D, E, kRotary>(call, plan, target, seed, call.op);
}

/// Runs a call under a schedule and compares every output with the reference.
template <int D, int E, bool kRotary = false, class T, class Maps>
Outcome run_and_compare(Call<T>& call, const mhla::cuda::Plan& plan, mhla::cuda::Device target,
                        unsigned seed, const Maps& maps) {
  Outcome outcome = run_only<D, E, kRotary>(call, plan, target, seed, maps);
  const int widest = std::max({call.q.tokens(), call.k.tokens(), D, E});
  const double chain =
      2.0 * widest + 2.0 * std::sqrt(static_cast<double>(call.coefficients())) + 64;
  for (int b = 0; b < call.q.batches(); ++b) {
    for (int h = 0; h < call.q.heads(); ++h) {
      const Expected e = expected(call, b, h, chain);
      for (int t = 0; t < call.o.tokens(); ++t) {
        for (int d = 0; d < E; ++d) {
          const double error = std::abs(call.o.value(b, t, h, d) - e.o(t, d));
          const double ratio = error == 0 ? 0 : error / e.bound(t, d);
          if (!(ratio <= 1)) {
            ADD_FAILURE() << "o(" << b << "," << t << "," << h << "," << d << ") is "
                          << call.o.value(b, t, h, d) << ", expected " << e.o(t, d) << " within "
                          << e.bound(t, d);
            return outcome;
          }
          outcome.worst = std::max(outcome.worst, ratio);
        }
      }
    }
  }
  testing::Test::RecordProperty("worst", std::to_string(outcome.worst));
  return outcome;
}
template <int D, int E, bool kRotary = false, class T>
Outcome run_and_compare(Call<T>& call, const mhla::cuda::Plan& plan, mhla::cuda::Device target,
                        unsigned seed) {
  return run_and_compare<D, E, kRotary>(call, plan, target, seed, call.op);
}

}  // namespace cuda_test
