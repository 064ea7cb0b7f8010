#include "contract/layer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "mhla/core/error.hpp"
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

/// Runs `calls` and expects that `to` has the bits that it had before.
template <class A, class Calls>
void expect_untouched(const Tensors<A>& to, const Calls& calls) {
  const Tensors<A> before = to;
  calls();
  for (std::size_t i = 0; i < to.count(); ++i) {
    EXPECT_TRUE(same_bits(to.copy(i), before.copy(i))) << i;
  }
}

/// Expects that call(views) refuses each matrix of `to` with rows that share elements.
template <class A, class Call>
void expect_rows_apart(const Shapes& shapes, Tensors<A>& to, const Call& call) {
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
}

/// Expects that call(views) refuses view i with a column less, or with a row less, by its name.
template <class T, class Call>
void expect_named(const std::string& function, const std::string& name, TensorShape shape,
                  Views<T> views, std::size_t i, bool row, const Call& call) {
  const Index size = row ? shape.rows : shape.cols;
  if (size < 2) return;
  (row ? views[i].rows : views[i].cols) = size - 1;
  const std::string text = message_of<shape_error>([&] { call(views); });
  const std::string has = "mhla::" + function + ": " + name + " has ";
  if (shape.is_row) {
    const std::string few =
        has + std::to_string(size - 1) + " elements, expected " + std::to_string(size);
    EXPECT_TRUE(text == few || text == few + " or none") << few << ", not " << text;
    return;
  }
  const std::string other =
      has + "shape " + detail::shape_text(std::array{views[i].rows, views[i].cols}) + ", expected ";
  const std::string any = other + "[any, " + std::to_string(shape.cols) + "]";
  EXPECT_TRUE(text == other + detail::shape_text(std::array{shape.rows, shape.cols}) ||
              (!row && text == any))
      << other << ", not " << text;
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
      expect_untouched(run.out, [&] {
        expect_rows_apart(layer.outputs(s), run.out, [&](const auto& views) {
          layer.forward(run.views_of(run.in), views, {});
        });
      });
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
      expect_untouched(run.din, [&] {
        expect_rows_apart(layer.inputs(s), run.din,
                          [&](const auto& views) { run.adjoint_into(views); });
      });
    }
  }
};

template <class A>
struct ArgumentContract {
  const AnyLayer<A>& layer;

  void OutputsAndInputsOfOtherShapesAreNamedBeforeAnythingIsWritten() const {
    Random rng(9);
    const auto names = layer.names();
    for (const Sizes& s : layer.sizes()) {
      LayerRun<A> run(layer, rng, s);
      const Shapes inputs = layer.inputs(s), outputs = layer.outputs(s);
      expect_untouched(run.out, [&] {
        for (std::size_t i = 1; i < inputs.size(); ++i) {
          if (names[1 + i].front() == '-') continue;
          expect_named(names[0], names[1 + i], inputs[i], run.views_of(run.in), i, false,
                       [&](const auto& views) { layer.forward(views, run.out.views(), {}); });
        }
        for (std::size_t o = 0; o < outputs.size(); ++o) {
          for (const bool row : {false, true}) {
            expect_named(
                names[0], names[names.size() - outputs.size() + o], outputs[o], run.out.views(), o,
                row, [&](const auto& views) { layer.forward(run.views_of(run.in), views, {}); });
          }
        }
      });
    }
  }

  void ABiasThatIsLeftOutIsZero() const {
    Random rng(11);
    const auto names = layer.names();
    for (const Sizes& s : layer.sizes()) {
      for (std::size_t i = 0; i < layer.inputs(s).size(); ++i) {
        if (!names[1 + i].ends_with("bias")) continue;
        LayerRun<A> run(layer, rng, s), without = run;
        const MatrixView<A> bias = run.in.inside(i);
        std::fill_n(bias.data, bias.cols, A(0));
        run.forward();
        Views<const A> in = run.views_of(run.in);
        in[i] = {};
        layer.forward(in, without.out.views(), {});
        EXPECT_TRUE(without.out == run.out) << names[1 + i] << testing::PrintToString(s);
      }
    }
  }

  void GradientsOfOtherShapesAreNamedBeforeAnythingIsWritten() const {
    Random rng(10);
    const auto names = layer.names();
    for (const Sizes& s : layer.sizes()) {
      LayerRun<A> run(layer, rng, s);
      run.forward();
      const Shapes inputs = layer.inputs(s);
      const std::string function = names[0] + "_adjoint";
      expect_untouched(run.din, [&] {
        for (const bool row : {false, true}) {
          expect_named(function, "dy", layer.outputs(s).back(), run.views_of(run.dy), 0, row,
                       [&](const auto& dy) {
                         layer.adjoint(run.views_of(run.in), run.views_of(run.out), dy[0],
                                       run.din.views(), {});
                       });
          for (std::size_t i = 0; i < inputs.size(); ++i) {
            const std::string input = names[1 + i].substr(names[1 + i].front() == '-');
            const bool weight = input.ends_with("weight") || input.ends_with("bias");
            expect_named(function, (weight ? "gradient of " : "d") + input, inputs[i],
                         run.din.views(), i, row,
                         [&](const auto& views) { run.adjoint_into(views); });
          }
        }
      });
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
  const ArgumentContract<A> arguments{layer};
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
  if (layer.names) {
    MHLA_ADD_TEST(suite("ArgumentContract"), arguments,
                  OutputsAndInputsOfOtherShapesAreNamedBeforeAnythingIsWritten);
    MHLA_ADD_TEST(suite("ArgumentContract"), arguments,
                  GradientsOfOtherShapesAreNamedBeforeAnythingIsWritten);
    MHLA_ADD_TEST(suite("ArgumentContract"), arguments, ABiasThatIsLeftOutIsZero);
  }
  if (layer.forward_bytes)
    MHLA_ADD_TEST(suite("WorkspaceContract"), workspace,
                  LentMemoryGivesTheSameBitsAndOneByteLessIsRefused);
}
template void add_layer_tests(const std::string&, int, const AnyLayer<float>&);
template void add_layer_tests(const std::string&, int, const AnyLayer<double>&);

}  // namespace mhla::test
