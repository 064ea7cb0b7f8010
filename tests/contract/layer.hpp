#pragma once

/// \file
/// Promises of every layer: it is its definition, its adjoint adds the derivative of the
/// definition, and bits depend neither on strides, nor on threads, nor on the memory used.
///
/// A layer is tested through a type L<A> with
///
///     using Scalar = A
///     static std::vector<Sizes> sizes()           on which it is tested, many rows among them
///     static Shapes inputs(s), outputs(s)         of its tensors: data and parameters; results
///     static void forward(in, out, call)          lists of views
///     static std::vector<Matrix<Dual<A>>> definition(in)    of all outputs
///     static Index roundings(s)                   most of them on the way of a term, as in
///     dual.hpp
///
/// to be differentiable (AdjointContract) with
///
///     static void adjoint(in, out, dy, din, call)    dy: gradient of the last output
///     kLoss, if it is there: dy is 1
///
/// and to have a workspace (WorkspaceContract) with forward_bytes(s) and adjoint_bytes(s).

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/layer_run.hpp"
#include "support/message_of.hpp"

namespace mhla::test {

/// Expects the bits of `run` from a call on the same numbers with gaps around them.
template <class L>
void expect_same_bits(const LayerRun<L>& run, void (LayerRun<L>::*call)(const Call&)) {
  for (Index threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    LayerRun<L> wide = run.spread();
    (wide.*call)({.executor = pool});
    const bool forward = call == &LayerRun<L>::forward;
    EXPECT_TRUE(forward ? wide.out == run.out : wide.din == run.din)
        << testing::PrintToString(run.sizes) << " on " << threads;
    EXPECT_TRUE(wide.out.kept_to_itself() && wide.din.kept_to_itself())
        << testing::PrintToString(run.sizes);
  }
}

/// Expects that call(views) refuses each matrix of `to` with rows that share elements.
template <class A, class Call>
void expect_rows_apart(const Shapes& shapes, Tensors<A>& to, const Call& call) {
  const std::vector<Matrix<A>> before = [&] {
    std::vector<Matrix<A>> all;
    for (std::size_t i = 0; i < to.count(); ++i) all.push_back(to.copy(i));
    return all;
  }();
  for (std::size_t i = 0; i < to.count(); ++i) {
    if (shapes[i].is_row || shapes[i].rows < 2 || shapes[i].cols == 0) continue;
    for (const Index stride : {Index{0}, shapes[i].cols - 1}) {
      Views<A> views = to.views();
      views[i].row_stride = stride;
      const std::string text = message_of<option_error>([&] { call(views); });
      EXPECT_NE(text.find(" has strides [" + std::to_string(stride) + ", 1], and elements that"),
                std::string::npos)
          << i << ": " << text;
    }
  }
  for (std::size_t i = 0; i < to.count(); ++i) {
    const Matrix<A> after = to.copy(i);
    EXPECT_EQ(std::memcmp(after.data(), before[i].data(),
                          static_cast<std::size_t>(after.size()) * sizeof(A)),
              0)
        << i;
  }
}

// ------------------------------------------------------------------------------------------------

template <class L>
class LayerContract : public testing::Test {};
TYPED_TEST_SUITE_P(LayerContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LayerContract);

TYPED_TEST_P(LayerContract, IsItsDefinitionWithinTheBoundOfItsRoundings) {
  Random rng(1);
  for (const Sizes& s : TypeParam::sizes()) {
    LayerRun<TypeParam> run(rng, s);
    run.forward();
    const auto exact = TypeParam::definition(run.in.duals());
    for (std::size_t o = 0; o < exact.size(); ++o) {
      const auto y = run.out.copy(o);
      for (Index i = 0; i < y.size(); ++i) {
        const auto& number = exact[o].data()[i];
        ASSERT_LE(std::abs(y.data()[i] - number.value), run.bound(number.size))
            << "output " << o << " of " << testing::PrintToString(s);
      }
    }
  }
}

TYPED_TEST_P(LayerContract, StridesAndThreadsDoNotChangeABitAndNothingBesideRowsIsTouched) {
  Random rng(2);
  for (const Sizes& s : TypeParam::sizes()) {
    LayerRun<TypeParam> run(rng, s);
    run.forward();
    expect_same_bits(run, &LayerRun<TypeParam>::forward);
  }
}

TYPED_TEST_P(LayerContract, OutputsWhoseRowsShareElementsAreRefusedBeforeOneIsWritten) {
  Random rng(7);
  for (const Sizes& s : TypeParam::sizes()) {
    LayerRun<TypeParam> run(rng, s);
    expect_rows_apart(TypeParam::outputs(s), run.out, [&](const auto& views) {
      TypeParam::forward(run.views_of(run.in), views, {});
    });
  }
}

REGISTER_TYPED_TEST_SUITE_P(LayerContract, IsItsDefinitionWithinTheBoundOfItsRoundings,
                            OutputsWhoseRowsShareElementsAreRefusedBeforeOneIsWritten,
                            StridesAndThreadsDoNotChangeABitAndNothingBesideRowsIsTouched);

template <class L>
class AdjointContract : public testing::Test {};
TYPED_TEST_SUITE_P(AdjointContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AdjointContract);

TYPED_TEST_P(AdjointContract, AddsTheDerivativeOfTheDefinition) {
  Random rng(3);
  for (const Sizes& s : TypeParam::sizes()) {
    LayerRun<TypeParam> run(rng, s);
    run.forward();
    run.adjoint();
    const auto dy = run.dy.copy(0);
    for (std::size_t i = 0; i < run.in.count(); ++i) {  // along a direction of one of the inputs
      auto point = run.in.duals();
      const auto before = run.before.copy(i), after = run.din.copy(i);
      Wide added = 0, derivative = 0, size = 0;
      for (Index e = 0; e < before.size(); ++e) {
        auto& number = point[i].data()[e];
        number.tangent = rng.uniform(-1, 1);
        number.tangent_size = std::abs(number.tangent);
        added += (static_cast<Wide>(after.data()[e]) - before.data()[e]) * number.tangent;
        size += std::abs(before.data()[e]) * number.tangent_size;
      }
      const auto y = TypeParam::definition(point).back();
      for (Index e = 0; e < y.size(); ++e) {
        derivative += dy.data()[e] * y.data()[e].tangent;
        size += std::abs(dy.data()[e]) * y.data()[e].tangent_size;
      }
      EXPECT_LE(std::abs(added - derivative), run.bound(size))
          << "input " << i << " of " << testing::PrintToString(s);
    }
  }
}

TYPED_TEST_P(AdjointContract, StridesAndThreadsDoNotChangeABitAndNothingBesideRowsIsTouched) {
  Random rng(4);
  for (const Sizes& s : TypeParam::sizes()) {
    LayerRun<TypeParam> run(rng, s);
    run.forward();
    run.adjoint();
    expect_same_bits(run, &LayerRun<TypeParam>::adjoint);
  }
}

TYPED_TEST_P(AdjointContract, AGradientThatIsNotWantedChangesNoOther) {
  Random rng(5);
  for (const Sizes& s : TypeParam::sizes()) {
    LayerRun<TypeParam> run(rng, s);
    run.forward();
    run.adjoint();
    auto alone = run.before;
    for (std::size_t i = 0; i < alone.count(); ++i) {
      auto wanted = decltype(alone.views())(alone.count());
      wanted[i] = alone.views()[i];
      run.adjoint_into(wanted);
    }
    EXPECT_TRUE(alone == run.din) << testing::PrintToString(s);
  }
}

TYPED_TEST_P(AdjointContract, GradientsWhoseRowsShareElementsAreRefusedBeforeOneIsWritten) {
  Random rng(8);
  for (const Sizes& s : TypeParam::sizes()) {
    LayerRun<TypeParam> run(rng, s);
    run.forward();
    expect_rows_apart(TypeParam::inputs(s), run.din,
                      [&](const auto& views) { run.adjoint_into(views); });
  }
}

REGISTER_TYPED_TEST_SUITE_P(AdjointContract, AddsTheDerivativeOfTheDefinition,
                            GradientsWhoseRowsShareElementsAreRefusedBeforeOneIsWritten,
                            StridesAndThreadsDoNotChangeABitAndNothingBesideRowsIsTouched,
                            AGradientThatIsNotWantedChangesNoOther);

template <class L>
class WorkspaceContract : public testing::Test {};
TYPED_TEST_SUITE_P(WorkspaceContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WorkspaceContract);

TYPED_TEST_P(WorkspaceContract, LentMemoryGivesTheSameBitsAndOneByteLessIsRefused) {
  Random rng(6);
  for (const Sizes& s : TypeParam::sizes()) {
    LayerRun<TypeParam> run(rng, s);
    run.forward();
    run.adjoint();
    LayerRun<TypeParam> lent = run;
    lent.din = run.before;
    const auto expect = [&](std::size_t bytes, auto&& call) {
      std::vector<std::byte> memory(bytes, std::byte{0xFF});
      call(Call{.workspace = memory});
      EXPECT_TRUE(lent.out == run.out && lent.din == run.din) << testing::PrintToString(s);
      if (bytes < 2) return;
      memory.pop_back();
      EXPECT_THROW(call(Call{.workspace = memory}), option_error);
      EXPECT_TRUE(lent.out == run.out && lent.din == run.din) << testing::PrintToString(s);
    };
    expect(TypeParam::adjoint_bytes(s), [&](const Call& call) { lent.adjoint(call); });
    expect(TypeParam::forward_bytes(s), [&](const Call& call) { lent.forward(call); });
  }
}

REGISTER_TYPED_TEST_SUITE_P(WorkspaceContract, LentMemoryGivesTheSameBitsAndOneByteLessIsRefused);

}  // namespace mhla::test
