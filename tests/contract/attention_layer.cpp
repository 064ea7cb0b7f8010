#include "contract/attention_layer.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/add_test.hpp"
#include "support/allocations.hpp"
#include "support/outputs.hpp"
#include "support/stopping_executor.hpp"

namespace mhla::test {
namespace {

struct AttentionLayerContract {
  std::unique_ptr<AnyLayerRun> (*make)(Index batch);

  void BackwardAddsTheDerivative() const {
    const auto one = make(1);
    const AnyLayerRun& run = *one;
    const auto before = run.before(), after = run.backward();
    if (run.has_definition()) return run.expect_adjoint(before, after);
    Random rng(10);
    // A layer without a definition is checked by central differences, along a random direction of x
    // and then of each parameter tensor. The step is too small to cross a kink of a relu here. The
    // error is of roundings, about 1e-16 of the sum over h.
    const auto expect_derivative = [&](const std::string& name, auto&& move, double added) {
      constexpr double kStep = 1e-6;
      const auto value_at = [&](double h) {
        const auto moved = run.copy();
        move(*moved, h);
        return moved->forward().cwiseProduct(run.dy).sum();
      };
      const double derivative = (value_at(kStep) - value_at(-kStep)) / (2 * kStep);
      EXPECT_NEAR(added, derivative, 1e-7 * (1 + std::abs(derivative))) << name;
    };
    const auto towards = rng.matrix<double>(run.x.rows(), run.x.cols());
    expect_derivative(
        "x", [&](auto& moved, double h) { moved.x += h * towards; },
        (after.dx - before.dx).cwiseProduct(towards).sum());
    if (run.conditioned()) {
      const auto condition = rng.matrix<double>(run.c.rows(), run.c.cols());
      expect_derivative(
          "c", [&](auto& moved, double h) { moved.c += h * condition; },
          (after.dc - before.dc).cwiseProduct(condition).sum());
    }
    for (const Parameter& p : run.table().all()) {
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
            const auto numbers = moved.table().numbers(moved.parameters(), p.name);
            for (std::size_t i = 0; i < direction.size(); ++i) numbers[i] += h * direction[i];
          },
          added);
    }
  }

  void ThreadsAndAKeptRecordDoNotChangeABit() const {
    const auto all = make(0);
    const AnyLayerRun& run = *all;
    const auto y = run.forward();
    const auto gradients = run.backward();
    for (const Index threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      std::vector<std::byte> kept(run.kept_bytes(run.rows(), run.batch), std::byte{0xFF});
      EXPECT_EQ(run.forward({.executor = pool}), y);
      EXPECT_EQ(run.forward({.executor = pool, .kept = kept}), y);
      EXPECT_TRUE(run.backward({.executor = pool, .kept = kept}) == gradients);
      MovedBytes elsewhere(kept, 16);
      EXPECT_TRUE(run.backward({.executor = pool, .kept = elsewhere.get()}) == gradients);
      EXPECT_TRUE(elsewhere.intact());
      EXPECT_TRUE(run.backward({.executor = pool}) == gradients);
    }
  }

  void ItemsOfABatchDoNotSeeEachOther() const {
    const auto all = make(0), first = make(1);
    ASSERT_EQ(first->x, all->x.topRows(first->rows()));
    EXPECT_EQ(first->forward(), all->forward().topRows(first->rows()));
    EXPECT_EQ(first->parameters().size(), all->parameters().size());
  }

  void StridesDoNotChangeABitAndNothingBesideRowsIsTouched() const {
    const auto all = make(0);
    const AnyLayerRun& run = *all;
    constexpr Index kGap = 3;
    const Index c = run.x.cols();
    const auto widened = [&](const Matrix<double>& m) {
      Matrix<double> wide = Matrix<double>::Constant(m.rows(), c + 2 * kGap, 7);
      wide.middleCols(kGap, c) = m;
      return wide;
    };
    const auto inside = [&]<class T>(T* data, const Matrix<double>& m) {
      return MatrixView<T>(data + kGap, m.rows(), c, m.cols());
    };
    const auto expect_inside = [&](const Matrix<double>& wide, const Matrix<double>& m) {
      EXPECT_EQ(wide, widened(m));
    };
    const Matrix<double> x = widened(run.x), dy = widened(run.dy);
    const auto before = run.before(), gradients = run.backward();
    Matrix<double> y = widened(run.dy), dx = widened(before.dx);
    auto parameters = before.parameters;
    const MatrixView<const double> from = inside(x.data(), x);
    run.forward(from, inside(y.data(), y));
    expect_inside(y, run.forward());
    Matrix<double> dc = before.dc;
    run.backward(from, inside(dy.data(), dy), inside(dx.data(), dx), dc, parameters);
    expect_inside(dx, gradients.dx);
    EXPECT_EQ(parameters, gradients.parameters);
  }

  void AGradientThatIsNotWantedChangesNoOther() const {
    const auto all = make(0);
    const AnyLayerRun& run = *all;
    const auto gradients = run.backward();
    auto alone = run.before();
    run.backward(run.x, run.dy, alone.dx, {}, {});
    run.backward(run.x, run.dy, {}, alone.dc, {});
    run.backward(run.x, run.dy, {}, {}, alone.parameters);
    EXPECT_TRUE(alone == gradients);
  }

  void LentMemoryGivesTheSameBitsAndOneByteLessIsRefused() const {
    const auto all = make(0);
    const AnyLayerRun& run = *all;
    const auto y = run.forward();
    const auto gradients = run.backward();
    const LayerCall sizes{.batch = run.batch};
    const auto expect = [&](std::size_t bytes, auto&& call) {
      std::vector<std::byte> memory(bytes, std::byte{0xFF});
      call(memory, true);
      memory.pop_back();
      EXPECT_THROW(call(memory, false), option_error);
    };
    expect(run.workspace_bytes(run.rows(), sizes),
           [&](auto& memory, bool) { EXPECT_EQ(run.forward({.workspace = memory}), y); });
    expect(run.backward_workspace_bytes(run.rows(), sizes), [&](auto& memory, bool) {
      EXPECT_TRUE(run.backward({.workspace = memory}) == gradients);
    });
    expect(run.kept_bytes(run.rows(), run.batch), [&](auto& memory, bool right) {
      EXPECT_EQ(run.forward({.kept = memory}), y);
      if (right) {
        EXPECT_TRUE(run.backward({.kept = memory}) == gradients);
      }
    });
  }

  void AForwardThatStopsLeavesNothingThatIsKept() const {
    const auto all = make(0);
    const AnyLayerRun& run = *all;
    std::vector<std::byte> kept(run.kept_bytes(run.rows(), run.batch));
    Matrix<double> y = run.x, dx = Matrix<double>::Constant(run.rows(), run.x.cols(), 7);
    std::vector<double> gradients(run.parameters().size(), 7);
    for (const Index calls : {0, 1, 2, 3, 5, 8, 13, 21, 34}) {
      run.forward({.kept = kept});
      StoppingExecutor stops{calls};
      try {
        run.forward(run.x, y, {.executor = stops, .kept = kept});
        break;  // it has fewer calls
      } catch (const std::runtime_error&) {
      }
      EXPECT_THROW(run.backward(run.x, run.dy, dx, {}, gradients, {.kept = kept}), option_error)
          << calls;
      EXPECT_TRUE((dx.array() == 7).all()) << calls;
      EXPECT_EQ(std::ranges::count(gradients, 7), std::ssize(gradients)) << calls;
    }
  }

  void ACallWithAWorkspaceAllocatesNothing() const {
#ifdef MHLA_TEST_COUNTS_MALLOC
    const auto all = make(0);
    const AnyLayerRun& run = *all;
    ThreadPool pool(3);
    const LayerCall sizes{.batch = run.batch, .executor = pool};
    std::vector<std::byte> memory(run.workspace_bytes(run.rows(), sizes)),
        more(run.backward_workspace_bytes(run.rows(), sizes)),
        kept(run.kept_bytes(run.rows(), run.batch));
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

  void BytesGrowWithTheBatchUntilTheyAreRefused() const {
    expect_bytes_to_grow_until_they_are_refused(*make(1));
  }

  void WhatDoesNotFitIsRefusedBeforeAnythingIsTouched() const {
    const auto all = make(0);
    const AnyLayerRun& run = *all;
    const Index rows = run.rows(), c = run.x.cols();
    Matrix<double> y = Matrix<double>::Constant(rows, c, 7),
                   narrow = Matrix<double>::Constant(rows, c - 1, 7);
    std::vector<double> few(run.parameters().size() - 1, 7);
    EXPECT_THROW(run.forward(narrow, y), shape_error);
    EXPECT_THROW(run.forward(run.x, narrow), shape_error);
    EXPECT_THROW(run.forward(run.x, y, {.batch = rows + 1}), shape_error);
    EXPECT_THROW(run.backward(run.x, narrow, y, {}, {}), shape_error);
    EXPECT_THROW(run.backward(run.x, run.dy, narrow, {}, {}), shape_error);
    EXPECT_THROW(run.backward(run.x, run.dy, y, {}, few), shape_error);
    const MatrixView<double> one_row(y.data(), rows, c, 0), short_rows(y.data(), rows, c, c - 1);
    for (const MatrixView<double>& repeated : {one_row, short_rows}) {
      EXPECT_THROW(run.forward(run.x, repeated), option_error);
      EXPECT_THROW(run.backward(run.x, run.dy, repeated, {}, {}), option_error);
    }
    if (run.conditioned()) {
      const auto changed = run.copy();
      AnyLayerRun& other = *changed;
      other.c = Matrix<double>::Zero(run.c.rows() + 1, run.c.cols());
      EXPECT_THROW(other.forward(run.x, y), shape_error);
      EXPECT_THROW(other.backward(run.x, run.dy, y, {}, {}), shape_error);
      Matrix<double> dc = Matrix<double>::Constant(run.c.rows(), run.c.cols() - 1, 7);
      EXPECT_THROW(run.backward(run.x, run.dy, y, dc, {}), shape_error);
      if (run.c.rows() > 1) {
        const MatrixView<double> repeated(dc.data(), run.c.rows(), run.c.cols(), 0);
        EXPECT_THROW(run.backward(run.x, run.dy, y, repeated, {}), option_error);
      }
      EXPECT_TRUE((dc.array() == 7).all());
    }
    EXPECT_TRUE((y.array() == 7).all() && (narrow.array() == 7).all());
    EXPECT_TRUE(std::all_of(few.begin(), few.end(), [](double g) { return g == 7; }));
  }
};

}  // namespace

void expect_bytes_to_grow_until_they_are_refused(const AnyLayerRun& run) {
  const auto expect = [&](const char* what, auto&& bytes_of) {
    std::size_t last = 0;
    bool refused = false;
    for (int k = 0; k < 56; ++k) {
      const Index batch = Index{1} << k;
      try {
        const std::size_t bytes = bytes_of(run.rows_of_item * batch, batch);
        ASSERT_FALSE(refused) << what << " of " << batch << " items";
        ASSERT_GT(bytes, last) << what << " of " << batch << " items";
        last = bytes;
      } catch (const shape_error&) {
        refused = true;
      }
    }
    EXPECT_TRUE(refused) << what;
  };
  expect("kept", [&](Index rows, Index batch) { return run.kept_bytes(rows, batch); });
  expect("forward",
         [&](Index rows, Index batch) { return run.workspace_bytes(rows, {.batch = batch}); });
  expect("backward", [&](Index rows, Index batch) {
    return run.backward_workspace_bytes(rows, {.batch = batch});
  });
}

void add_attention_layer_tests(const std::string& suite,
                               std::unique_ptr<AnyLayerRun> (*make)(Index batch)) {
  const AttentionLayerContract laws{make};
  MHLA_ADD_TEST(suite, laws, BackwardAddsTheDerivative);
  MHLA_ADD_TEST(suite, laws, ThreadsAndAKeptRecordDoNotChangeABit);
  MHLA_ADD_TEST(suite, laws, ItemsOfABatchDoNotSeeEachOther);
  MHLA_ADD_TEST(suite, laws, StridesDoNotChangeABitAndNothingBesideRowsIsTouched);
  MHLA_ADD_TEST(suite, laws, AGradientThatIsNotWantedChangesNoOther);
  MHLA_ADD_TEST(suite, laws, LentMemoryGivesTheSameBitsAndOneByteLessIsRefused);
  MHLA_ADD_TEST(suite, laws, AForwardThatStopsLeavesNothingThatIsKept);
  MHLA_ADD_TEST(suite, laws, ACallWithAWorkspaceAllocatesNothing);
  MHLA_ADD_TEST(suite, laws, BytesGrowWithTheBatchUntilTheyAreRefused);
  MHLA_ADD_TEST(suite, laws, WhatDoesNotFitIsRefusedBeforeAnythingIsTouched);
}

}  // namespace mhla::test
