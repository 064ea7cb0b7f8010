// Prepared calls (attention/prepared.cuh), and those of the package for PyTorch: what they ask of
// CUDA, counted by a runtime that stands in for it, and what of the host's time is the library's
// own. A driver's share cannot be seen here.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/build/runtime.hpp"
#include "forms.hpp"
#include "mhla/cuda/attention/bidirectional.cuh"
#include "mhla/cuda/attention/causal.cuh"
#include "mhla/cuda/attention/distributed.cuh"
#include "mhla/cuda/attention/prepared.cuh"

constexpr mhla::Index kBlocks = 64;

/// The second of three ranks of the same arguments.
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

  std::vector<int> launches_before;  ///< of every transfer since it was cleared
  std::size_t received = 0;          ///< since it was 0

 private:
  Transfer note(std::span<const mhla::distributed::SharedRows> arrays, mhla::Index rows) {
    launches_before.push_back(stand_in::calls.launches);
    for (const auto& array : arrays) received += static_cast<std::size_t>(rows) * array.row_bytes;
    return {};
  }
};

namespace {

using mhla::Index;
using stand_in::calls;
using stand_in::expect;
using T = Eigen::bfloat16;

/// 12 heads of a sequence in blocks of 64, [B, N, H, 64]. Addresses that nobody follows.
struct Arguments {
  static constexpr Index kTokens = 4096, kBlocks = ::kBlocks, kHeads = 12;

  static T* address(Index at) { return reinterpret_cast<T*>(at << 28); }
  static mhla::TensorView<T> tensor(Index at) {
    return mhla::bnhd(address(at), 1, kTokens, kHeads, 64);
  }
  static mhla::TensorView<const T> input(Index at) {
    return mhla::bnhd<const T>(address(at), 1, kTokens, kHeads, 64);
  }

  mhla::cuda::Inputs<T> in{input(1), input(2), input(3)};
  mhla::TensorView<T> out = tensor(4);
  mhla::MatrixView<const float> mixing{reinterpret_cast<const float*>(address(5)), kBlocks, kBlocks,
                                       kBlocks};
  mhla::Workspace workspace{reinterpret_cast<std::byte*>(address(6)), std::size_t{1} << 28};
  mhla::cuda::TokenBlocks blocks = mhla::cuda::contiguous(kTokens, 64);
  mhla::cuda::Operator op;
  mhla::cuda::Device device{mhla::cuda::Arch::kSm90a, 132};
};

/// What was asked for since the last time.
stand_in::Calls asked() { return std::exchange(calls, {}); }

template <class Call>
void check(Call& call, Arguments a, const std::string& name) {
  const auto run = [&] { call.run(a.in, a.mixing, a.out, a.workspace, nullptr); };
  asked();
  run();
  const stand_in::Calls first = asked();
  expect(first.launches == 3 && first.settings > 0 && first.questions > 0, name + ": the first");
  expect(first.encoded.size() >= 3, name + ": maps of the first");
  run();
  const stand_in::Calls second = asked();
  expect(second.launches == 3, name + ": launches of the second");
  expect(second.settings + second.questions == 0 && second.encoded.empty(),
         name + " asks again for what it knows");

  a.in.q = Arguments::input(7);
  run();
  const stand_in::Calls moved = asked();
  expect(moved.launches == 3 && moved.settings == 0, name + ": a moved tensor");
  expect(!moved.encoded.empty(), name + " keeps the map of a tensor that has moved");
  for (const void* tensor : moved.encoded) {
    expect(tensor == Arguments::address(7), name + " encodes what has not moved");
  }
}

/// A form over ranks: what a run launches before its summaries travel and after, and refuses.
template <class Call>
void check_distributed(Call& call, MiddleRank& ranks, Arguments a, const std::string& refusal) {
  const auto run = [&] { call.run(a.in, a.mixing, a.out, a.workspace); };
  const auto said = [&] {
    try {
      run();
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  expect(said() == refusal, said());
  a.mixing = {a.mixing.data, 3 * Arguments::kBlocks, 3 * Arguments::kBlocks,
              3 * Arguments::kBlocks};
  asked();
  ranks.launches_before.clear();
  ranks.received = 0;
  run();
  // All groups of heads are summarised, each sent at once, before the first one is mixed.
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
  try {
    call.run(a.in, a.mixing, a.out, a.workspace, nullptr);
  } catch (const std::logic_error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
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
  expect(!refusal(call, small).empty(), "takes a workspace that is too small");
}

/// The same as the package calls it.
struct Package {
  using Forms = mhla_torch::Forms<T, 64, 64>;
  Arguments a;
  bool causal;

  mhla_torch::Call call() const {
    const auto bytes = [](const auto& x) {
      return mhla::TensorView<const std::byte>{reinterpret_cast<const std::byte*>(x.data), x.shape,
                                               x.strides};
    };
    const mhla::TensorView<std::byte> out{reinterpret_cast<std::byte*>(a.out.data), a.out.shape,
                                          a.out.strides};
    return {bytes(a.in.q), bytes(a.in.k), bytes(a.in.v), out,     a.blocks,
            a.blocks,      causal,        a.op,          a.mixing};
  }
  void run(int device = 0) const {
    const mhla_torch::Call all = call();
    Forms::check(all);
    Forms::run(
        all, device,
        [&](std::size_t bytes) {
          return mhla::Workspace{a.workspace.data(), bytes};
        },
        nullptr);
  }
};

/// Calls of the same layout ask CUDA nothing, also with others in between, and others do.
void check_package(bool causal) {
  const Package one{{}, causal};
  Package other = one, scaled = one, twice = one;
  other.a.blocks = mhla::cuda::contiguous(Arguments::kTokens, 128);
  other.a.mixing = {other.a.mixing.data, kBlocks / 2, kBlocks / 2, kBlocks};
  scaled.a.op.scale = 2;
  twice.a.in.v.strides[1] *= 2;
  const auto asks = [](const Package& x, int device = 0) {
    asked();
    x.run(device);
    const stand_in::Calls all = asked();
    expect(all.launches == 3, "launches of the package");
    return all.settings + all.questions > 0;
  };
  for (const Package& x : {one, other, scaled, twice}) {
    expect(asks(x), "another layout is taken for one that was");
    expect(!asks(x), "the package asks again for what it knows");
  }
  expect(!asks(one), "the package forgets what it was asked before");
  expect(asks(one, 1), "another device is taken for the first one");
  Package moved = one;
  moved.a.in.q = Arguments::input(7);
  asked();
  moved.run();
  const stand_in::Calls maps = asked();
  expect(!maps.encoded.empty(), "the package keeps the map of a tensor that has moved");
  for (const void* tensor : maps.encoded) {
    expect(tensor == Arguments::address(7), "the package encodes what has not moved");
  }
  for (Index i = 1; i <= 16; ++i) {
    scaled.a.op.scale = static_cast<float>(2 + i);
    scaled.run();
  }
  expect(asks(one), "the package keeps all layouts");
}

template <class Work>
double microseconds(const Work& work) {
  constexpr int kCalls = 20000;
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (int j = 0; j < kCalls; ++j) work();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    best = std::min(best, time.count() / kCalls);
  }
  return best;
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
  check_refusals(all);
  for (const bool causal : {false, true}) check_package(causal);
  MiddleRank ranks;
  auto parts = mhla::cuda::prepare_distributed<64, 64>(ranks, a.in, a.blocks, a.blocks, a.op, a.out,
                                                       a.device);
  auto earlier_parts =
      mhla::cuda::prepare_distributed_causal<64, 64>(ranks, a.in, a.blocks, a.op, a.out, a.device);
  const std::string shape = ": mixing has shape [64, 64], expected ";
  check_distributed(parts, ranks, a, "mhla::cuda::distributed" + shape + "[192, 192]");
  check_distributed(earlier_parts, ranks, a,
                    "mhla::cuda::distributed_causal" + shape + "at least [192, 192]");
  if (count > 1) {  // --times
    time(
        all,
        [](const Arguments& x) {
          mhla::cuda::bidirectional<64, 64>(x.in, x.blocks, x.blocks, x.mixing, x.op, x.out,
                                            x.workspace, x.device, nullptr);
        },
        a, "bidirectional");
    time(
        earlier,
        [](const Arguments& x) {
          mhla::cuda::causal<64, 64>(x.in, x.blocks, x.mixing, x.op, x.out, x.workspace, x.device,
                                     nullptr);
        },
        a, "causal");
    for (const bool causal : {false, true}) {
      const Package package{a, causal};
      std::printf("package, %s: %.2f us a call\n", causal ? "causal" : "bidirectional",
                  microseconds([&] { package.run(); }));
    }
  }
  return stand_in::breaches == 0 ? 0 : 1;
}
