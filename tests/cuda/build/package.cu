// Tests prepared calls of the package for PyTorch (examples/torch/csrc/cuda): their CUDA calls, and
// the host time of the package and of the library.

#include <cstddef>
#include <cstdio>

#include "cuda/build/arguments.hpp"
#include "cuda/build/package.hpp"
#include "forms.hpp"

namespace stand_in {
namespace {

/// Runs a call as the package does.
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

/// Expects CUDA queries only for the first call of each layout, in any order of layouts.
void check(bool causal) {
  const Package one{{}, causal};
  Package other = one, scaled = one, twice = one;
  other.a.blocks = mhla::cuda::contiguous(Arguments::kTokens, 128);
  other.a.mixing = {other.a.mixing.data, Arguments::kBlocks / 2, Arguments::kBlocks / 2,
                    Arguments::kBlocks};
  scaled.a.op.scale = 2;
  twice.a.in.v.strides[1] *= 2;
  const auto asks = [](const Package& x, int device = 0) {
    asked();
    x.run(device);
    const Calls all = asked();
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
  const Calls maps = asked();
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

}  // namespace

void check_package() {
  for (const bool causal : {false, true}) check(causal);
}

void time_package() {
  for (const bool causal : {false, true}) {
    const Package package{{}, causal};
    std::printf("package, %s: %.2f us a call\n", causal ? "causal" : "bidirectional",
                microseconds([&] { package.run(); }));
  }
}

}  // namespace stand_in
