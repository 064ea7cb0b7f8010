#include "mhla/layer/graph.hpp"

#include <cstddef>
#include <memory>
#include <vector>

#include "contract/attention_layer.hpp"
#include "mhla/layer/block.hpp"
#include "mhla/layer/steps.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

struct ForkOptions {
  Index channels = 0, tokens = 0, links = 0;
};

/// A layer whose values have several readers. Three are computed again, one of them from another,
/// and three share a gradient. A condition scales and shifts a value.
struct ForkFamily {
  using Scalar = double;
  using Options = ForkOptions;
  static constexpr const char* kName = "ForkLayer";
  static constexpr bool kConditioned = true;

  static ForkOptions checked(const ForkOptions& o) { return o; }
  static Index tokens(const ForkOptions& o) { return o.tokens; }
  static Value build(Graph<double>& g, Value x, const ForkOptions& o) {
    const Index c = o.channels;
    const auto dense = [&](Value from, const char* name, Index outputs) {
      return dense_step(g, from, g.dense(name, {outputs, from.cols}));
    };
    const ParameterSlice gain = g.tensor("gain", {c / 2}, Initial::ones());
    const auto angles =
        std::make_shared<RotaryTable<double>>(RotaryTable<double>::sequence(o.tokens, c));
    const Value scale = g.condition(2 * c);
    const Value wide = dense(x, "wide", 2 * c);
    const Value normed = g.remade(rms_norm_step(g, wide.part(1, 2), gain, 1e-3));
    const Value modulated = g.remade(modulate_step(g, normed, scale.part(0, 2), scale.part(1, 2)));
    const Value turned = dense(x, "turned", c);
    const Value rotated = g.remade(rotary_step<double>(g, turned, angles, 1));
    Value sum = dense(modulated, "first", c);
    const Value third = dense(rotated, "third", c);
    const Value second = dense(relu_step(g, modulated, 0.1), "second", c);
    add_step(g, second, third);
    add_step(g, sum, second);
    for (Index i = 0; i < o.links; ++i) sum = relu_step(g, sum, 0);
    return residual_step(g, dense(sum, "out", c), sum);
  }
};

struct ForkLayer {
  using Layer = mhla::Layer<ForkFamily>;
  static constexpr Index kRows = 70, kBatch = 2, kCondition = 12;
  static ForkOptions options() { return {.channels = 6, .tokens = kRows}; }
};

TEST_ATTENTION_LAYERS(Graph, testing::Types<ForkLayer>);

TEST(Graph, KeepsWhatAdjointsReadAndSharesTheRest) {
  const ForkLayer::Layer layer(ForkLayer::options());
  const Index rows = ForkLayer::kRows;
  // On the tape: wide, turned, the sum and relu, in rows of 24 numbers.
  EXPECT_EQ(layer.kept_bytes(rows), 4 * rows * 24 * sizeof(double) + 64);
}

/// A layer of any number of equal steps.
ForkOptions chain(Index links) {
  ForkOptions o = ForkLayer::options();
  o.links = links;
  return o;
}

TEST(Graph, ScratchDoesNotGrowWithTheSteps) {
  const ForkLayer::Layer some(chain(3)), many(chain(200));
  const Index rows = ForkLayer::kRows;
  const auto kept = [&](const auto& layer) { return layer.kept_bytes(rows); };
  EXPECT_EQ(many.workspace_bytes(rows) - kept(many), some.workspace_bytes(rows) - kept(some));
  EXPECT_EQ(many.backward_workspace_bytes(rows) - kept(many),
            some.backward_workspace_bytes(rows) - kept(some));
}

/// Layers that a graph cannot be: of no step, of another width, one that backward needs as a whole,
/// and sums into the input, into a value that an adjoint reads, of the output, and of a value that
/// another step reads.
template <int kCase>
struct OddFamily : ForkFamily {
  static Value build(Graph<double>& g, Value x, const ForkOptions& o) {
    if (kCase == 0) return x;
    if (kCase == 1) return dense_step(g, x, g.dense("out", {o.tokens, x.cols}));
    const Value y = dense_step(g, x, g.dense("out", {x.cols, x.cols}));
    const auto last = g.dense("last", {x.cols, x.cols});
    if (kCase == 3) return dense_step(g, residual_step(g, x, y), last);
    if (kCase == 4) {
      const Value z = dense_step(g, y, g.dense("middle", {x.cols, x.cols}));
      return dense_step(g, residual_step(g, y, z), last);
    }
    if (kCase == 5) return residual_step(g, y, relu_step(g, y, 0));
    if (kCase == 6) {
      const Value b = dense_step(g, x, g.dense("b", {x.cols, x.cols}));
      add_step(g, y, b);
      const Value z = dense_step(g, y, last);
      add_step(g, z, dense_step(g, b, g.dense("c", {x.cols, x.cols})));
      return z;
    }
    const auto mixing = g.tensor("mixing", {1, 1}, Initial::uniform_causal());
    return attention_step(g, {y, y, y}, 1, Grid({o.tokens}, {o.tokens}), Operator<>(), mixing);
  }
};

/// y = x * (1 + c2) + c1 of the halves of the condition.
struct ModulatedFamily : ForkFamily {
  static Value build(Graph<double>& g, Value x, const ForkOptions& o) {
    const Value c = g.condition(2 * o.channels);
    return modulate_step(g, x, c.part(1, 2), c.part(0, 2));
  }
};

TEST(Graph, PartsOfTheConditionAreItsColumns) {
  const mhla::Layer<ModulatedFamily> layer({.channels = 1, .tokens = 1});
  const Matrix<double> x = Matrix<double>::Constant(1, 1, 3);
  Matrix<double> c(1, 2);
  c << 10, 2;
  EXPECT_EQ(layer(x, c)(0, 0), 3 * (1 + 2) + 10);
}

/// A layer with a step whose output no step reads.
struct IdleFamily : ForkFamily {
  static Value build(Graph<double>& g, Value x, const ForkOptions& o) {
    relu_step(g, dense_step(g, x, g.dense("idle", {o.channels, o.channels})), 0);
    return ForkFamily::build(g, x, o);
  }
};

struct IdleLayer : ForkLayer {
  using Layer = mhla::Layer<IdleFamily>;
};

TEST(Graph, AStepThatNoStepReadsHasNoGradient) {
  const AttentionLayerRun<IdleLayer> run;
  const AttentionLayerRun<ForkLayer> other;
  EXPECT_EQ(run.kept_bytes(run.rows(), run.batch), other.kept_bytes(run.rows(), run.batch));
  const auto before = run.before(), after = run.backward();
  const auto idle = run.table().find("idle.weight");
  for (Index i = idle->begin; i < idle->begin + idle->size; ++i) {
    EXPECT_EQ(after.parameters[static_cast<std::size_t>(i)],
              before.parameters[static_cast<std::size_t>(i)]);
  }
}

TEST(GraphErrors, NameTheOutput) {
  const auto refused = [](auto family) {
    return message_of<error>([&] { mhla::Layer<decltype(family)>{ForkLayer::options()}; });
  };
  EXPECT_EQ(refused(OddFamily<0>()),
            "mhla::ForkLayer: graph ends with its input, expected a step's value of 6 columns");
  EXPECT_EQ(refused(OddFamily<1>()),
            "mhla::ForkLayer: graph ends with 70 columns, expected a step's value of 6 columns");
  EXPECT_EQ(refused(OddFamily<2>()),
            "mhla::ForkLayer: graph has a last value that backward reads, expected one more step, "
            "such as dense_step");
  const auto sum = [](int step) {
    return "mhla::ForkLayer: graph has step " + std::to_string(step) +
           ", which reads the output, adds to a value that a step before it reads, or adds one "
           "that another step reads, expected sums into an output that no step has read, of a "
           "value that no other step reads";
  };
  EXPECT_EQ(refused(OddFamily<3>()), sum(1));
  EXPECT_EQ(refused(OddFamily<4>()), sum(2));
  EXPECT_EQ(refused(OddFamily<5>()), sum(1));
  EXPECT_EQ(refused(OddFamily<6>()), sum(2));
}

}  // namespace
}  // namespace mhla::test
