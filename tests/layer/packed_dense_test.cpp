// Tests that a layer packed in advance gives the bits of a layer packed in every call.

#include "mhla/layer/packed_dense.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "mhla/layer/gated_mlp.hpp"
#include "mhla/layer/mlp.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using test::message_of;

template <class A>
class PackedDenseOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(PackedDenseOf, Accumulators);

/// x [n,5], hidden [n,h], y [n,o], with the parameters of two layers.
template <class A>
struct Layers {
  Matrix<A> x, w1, b1, w2, b2;
  std::vector<std::byte> memory[2];

  Layers(Index n, Index h, Index o) {
    test::Random rng(static_cast<std::uint64_t>(n));
    x = rng.matrix<A>(n, 5), w1 = rng.matrix<A>(h, 5), b1 = rng.matrix<A>(1, h);
    w2 = rng.matrix<A>(o, h), b2 = rng.matrix<A>(1, o);
    memory[0].resize(packed_dense_bytes<A>(5, h));
    memory[1].resize(packed_dense_bytes<A>(h, o));
  }
  static std::span<const A> row(const Matrix<A>& m) {
    return {m.data(), static_cast<std::size_t>(m.size())};
  }
  PackedMlp<A> pack() {
    return {PackedDense<A>(memory[0], {w1, row(b1)}), PackedDense<A>(memory[1], {w2, row(b2)})};
  }
};

TYPED_TEST(PackedDenseOf, GivesTheBitsOfTheUnpackedCallsAndHasItsOwnWeight) {
  using A = TypeParam;
  ThreadPool pool(3);
  for (const auto& [n, h, o] : {std::array<Index, 3>{0, 3, 2}, {1, 1, 1}, {70, 19, 33}}) {
    Layers<A> l(n, h, o);
    Matrix<A> pre(n, h), hidden(n, h), y(n, o), alone(n, h), none(n, h);
    mlp(l.x, {{l.w1, l.row(l.b1)}, {l.w2, l.row(l.b2)}}, pre, hidden, y);
    dense(l.x, {l.w1, {}}, none);
    const PackedMlp<A> packed = l.pack();
    std::vector<std::byte> memory(packed_dense_bytes<A>(5, h));
    const PackedDense<A> no_bias(memory, {l.w1, {}});
    l.w1.setConstant(7);
    Matrix<A> packed_pre(n, h), packed_hidden(n, h), packed_y(n, o);
    mlp(l.x, packed, packed_pre, packed_hidden, packed_y, pool);
    EXPECT_TRUE(packed_pre == pre && packed_hidden == hidden && packed_y == y) << n;
    dense(l.x, packed.first, alone, pool);
    EXPECT_TRUE(alone == pre) << n;
    dense(l.x, no_bias, alone);
    EXPECT_TRUE(alone == none) << n;
  }
}

/// The layers are so large that few rows are split by outputs, and weights are packed in pieces.
TYPED_TEST(PackedDenseOf, WorkersThatShareTheOutputsOfARowGiveTheBitsOfOne) {
  using A = TypeParam;
  constexpr Index kIn = 301, kWide = 903, kOut = 270;
  test::Random rng(3);
  const Matrix<A> w1 = rng.matrix<A>(kWide, kIn), w2 = rng.matrix<A>(kOut, kWide);
  const Matrix<A> b1 = rng.matrix<A>(1, kWide), b2 = rng.matrix<A>(1, kOut);
  const DenseView<const A> first{w1, Layers<A>::row(b1)}, second{w2, Layers<A>::row(b2)};
  for (const Index n : {1, 3, 130}) {
    const Matrix<A> x = rng.matrix<A>(n, kIn), dy = rng.matrix<A>(n, kOut);
    const auto run = [&](const ExecutorRef& executor) {
      const Call call{.executor = executor};
      Matrix<A> all(n, 6 * kWide + 3 * kOut + 3 * kIn);  // results side by side
      all.setZero();
      Index used = 0;
      const auto next = [&](Index cols) {
        used += cols;
        return MatrixView<A>(all).middle_cols(used - cols, cols);
      };
      const auto pre = next(kWide), hidden = next(kWide);
      dense(x, first, next(kWide), call);
      mlp(x, {first, second}, pre, hidden, next(kOut), call);
      const auto gate = next(kWide), up = next(kWide), product = next(kWide);
      gated_mlp(x, {first, first, second}, gate, up, product, next(kOut), call);
      dense_adjoint(hidden, second, dy, pre, {}, call);
      mlp_adjoint(x, {first, second}, pre, hidden, dy, next(kIn), {}, call);
      gated_mlp_adjoint(x, {first, first, second}, gate, up, dy, next(kIn), {}, call);
      return all;
    };
    ThreadPool pool(3);
    EXPECT_TRUE(run(pool) == run({})) << n;
  }
}

TEST(PackedDenseErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  Layers<float> l(4, 7, 3);
  const PackedMlp<float> packed = l.pack();
  const Matrix<float> kept = Matrix<float>::Constant(4, 7, 7);
  Matrix<float> y = kept, narrow(4, 3);
  EXPECT_EQ(message_of<error>([&] { dense(y, packed.first, y); }),
            "mhla::dense: x has shape [4, 7], expected [any, 5]");
  EXPECT_EQ(message_of<error>([&] { dense(l.x, packed.first, narrow); }),
            "mhla::dense: y has shape [4, 3], expected [4, 7]");
  EXPECT_EQ(message_of<error>([&] {
              mlp(l.x, PackedMlp<float>{packed.first, packed.first}, y, y, y);
            }),
            "mhla::mlp: second has 5 inputs, expected 7 (the outputs of the first)");
  EXPECT_TRUE(y == kept);
  const std::size_t bytes = l.memory[0].size();
  l.memory[0].pop_back();
  EXPECT_EQ(message_of<error>([&] { l.pack(); }),
            "mhla::PackedDense: workspace has " + std::to_string(bytes - 1) +
                " bytes, expected at least " + std::to_string(bytes) + " (see workspace_bytes)");
  EXPECT_EQ(message_of<error>([&] {
              PackedDense<float>({}, {l.w1, l.row(l.b2)});
            }),
            "mhla::PackedDense: bias has 3 elements, expected 7 or none");
}

}  // namespace
}  // namespace mhla
