/// \file
/// The streams of csrc/cuda/streams.hpp, with kernels in the emulator. bfloat16 of widths (128,
/// 256) has kernels.

#include "cuda/streams.hpp"

#include <array>
#include <cstdint>
#include <mhla/cuda/attention/streaming_inputs.cuh>
#include <mhla/cuda/kernel/streaming_state.cuh>
#include <mhla/cuda/kernel/streaming_step_sm80.cuh>
#include <mhla/cuda/launch/prefill.cuh>
#include <type_traits>

#include "cuda/views.hpp"
#include "emulator.hpp"

namespace mhla_torch {
namespace {

using mhla::cuda::Precision;
using mhla::cuda::Problem;

constexpr const char* kName = "emulated";

template <class T, int D, int E>
constexpr bool kHasStreams = std::is_same_v<T, Eigen::bfloat16>&& D == 128 && E == 256;

template <class T>
mhla::cuda::Inputs<T> tokens(const StreamCall& call) {
  return {of_type<const T>(call.q), of_type<const T>(call.k), of_type<const T>(call.v)};
}

mhla::cuda::TokenBlocks blocks_of(const StreamCall& call) {
  return mhla::cuda::detail::stream_blocks(kName, call.mixing.rows, call.block, call.op);
}

/// Tokens seen as kernels count them.
std::int32_t counted(const StreamCall& call, mhla::Index seen) {
  const bool ends = call.op.decay_terms == 0;
  return static_cast<std::int32_t>(ends ? seen : mhla::cuda::endless_counter(seen, call.block));
}

/// Describes the tensors of a call as those of kernels.
template <class T, int D, int E>
mhla::cuda::StreamingStepParameters parameters(const StreamCall& call, const Problem& problem) {
  const std::int32_t terms = call.op.decay_terms;
  const auto layout = mhla::cuda::streaming_state_layout(
      call.sequences * call.q.heads(), terms > 0 ? 2 : call.mixing.rows, call.block, D, E,
      Precision::kSingle, terms);
  if (static_cast<std::int64_t>(call.state.size()) < layout.bytes) {
    throw mhla::option_error("emulated: state is too small");
  }
  return {.q = problem.q,
          .k = problem.k,
          .v = problem.v,
          .o = problem.o,
          .blocks = blocks_of(call),
          .heads = static_cast<std::int32_t>(call.q.heads()),
          .query_map = call.op.query_map,
          .key_map = call.op.key_map,
          .normalization = {call.op.denominator, call.op.scale, call.op.eps},
          .mixing = mhla::cuda::detail::stream_mixing(kName, call.mixing, blocks_of(call), call.op),
          .state = layout.at(reinterpret_cast<unsigned char*>(call.state.data())),
          .sequences = static_cast<std::int32_t>(call.sequences),
          .sequence_of = nullptr,
          .terms = terms};
}

template <class T, int D, int E>
Problem problem_of(const StreamCall& call, mhla::Index seen) {
  mhla::cuda::detail::expect_data(kName, tokens<T>(call), of_type<T>(call.out));
  return mhla::cuda::detail::prefill_problem<D, E>(kName, tokens<T>(call), blocks_of(call),
                                                   counted(call, seen), call.q.heads(), call.op,
                                                   of_type<T>(call.out));
}

void track(Emulation& device, const StreamCall& call) {
  device.track("q", call.q), device.track("k", call.k), device.track("v", call.v);
  device.track("out", call.out), device.track("mixing", call.mixing);
  device.track("state", call.state);
}

[[noreturn]] void refuse_widths() {
  throw mhla::option_error(
      "emulated: q and v are of other types or widths than bfloat16 (128, 256)");
}

}  // namespace

template <class T, int D, int E>
void Streams<T, D, E>::prefill(const StreamCall& call, mhla::Index first, mhla::Index seen,
                               const std::function<mhla::Workspace(std::size_t)>& workspace,
                               void*) {
  if constexpr (kHasStreams<T, D, E>) {
    mhla::cuda::detail::expect_sequences(kName, first, call.q.batch(), call.sequences);
    const Problem problem = problem_of<T, D, E>(call, seen);
    const std::int32_t before = counted(call, seen);
    const auto plan = mhla::cuda::prefill_plan<D, E>(problem, before, blocks_of(call).slots(),
                                                     Emulation::kTarget);
    Emulation device(sizeof(T));
    track(device, call);
    auto parts = parameters<T, D, E>(call, problem);
    parts.first = static_cast<std::int32_t>(first);
    mhla::cuda::run_prefill<mhla::cuda::bfloat16, D, E>(
        plan, problem, parts, before, device.track("workspace", workspace(plan.workspace_bytes)),
        Emulation::kTarget, device);
  } else {
    refuse_widths();
  }
}

template <class T, int D, int E>
void Streams<T, D, E>::step(const StreamCall& call, const std::int32_t* sequence_of, void*) {
  if constexpr (kHasStreams<T, D, E>) {
    const auto count = static_cast<mhla::Index>(call.q.batch());
    if (call.q.tokens() != 1 || (sequence_of == nullptr && count != call.sequences)) {
      throw mhla::shape_error("emulated: q is not one token of each sequence");
    }
    Emulation device(sizeof(T));
    track(device, call);
    auto token = parameters<T, D, E>(call, problem_of<T, D, E>(call, 0));
    token.sequence_of = sequence_of;
    if (sequence_of != nullptr) {
      device.track("sequence_of", std::span(sequence_of, static_cast<std::size_t>(count)));
    }
    mhla::cuda::detail::with_stream_kernels(call.op, [&]<Precision P, bool kDecays>() {
      using Step = mhla::cuda::StreamingStepParameters;
      device.run<mhla::cuda::StreamingStepSm80<mhla::cuda::bfloat16, D, E, P, Step, kDecays>>(
          token, static_cast<std::int32_t>(count * call.q.heads()));
    });
  } else {
    refuse_widths();
  }
}

template struct Streams<Eigen::bfloat16, 32, 32>;
template struct Streams<Eigen::bfloat16, 48, 48>;
template struct Streams<Eigen::bfloat16, 48, 96>;
template struct Streams<Eigen::bfloat16, 64, 64>;
template struct Streams<Eigen::bfloat16, 72, 72>;
template struct Streams<Eigen::bfloat16, 96, 48>;
template struct Streams<Eigen::bfloat16, 96, 96>;
template struct Streams<Eigen::bfloat16, 128, 128>;
template struct Streams<Eigen::bfloat16, 128, 256>;
template struct Streams<Eigen::bfloat16, 256, 256>;
template struct Streams<Eigen::half, 32, 32>;
template struct Streams<Eigen::half, 48, 48>;
template struct Streams<Eigen::half, 48, 96>;
template struct Streams<Eigen::half, 64, 64>;
template struct Streams<Eigen::half, 72, 72>;
template struct Streams<Eigen::half, 96, 48>;
template struct Streams<Eigen::half, 96, 96>;
template struct Streams<Eigen::half, 128, 128>;
template struct Streams<Eigen::half, 128, 256>;
template struct Streams<Eigen::half, 256, 256>;

}  // namespace mhla_torch
