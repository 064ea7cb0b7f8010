// Tests prepared calls (attention/prepared.cuh): their CUDA calls, counted by a stand-in for the
// runtime, and the library's host time. The time of the driver is not included.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/build/arguments.hpp"
#include "cuda/build/package.hpp"
#include "mhla/cuda/attention/bidirectional.cuh"
#include "mhla/cuda/attention/causal.cuh"
#include "mhla/cuda/attention/distributed.cuh"
#include "mhla/cuda/attention/gradient.cuh"
#include "mhla/cuda/attention/prepared.cuh"
#include "support/message_of.hpp"

constexpr mhla::Index kBlocks = stand_in::Arguments::kBlocks;

/// The second of three ranks, all with the same arguments.
class MiddleRank {
 public:
  struct Transfer {
    bool done() { return true; }
    void wait() {}
  };

  mhla::Index rank() const { return 1; }
  mhla::Index size() const { return 3; }
  double timeout() const { return 1; }
  cudaStream_t stream() const { return nullptr; }
  void agree(std::span<const std::byte> record, std::span<std::byte> records) {
    for (std::size_t r = 0; r < 3; ++r) {
      std::copy(record.begin(), record.end(),
                records.begin() + static_cast<std::ptrdiff_t>(r * record.size()));
    }
  }
  Transfer all_gather(std::span<const mhla::distributed::SharedRows> arrays,
                      std::span<const mhla::Index> first) {
    stand_in::expect(first[1] == kBlocks && first[3] == 3 * kBlocks, "shares");
    return note(arrays, 2 * kBlocks);
  }
  Transfer exchange(std::span<const mhla::distributed::SharedRows> arrays,
                    std::span<const mhla::distributed::PeerRows> sends,
                    std::span<const mhla::distributed::PeerRows> receives) {
    stand_in::expect(sends.size() == 1 && sends[0].peer == 2, "receives of the last rank alone");
    mhla::Index rows = 0;
    for (const auto& [peer, begin, end] : receives) rows += end - begin;
    return note(arrays, rows);
  }

  std::vector<int> launches_before;  ///< before each transfer since the last clear()
  std::size_t received = 0;          ///< bytes since the last reset

 private:
  Transfer note(std::span<const mhla::distributed::SharedRows> arrays, mhla::Index rows) {
    launches_before.push_back(stand_in::calls.launches);
    for (const auto& array : arrays) received += static_cast<std::size_t>(rows) * array.row_bytes;
    return {};
  }
};

namespace {

using mhla::Index;
using mhla::test::message_of;
using stand_in::Arguments, stand_in::asked, stand_in::calls, stand_in::expect;
using stand_in::microseconds;

/// Expects that only the first run asks CUDA, and that a run after move(), which puts one tensor at
/// address 7, encodes the map of this tensor alone. Returns the calls of the first run.
template <class Run, class Move>
stand_in::Calls check_runs(const Run& run, const Move& move, const std::string& name) {
  const auto calls_of_run = [&run] {
    asked();
    run();
    return asked();
  };
  const stand_in::Calls first = calls_of_run();
  expect(first.settings > 0 && first.questions == 1, name + ": the first");
  const stand_in::Calls second = calls_of_run();
  expect(second.launches == first.launches, name + ": launches of the second");
  expect(second.settings + second.questions == 0 && second.encoded.empty(),
         name + " asks again for what it knows");
  move();
  const stand_in::Calls moved = calls_of_run();
  expect(moved.launches == first.launches && moved.settings == 0 && moved.questions == 1,
         name + ": a moved tensor");
  expect(!moved.encoded.empty(), name + " keeps the map of a tensor that has moved");
  for (const void* tensor : moved.encoded) {
    expect(tensor == Arguments::address(7), name + " encodes what has not moved");
  }
  return first;
}

template <class Call, class... Rotary>
void check(Call& call, Arguments a, const std::string& name, const Rotary&... rotary) {
  const stand_in::Calls first =
      check_runs([&] { call.run(a.in, a.mixing, a.out, a.workspace, nullptr, rotary...); },
                 [&] { a.in.q = Arguments::input(7); }, name);
  expect(first.launches == 3 && first.encoded.size() >= 3, name + ": kernels and maps");
}

void check_gradient(Arguments a) {
  float* const numbers = reinterpret_cast<float*>(Arguments::address(8));
  const mhla::cuda::Gradients<stand_in::T> all{Arguments::tensor(20),
                                               Arguments::tensor(21),
                                               Arguments::tensor(22),
                                               {numbers, kBlocks, kBlocks, kBlocks}};
  const mhla::TensorView<const stand_in::T> dout = Arguments::input(23);
  auto call = mhla::cuda::prepare_bidirectional_gradient<64, 64>(a.in, a.blocks, a.blocks, a.op,
                                                                 dout, all, a.device);
  const auto run = [&](const mhla::cuda::Gradients<stand_in::T>& gradients) {
    call.run(a.in, a.mixing, dout, gradients, a.workspace, nullptr);
  };
  const stand_in::Calls first =
      check_runs([&] { run(all); }, [&] { a.in.v = Arguments::input(7); }, "a gradient");
  expect(first.launches == 9, "kernels of a gradient: " + std::to_string(first.launches));
  const std::string said = message_of<std::invalid_argument>([&] { run({}); });
  expect(said.find("cuda::bidirectional_gradient: dout, gradients and kept have other strides") !=
             std::string::npos,
         "said: " + said);
  expect(asked().launches == 0, "launches before it refuses");
}

/// Checks the launches before and after the transfers of a form over ranks, and its refusals.
template <class Call>
void check_distributed(Call& call, MiddleRank& ranks, Arguments a, const std::string& refusal) {
  const auto run = [&] { call.run(a.in, a.mixing, a.out, a.workspace); };
  const auto said = [&] { return message_of<std::invalid_argument>(run); };
  expect(said() == refusal, said());
  a.mixing = {a.mixing.data, 3 * Arguments::kBlocks, 3 * Arguments::kBlocks,
              3 * Arguments::kBlocks};
  asked();
  ranks.launches_before.clear();
  ranks.received = 0;
  run();
  // All groups of heads are summarised, and each is sent at once, before the first group is mixed.
  const int groups = static_cast<int>(ranks.launches_before.size());
  expect(groups > 1 && asked().launches == 3 * groups, "launches of a rank");
  for (int g = 0; g < groups; ++g) {
    expect(ranks.launches_before[static_cast<std::size_t>(g)] == g + 1,
           "summaries travel after their kernel");
  }
  expect(ranks.received == call.received_bytes(), "received_bytes");
  run();
  const stand_in::Calls second = asked();
  expect(second.settings + second.questions == 0 && second.encoded.empty(),
         "a rank asks again for what it knows");
  a.workspace = {a.workspace.data(), call.plan().workspace_bytes - 1};
  expect(said().find("workspace") != std::string::npos, "takes a workspace that is too small");
  a.out.shape[2] = 11;
  expect(said().find("out has shape") != std::string::npos, "takes other heads");
}

template <class Call>
std::string refusal(Call& call, const Arguments& a) {
  return message_of<std::invalid_argument>(
      [&] { call.run(a.in, a.mixing, a.out, a.workspace, nullptr); });
}

template <class Call>
void check_refusals(Call& call) {
  Arguments heads;
  for (auto* x : {&heads.in.q, &heads.in.k, &heads.in.v}) x->shape[2] = 11;
  heads.out.shape[2] = 11;
  expect(refusal(call, heads) ==
             "mhla::cuda::bidirectional: q has [1, 11] heads, expected [1, 12] as prepared",
         "said: " + refusal(call, heads));
  Arguments strides;
  strides.in.v.strides[1] *= 2;
  expect(
      refusal(call, strides) ==
          "mhla::cuda::bidirectional: q, k, v and out have other strides, expected those that it "
          "was prepared for",
      "said: " + refusal(call, strides));
  Arguments normed;
  normed.in.gain = {reinterpret_cast<const float*>(Arguments::address(8)), 64};
  expect(refusal(call, normed) ==
             "mhla::cuda::bidirectional: gain is given, expected none, as prepared",
         "said: " + refusal(call, normed));
  Arguments small;
  small.workspace = {small.workspace.data(), 256};
  expect(refusal(call, small) != "no exception", "takes a workspace that is too small");
}

/// Prepares kernels of sm_80 in a program with kernels of sm_90a, the reverse, and a device with
/// too little shared memory.
void check_other_devices(const Arguments& a) {
  using mhla::cuda::Arch;
  const auto prepare = [&](const mhla::cuda::Device& device) {
    return mhla::cuda::prepare_bidirectional<64, 64>(a.in, a.blocks, a.blocks, a.op, a.out, device);
  };
  auto forced = prepare(with_arch(a.device, Arch::kSm80));
  asked();
  expect(refusal(forced, a) == "no exception", "refuses kernels of sm_80");
  const stand_in::Calls sm80 = asked();
  expect(sm80.launches == 3 && sm80.encoded.empty(), "kernels of sm_80 have no tensor maps");

  stand_in::most_threads = 32;  // code of sm_80, or its PTX
  expect(mhla::cuda::current_device().arch == Arch::kSm80, "code of sm_80");
  auto newer = prepare(with_arch(mhla::cuda::current_device(), Arch::kSm90a));
  asked();
  const std::string said = refusal(newer, a);
  expect(said.find("the plan is for sm_90a, the program has code of sm_80") != std::string::npos,
         "said: " + said);
  expect(asked().launches == 0, "launches kernels that the program does not have");
  stand_in::most_threads = 64;

  const std::string small =
      message_of<std::invalid_argument>([&] { prepare(with_shared_bytes(a.device, 16384)); });
  expect(small ==
             "mhla::cuda::bidirectional: device has 16384 bytes of shared memory per thread "
             "block, expected at least 40960 for kernel mixing of the three-stage form",
         "said: " + small);
}

/// Checks that a function makes the CUDA calls of a prepared call's first run.
template <class Form>
void check_function(const Form& form, const Arguments& a, const std::string& name) {
  asked();
  form(a);
  const stand_in::Calls once = asked();
  expect(once.launches == 3 && once.questions == 1, name + " as a function");
}

template <class Call, class Form>
void time(Call& call, const Form& form, Arguments a, const char* name) {
  const double same = microseconds([&] { call.run(a.in, a.mixing, a.out, a.workspace, nullptr); });
  Index at = 0;
  const double moved = microseconds([&] {
    ++at;
    a.in = {Arguments::input(10 + at % 2), Arguments::input(12 + at % 2),
            Arguments::input(14 + at % 2)};
    a.out = Arguments::tensor(16 + at % 2);
    call.run(a.in, a.mixing, a.out, a.workspace, nullptr);
    calls.encoded.clear();
  });
  const double once = microseconds([&] {
    form(a);
    calls.encoded.clear();
  });
  std::printf("%s: %.2f us a run, %.2f us with all tensors moved, %.2f us as a function\n", name,
              same, moved, once);
}

}  // namespace

int main(int count, char**) {
  stand_in::most_threads = 64;  // code of sm_90a
  const Arguments a;
  auto all =
      mhla::cuda::prepare_bidirectional<64, 64>(a.in, a.blocks, a.blocks, a.op, a.out, a.device);
  auto earlier = mhla::cuda::prepare_causal<64, 64>(a.in, a.blocks, a.op, a.out, a.device);
  expect(all.plan().form == mhla::cuda::Form::kThreeStage, "the form");
  check(all, a, "bidirectional");
  check(earlier, a, "causal");
  const mhla::MatrixView<const float> angles{reinterpret_cast<const float*>(Arguments::address(8)),
                                             Arguments::kTokens, 64, 64};
  const mhla::cuda::Rotary rotary{angles, angles};
  auto turning = mhla::cuda::prepare_bidirectional<64, 64>(a.in, a.blocks, a.blocks, a.op, a.out,
                                                           a.device, rotary);
  check(turning, a, "bidirectional with a rotary embedding", rotary);
  check_refusals(all);
  check_gradient(a);
  check_other_devices(a);
  stand_in::check_package();
  MiddleRank ranks;
  auto parts = mhla::cuda::prepare_distributed<64, 64>(ranks, a.in, a.blocks, a.blocks, a.op, a.out,
                                                       a.device);
  auto earlier_parts =
      mhla::cuda::prepare_distributed_causal<64, 64>(ranks, a.in, a.blocks, a.op, a.out, a.device);
  const std::string shape = ": mixing has shape [64, 64], expected ";
  check_distributed(parts, ranks, a, "mhla::cuda::distributed" + shape + "[192, 192]");
  check_distributed(earlier_parts, ranks, a,
                    "mhla::cuda::distributed_causal" + shape + "at least [192, 192]");
  const auto bidirectional = [](const Arguments& x) {
    mhla::cuda::bidirectional<64, 64>(x.in, x.blocks, x.blocks, x.mixing, x.op, x.out, x.workspace,
                                      x.device, nullptr);
  };
  const auto causal = [](const Arguments& x) {
    mhla::cuda::causal<64, 64>(x.in, x.blocks, x.mixing, x.op, x.out, x.workspace, x.device,
                               nullptr);
  };
  check_function(bidirectional, a, "bidirectional");
  check_function(causal, a, "causal");
  if (count > 1) {  // --times
    time(all, bidirectional, a, "bidirectional");
    time(earlier, causal, a, "causal");
    stand_in::time_package();
  }
  return stand_in::breaches == 0 ? 0 : 1;
}
