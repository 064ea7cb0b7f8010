#include "mhla/layer/graph.hpp"

#include <cstddef>
#include <memory>
#include <vector>

#include "contract/attention_layer.hpp"
#include "mhla/layer/steps.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

struct ForkOptions {
  Index channels = 0, tokens = 0, links = 0;
};

/// A layer whose values have several readers. Two are computed again, and three share a gradient.
struct ForkFamily {
  using Scalar = double;
  using Options = ForkOptions;
  static constexpr const char* kName = "ForkLayer";
  static constexpr const char* kBackwardName = "ForkLayer::backward";
  static constexpr const char* kOutput = "out.weight";

  static ForkOptions checked(const ForkOptions& o) { return o; }
  static detail::Graph<double> build(const ForkOptions& o) {
    using detail::Value;
    const Index c = o.channels;
    detail::Graph<double> g(kName, c, o.tokens);
    const auto dense = [&](Value x, const char* name, Index outputs) {
      using Weights = detail::WeightSlices<DenseView>;
      return detail::dense_step(g, x, Weights(g.table(), name, {outputs, x.cols}));
    };
    const ParameterSlice gain = g.tensor("gain", {c / 2});
    const auto angles =
        std::make_shared<RotaryTable<double>>(RotaryTable<double>::sequence(o.tokens, c));
    const Value wide = dense(g.input(), "wide", 2 * c);
    const Value normed = g.remade(detail::rms_norm_step(g, wide.part(1, 2), gain, 1e-3));
    const Value turned = dense(g.input(), "turned", c);
    const Value rotated = g.remade(detail::rotary_step<double>(g, turned, angles, 1));
    Value sum = dense(normed, "first", c);
    const Value third = dense(rotated, "third", c);
    const Value second = dense(detail::relu_step(g, normed, 0.1), "second", c);
    detail::add_step(g, second, third);
    detail::add_step(g, sum, second);
    for (Index i = 0; i < o.links; ++i) sum = detail::relu_step(g, sum, 0);
    dense(sum, "out", c);
    return g;
  }
};

struct ForkLayer {
  using Layer = mhla::Layer<detail::GraphBody<ForkFamily>>;
  static constexpr Index kRows = 70, kBatch = 2;
  static ForkOptions options() { return {.channels = 6, .tokens = kRows}; }
};

TEST_ATTENTION_LAYERS(Graph, testing::Types<ForkLayer>);

/// Bytes of so many values [rows, 6] and [rows, 12], and of `rest`.
std::size_t bytes_of(int values, int wide, std::size_t rest) {
  return detail::counted_bytes([&](detail::Arena& arena) {
    const auto take = [&](Index cols) {
      detail::take_matrix<double>("test", arena, ForkLayer::kRows, cols);
    };
    for (int i = 0; i < values; ++i) take(6);
    for (int i = 0; i < wide; ++i) take(12);
    return detail::take_bytes("test", arena, rest);
  });
}

TEST(Graph, KeepsWhatAdjointsReadAndSharesTheRest) {
  const ForkLayer::Layer layer(ForkLayer::options());
  const Index rows = ForkLayer::kRows;
  // On the tape: turned, the sum, relu and wide. In scratch: rotated, third, and normed and then
  // second.
  EXPECT_EQ(layer.kept_bytes(rows), bytes_of(3, 1, 0));
  EXPECT_EQ(layer.workspace_bytes(rows), bytes_of(3 + 3, 1, dense_workspace_bytes<double>(6, 12)));
  // Gradients of the sum and then of turned, of relu and then of rotated, of normed and wide. Also
  // normed and rotated again.
  EXPECT_EQ(layer.backward_workspace_bytes(rows),
            bytes_of(3 + 3 + 2, 1 + 1, dense_adjoint_workspace_bytes<double>(rows, 6, 12)));
}

TEST(Graph, BuffersAreSharedByValuesThatNoStepNeedsTogether) {
  detail::SharedBuffers<float> buffers;
  buffers.add(1, 4, 0, 2);
  buffers.add(2, 4, 2, 3);  // needed with the first
  buffers.add(3, 4, 3, 5);  // in the place of the first
  buffers.add(4, 8, 6, 6);  // of another width
  buffers.add(5, 4, 6, 7);
  std::vector<std::byte> memory(1 << 12);
  detail::Arena arena(memory.data());
  std::vector<MatrixView<float>> rows(6);
  buffers.take("test", arena, 3, std::span(rows));
  EXPECT_NE(rows[1].data, rows[2].data);
  EXPECT_EQ(rows[1].data, rows[3].data);
  EXPECT_EQ(rows[4].cols, 8);
  EXPECT_EQ(rows[5].data, rows[1].data);
  EXPECT_TRUE(rows[0].absent());
}

TEST(GraphErrors, NameTheMostValues) {
  ForkOptions o = ForkLayer::options();
  o.links = 14;  // and ten other values
  const auto refused = [&] { return message_of<error>([&] { ForkLayer::Layer{o}; }); };
  EXPECT_EQ(refused(), "no exception");
  o.links = 15;
  EXPECT_EQ(refused(), "mhla::ForkLayer: graph has more values, expected at most 24");
}

}  // namespace
}  // namespace mhla::test
