#include "contract/layer.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/add_test.hpp"
#include "support/message_of.hpp"
#include "support/outputs.hpp"

namespace mhla::test {
namespace {

/// Expects the bits of `run` from a call on the same numbers with gaps around them.
template <class A>
void expect_same_bits(const LayerRun<A>& run, void (LayerRun<A>::*call)(const Call&)) {
  for (Index threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    LayerRun<A> wide = run.spread();
    (wide.*call)({.executor = pool});
    const bool forward = call == &LayerRun<A>::forward;
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
    EXPECT_TRUE(same_bits(to.copy(i), before[i])) << i;
  }
}

template <class A>
struct LayerContract {
  const AnyLayer<A>& layer;

  void IsItsDefinitionWithinTheBoundOfItsRoundings() const {
    Random rng(1);
    for (const Sizes& s : layer.sizes()) {
      LayerRun<A> run(layer, rng, s);
      run.forward();
      const auto exact = layer.definition(run.in.duals());
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

  void StridesAndThreadsDoNotChangeABitAndNothingBesideRowsIsTouched() const {
    Random rng(2);
    for (const Sizes& s : layer.sizes()) {
      LayerRun<A> run(layer, rng, s);
      run.forward();
      expect_same_bits(run, &LayerRun<A>::forward);
    }
  }

  void OutputsWhoseRowsShareElementsAreRefusedBeforeOneIsWritten() const {
    Random rng(7);
    for (const Sizes& s : layer.sizes()) {
      LayerRun<A> run(layer, rng, s);
      expect_rows_apart(layer.outputs(s), run.out,
                        [&](const auto& views) { layer.forward(run.views_of(run.in), views, {}); });
    }
  }
};

template <class A>
struct AdjointContract {
  const AnyLayer<A>& layer;

  void AddsTheDerivativeOfTheDefinition() const {
    Random rng(3);
    for (const Sizes& s : layer.sizes()) {
      LayerRun<A> run(layer, rng, s);
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
        const auto y = layer.definition(point).back();
        for (Index e = 0; e < y.size(); ++e) {
          derivative += dy.data()[e] * y.data()[e].tangent;
          size += std::abs(dy.data()[e]) * y.data()[e].tangent_size;
        }
        EXPECT_LE(std::abs(added - derivative), run.bound(size))
            << "input " << i << " of " << testing::PrintToString(s);
      }
    }
  }

  void StridesAndThreadsDoNotChangeABitAndNothingBesideRowsIsTouched() const {
    Random rng(4);
    for (const Sizes& s : layer.sizes()) {
      LayerRun<A> run(layer, rng, s);
      run.forward();
      run.adjoint();
      expect_same_bits(run, &LayerRun<A>::adjoint);
    }
  }

  void AGradientThatIsNotWantedChangesNoOther() const {
    Random rng(5);
    for (const Sizes& s : layer.sizes()) {
      LayerRun<A> run(layer, rng, s);
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

  void GradientsWhoseRowsShareElementsAreRefusedBeforeOneIsWritten() const {
    Random rng(8);
    for (const Sizes& s : layer.sizes()) {
      LayerRun<A> run(layer, rng, s);
      run.forward();
      expect_rows_apart(layer.inputs(s), run.din,
                        [&](const auto& views) { run.adjoint_into(views); });
    }
  }
};

template <class A>
struct WorkspaceContract {
  const AnyLayer<A>& layer;

  void LentMemoryGivesTheSameBitsAndOneByteLessIsRefused() const {
    Random rng(6);
    for (const Sizes& s : layer.sizes()) {
      LayerRun<A> run(layer, rng, s);
      run.forward();
      run.adjoint();
      LayerRun<A> lent = run;
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
      expect(layer.adjoint_bytes(s), [&](const Call& call) { lent.adjoint(call); });
      expect(layer.forward_bytes(s), [&](const Call& call) { lent.forward(call); });
    }
  }
};

}  // namespace

template <class A>
void add_layer_tests(const std::string& prefix, int number, const AnyLayer<A>& layer) {
  const auto suite = [&](const char* name) {
    return prefix + "/" + name + "/" + std::to_string(number);
  };
  const LayerContract<A> forward{layer};
  const AdjointContract<A> adjoint{layer};
  const WorkspaceContract<A> workspace{layer};
  MHLA_ADD_TEST(suite("LayerContract"), forward, IsItsDefinitionWithinTheBoundOfItsRoundings);
  MHLA_ADD_TEST(suite("LayerContract"), forward,
                StridesAndThreadsDoNotChangeABitAndNothingBesideRowsIsTouched);
  MHLA_ADD_TEST(suite("LayerContract"), forward,
                OutputsWhoseRowsShareElementsAreRefusedBeforeOneIsWritten);
  if (layer.adjoint) {
    MHLA_ADD_TEST(suite("AdjointContract"), adjoint, AddsTheDerivativeOfTheDefinition);
    MHLA_ADD_TEST(suite("AdjointContract"), adjoint,
                  StridesAndThreadsDoNotChangeABitAndNothingBesideRowsIsTouched);
    MHLA_ADD_TEST(suite("AdjointContract"), adjoint, AGradientThatIsNotWantedChangesNoOther);
    MHLA_ADD_TEST(suite("AdjointContract"), adjoint,
                  GradientsWhoseRowsShareElementsAreRefusedBeforeOneIsWritten);
  }
  if (layer.forward_bytes)
    MHLA_ADD_TEST(suite("WorkspaceContract"), workspace,
                  LentMemoryGivesTheSameBitsAndOneByteLessIsRefused);
}
template void add_layer_tests(const std::string&, int, const AnyLayer<float>&);
template void add_layer_tests(const std::string&, int, const AnyLayer<double>&);

}  // namespace mhla::test
