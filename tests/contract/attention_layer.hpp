#pragma once

/// \file
/// Promises of every layer that has parameters (layer/layer.hpp). backward() adds the derivative of
/// the forward. Bits depend neither on threads, nor on strides, nor on other items of the batch.
/// They depend neither on a record kept by the forward nor on the memory used. A call with a
/// workspace allocates nothing.
///
/// A layer is tested through a type L with
///
///     using Layer                    VisionLayer<double>, ...
///     static Options options()
///     static constexpr Index kRows   of an item; kBatch items are run
///     kCondition                     columns of the condition, if the layer has one
///
/// golden_test.cpp compares the numbers with the authors' code.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "mhla/layer/layer.hpp"
#include "support/allocations.hpp"
#include "support/layer_oracle.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla::test {

/// A layer with random parameters, its input, and a gradient of its output.
template <class L>
struct AttentionLayerRun {
  using Layer = typename L::Layer;
  using A = typename Layer::A;

  static constexpr bool kConditioned = requires { L::kCondition; };

  Layer layer;
  Index batch;
  Matrix<A> x, c, dy;

  explicit AttentionLayerRun(Index batch_ = L::kBatch) : layer(L::options()), batch(batch_) {
    Random rng(7);
    for (A& p : layer.parameters()) p = static_cast<A>(rng.uniform(-0.5, 0.5));
    // Items are drawn one after another, so a smaller batch has the first items of a larger one.
    x = rng.matrix<A>(rows(), layer.options().channels);
    Random other(8);
    dy = other.matrix<A>(x.rows(), x.cols());
    Random another(6);
    if constexpr (kConditioned) c = another.matrix<A>(batch, L::kCondition);
  }
  Index rows() const { return batch * L::kRows; }
  Matrix<A> forward(const LayerCall& call = {}) const {
    Matrix<A> y(x.rows(), x.cols());
    forward(MatrixView<const A>(x), y, call);
    return y;
  }
  /// Runs the layer from `from` into `y`, with the condition if it has one.
  void forward(MatrixView<const A> from, MatrixView<A> y, LayerCall call = {}) const {
    call.batch = call.batch == 0 ? batch : call.batch;
    if constexpr (kConditioned) {
      layer(from, c, y, call);
    } else {
      layer(from, y, call);
    }
  }

  struct Gradients {
    Matrix<A> dx, dc;
    std::vector<A> parameters;
    friend bool operator==(const Gradients&, const Gradients&) = default;
  };
  /// Initial gradients, to which backward() adds.
  Gradients before() const {
    Random rng(9);
    Gradients g{rng.matrix<A>(x.rows(), x.cols()), rng.matrix<A>(c.rows(), c.cols()),
                std::vector<A>(layer.parameters().size())};
    for (A& p : g.parameters) p = static_cast<A>(rng.uniform(-1, 1));
    return g;
  }
  Gradients backward(const LayerCall& call = {}) const {
    Gradients g = before();
    backward(x, dy, g.dx, g.dc, g.parameters, call);
    return g;
  }
  void backward(MatrixView<const A> from, MatrixView<const A> d, MatrixView<A> dx, MatrixView<A> dc,
                std::span<A> parameters, LayerCall call = {}) const {
    call.batch = batch;
    if constexpr (kConditioned) {
      layer.backward(from, c, d, dx, dc, parameters, call);
    } else {
      layer.backward(from, d, dx, parameters, call);
    }
  }
};

template <class L>
class AttentionLayerContract : public testing::Test {};
TYPED_TEST_SUITE_P(AttentionLayerContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AttentionLayerContract);

TYPED_TEST_P(AttentionLayerContract, BackwardAddsTheDerivative) {
  AttentionLayerRun<TypeParam> run(1);
  const auto before = run.before(), after = run.backward();
  if constexpr (Defined<typename TypeParam::Layer>) {
    return expect_its_adjoint(run.layer, run.batch, run.x, run.dy, before, after);
  }
  Random rng(10);
  // A layer without a definition is checked by central differences, along a random direction of x
  // and then of each parameter tensor. The step is too small to cross a kink of a relu here. The
  // error is of roundings, about 1e-16 of the sum over h.
  const auto expect_derivative = [&](const std::string& name, auto&& move, double added) {
    constexpr double kStep = 1e-6;
    const auto value_at = [&](double h) {
      AttentionLayerRun<TypeParam> moved = run;
      move(moved, h);
      return moved.forward().cwiseProduct(run.dy).sum();
    };
    const double derivative = (value_at(kStep) - value_at(-kStep)) / (2 * kStep);
    EXPECT_NEAR(added, derivative, 1e-7 * (1 + std::abs(derivative))) << name;
  };
  const auto towards = rng.template matrix<double>(run.x.rows(), run.x.cols());
  expect_derivative(
      "x", [&](auto& moved, double h) { moved.x += h * towards; },
      (after.dx - before.dx).cwiseProduct(towards).sum());
  if (run.kConditioned) {
    const auto condition = rng.template matrix<double>(run.c.rows(), run.c.cols());
    expect_derivative(
        "c", [&](auto& moved, double h) { moved.c += h * condition; },
        (after.dc - before.dc).cwiseProduct(condition).sum());
  }
  for (const Parameter& p : run.layer.table().all()) {
    std::vector<double> direction(static_cast<std::size_t>(p.size));
    double added = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(p.begin) + i;
      direction[i] = rng.uniform(-1, 1);
      added += (after.parameters[at] - before.parameters[at]) * direction[i];
    }
    expect_derivative(
        p.name,
        [&](auto& moved, double h) {
          const auto numbers = moved.layer.table().numbers(moved.layer.parameters(), p.name);
          for (std::size_t i = 0; i < direction.size(); ++i) numbers[i] += h * direction[i];
        },
        added);
  }
}

TYPED_TEST_P(AttentionLayerContract, ThreadsAndAKeptRecordDoNotChangeABit) {
  const AttentionLayerRun<TypeParam> run;
  const auto y = run.forward();
  const auto gradients = run.backward();
  for (const Index threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    std::vector<std::byte> kept(run.layer.kept_bytes(run.rows(), run.batch), std::byte{0xFF});
    EXPECT_EQ(run.forward({.executor = pool}), y);
    EXPECT_EQ(run.forward({.executor = pool, .kept = kept}), y);
    EXPECT_TRUE(run.backward({.executor = pool, .kept = kept}) == gradients);
    MovedBytes elsewhere(kept, 16);
    EXPECT_TRUE(run.backward({.executor = pool, .kept = elsewhere.get()}) == gradients);
    EXPECT_TRUE(elsewhere.intact());
    EXPECT_TRUE(run.backward({.executor = pool}) == gradients);
  }
}

TYPED_TEST_P(AttentionLayerContract, ItemsOfABatchDoNotSeeEachOther) {
  const AttentionLayerRun<TypeParam> all, first(1);
  ASSERT_EQ(first.x, all.x.topRows(first.rows()));
  EXPECT_EQ(first.forward(), all.forward().topRows(first.rows()));
  EXPECT_EQ(first.layer.parameters().size(), all.layer.parameters().size());
}

TYPED_TEST_P(AttentionLayerContract, StridesDoNotChangeABitAndNothingBesideRowsIsTouched) {
  const AttentionLayerRun<TypeParam> run;
  using A = typename AttentionLayerRun<TypeParam>::A;
  constexpr Index kGap = 3;
  const Index c = run.x.cols();
  const auto widened = [&](const Matrix<A>& m) {
    Matrix<A> wide = Matrix<A>::Constant(m.rows(), c + 2 * kGap, 7);
    wide.middleCols(kGap, c) = m;
    return wide;
  };
  const auto inside = [&]<class T>(T* data, const Matrix<A>& m) {
    return MatrixView<T>(data + kGap, m.rows(), c, m.cols());
  };
  const auto expect_inside = [&](const Matrix<A>& wide, const Matrix<A>& m) {
    EXPECT_EQ(wide, widened(m));
  };
  const Matrix<A> x = widened(run.x), dy = widened(run.dy);
  const auto before = run.before(), gradients = run.backward();
  Matrix<A> y = widened(run.dy), dx = widened(before.dx);
  auto parameters = before.parameters;
  const MatrixView<const A> from = inside(x.data(), x);
  run.forward(from, inside(y.data(), y));
  expect_inside(y, run.forward());
  Matrix<A> dc = before.dc;
  run.backward(from, inside(dy.data(), dy), inside(dx.data(), dx), dc, parameters);
  expect_inside(dx, gradients.dx);
  EXPECT_EQ(parameters, gradients.parameters);
}

TYPED_TEST_P(AttentionLayerContract, AGradientThatIsNotWantedChangesNoOther) {
  const AttentionLayerRun<TypeParam> run;
  const auto gradients = run.backward();
  auto alone = run.before();
  run.backward(run.x, run.dy, alone.dx, {}, {});
  run.backward(run.x, run.dy, {}, alone.dc, {});
  run.backward(run.x, run.dy, {}, {}, alone.parameters);
  EXPECT_TRUE(alone == gradients);
}

TYPED_TEST_P(AttentionLayerContract, LentMemoryGivesTheSameBitsAndOneByteLessIsRefused) {
  const AttentionLayerRun<TypeParam> run;
  const auto y = run.forward();
  const auto gradients = run.backward();
  const LayerCall sizes{.batch = run.batch};
  const auto expect = [&](std::size_t bytes, auto&& call) {
    std::vector<std::byte> memory(bytes, std::byte{0xFF});
    call(memory, true);
    memory.pop_back();
    EXPECT_THROW(call(memory, false), option_error);
  };
  expect(run.layer.workspace_bytes(run.rows(), sizes),
         [&](auto& memory, bool) { EXPECT_EQ(run.forward({.workspace = memory}), y); });
  expect(run.layer.backward_workspace_bytes(run.rows(), sizes), [&](auto& memory, bool) {
    EXPECT_TRUE(run.backward({.workspace = memory}) == gradients);
  });
  expect(run.layer.kept_bytes(run.rows(), run.batch), [&](auto& memory, bool right) {
    EXPECT_EQ(run.forward({.kept = memory}), y);
    if (right) {
      EXPECT_TRUE(run.backward({.kept = memory}) == gradients);
    }
  });
}

TYPED_TEST_P(AttentionLayerContract, ACallWithAWorkspaceAllocatesNothing) {
#ifdef MHLA_TEST_COUNTS_MALLOC
  const AttentionLayerRun<TypeParam> run;
  ThreadPool pool(3);
  const LayerCall sizes{.batch = run.batch, .executor = pool};
  std::vector<std::byte> memory(run.layer.workspace_bytes(run.rows(), sizes)),
      more(run.layer.backward_workspace_bytes(run.rows(), sizes)),
      kept(run.layer.kept_bytes(run.rows(), run.batch));
  auto y = run.x;
  auto g = run.before();
  EXPECT_EQ(allocations([&] {
              run.forward(run.x, y, {.workspace = memory, .executor = pool});
              run.forward(run.x, y, {.workspace = memory, .executor = pool, .kept = kept});
              run.backward(run.x, run.dy, g.dx, g.dc, g.parameters,
                           {.workspace = more, .executor = pool, .kept = kept});
            }),
            0);
#endif
}

/// Expects that bytes grow with the number of items until Index cannot hold them and the call is
/// refused.
template <class L>
void expect_bytes_to_grow_until_they_are_refused() {
  const typename L::Layer layer(L::options());
  const auto expect = [](const char* what, auto&& bytes_of) {
    std::size_t last = 0;
    bool refused = false;
    for (int k = 0; k < 56; ++k) {
      const Index batch = Index{1} << k;
      try {
        const std::size_t bytes = bytes_of(L::kRows * batch, batch);
        ASSERT_FALSE(refused) << what << " of " << batch << " items";
        ASSERT_GT(bytes, last) << what << " of " << batch << " items";
        last = bytes;
      } catch (const shape_error&) {
        refused = true;
      }
    }
    EXPECT_TRUE(refused) << what;
  };
  expect("kept", [&](Index rows, Index batch) { return layer.kept_bytes(rows, batch); });
  expect("forward",
         [&](Index rows, Index batch) { return layer.workspace_bytes(rows, {.batch = batch}); });
  expect("backward", [&](Index rows, Index batch) {
    return layer.backward_workspace_bytes(rows, {.batch = batch});
  });
}

TYPED_TEST_P(AttentionLayerContract, BytesGrowWithTheBatchUntilTheyAreRefused) {
  expect_bytes_to_grow_until_they_are_refused<TypeParam>();
}

TYPED_TEST_P(AttentionLayerContract, WhatDoesNotFitIsRefusedBeforeAnythingIsTouched) {
  const AttentionLayerRun<TypeParam> run;
  using A = typename AttentionLayerRun<TypeParam>::A;
  const Index rows = run.rows(), c = run.x.cols();
  Matrix<A> y = Matrix<A>::Constant(rows, c, 7), narrow = Matrix<A>::Constant(rows, c - 1, 7);
  std::vector<A> few(run.layer.parameters().size() - 1, A(7));
  EXPECT_THROW(run.forward(narrow, y), shape_error);
  EXPECT_THROW(run.forward(run.x, narrow), shape_error);
  EXPECT_THROW(run.forward(run.x, y, {.batch = rows + 1}), shape_error);
  EXPECT_THROW(run.backward(run.x, narrow, y, {}, {}), shape_error);
  EXPECT_THROW(run.backward(run.x, run.dy, narrow, {}, {}), shape_error);
  EXPECT_THROW(run.backward(run.x, run.dy, y, {}, few), shape_error);
  const MatrixView<A> one_row(y.data(), rows, c, 0), short_rows(y.data(), rows, c, c - 1);
  for (const MatrixView<A>& repeated : {one_row, short_rows}) {
    EXPECT_THROW(run.forward(run.x, repeated), option_error);
    EXPECT_THROW(run.backward(run.x, run.dy, repeated, {}, {}), option_error);
  }
  if constexpr (run.kConditioned) {
    auto other = run;
    other.c = Matrix<A>::Zero(run.c.rows() + 1, run.c.cols());
    EXPECT_THROW(other.forward(run.x, y), shape_error);
    EXPECT_THROW(other.backward(run.x, run.dy, y, {}, {}), shape_error);
    Matrix<A> dc = Matrix<A>::Constant(run.c.rows(), run.c.cols() - 1, 7);
    EXPECT_THROW(run.backward(run.x, run.dy, y, dc, {}), shape_error);
    if (run.c.rows() > 1) {
      const MatrixView<A> repeated(dc.data(), run.c.rows(), run.c.cols(), 0);
      EXPECT_THROW(run.backward(run.x, run.dy, y, repeated, {}), option_error);
    }
    EXPECT_TRUE((dc.array() == 7).all());
  }
  EXPECT_TRUE((y.array() == 7).all() && (narrow.array() == 7).all());
  EXPECT_TRUE(std::all_of(few.begin(), few.end(), [](A g) { return g == 7; }));
}

REGISTER_TYPED_TEST_SUITE_P(AttentionLayerContract, BackwardAddsTheDerivative,
                            ThreadsAndAKeptRecordDoNotChangeABit, ItemsOfABatchDoNotSeeEachOther,
                            StridesDoNotChangeABitAndNothingBesideRowsIsTouched,
                            AGradientThatIsNotWantedChangesNoOther,
                            ACallWithAWorkspaceAllocatesNothing,
                            BytesGrowWithTheBatchUntilTheyAreRefused,
                            LentMemoryGivesTheSameBitsAndOneByteLessIsRefused,
                            WhatDoesNotFitIsRefusedBeforeAnythingIsTouched);

}  // namespace mhla::test
