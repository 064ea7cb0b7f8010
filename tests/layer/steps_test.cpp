#include "mhla/layer/steps.hpp"

#include "contract/attention_layer.hpp"

namespace mhla::test {
namespace {

struct OwnOptions {
  Index channels = 0;
};

/// A family of one's own, as the guide has it.
struct OwnFamily {
  using Scalar = double;
  using Options = OwnOptions;
  static constexpr const char* kName = "OwnLayer";
  static constexpr const char* kOutput = "out.weight";

  static Index tokens(const OwnOptions&) { return 24; }
  static Value build(Graph<double>& g, Value x, const OwnOptions& o) {
    const Index c = o.channels;
    const auto gain = g.tensor("norm.weight", {c}, Initial::ones());
    const auto to_qkv = g.dense("qkv", {3 * c, c});
    const auto mixing = g.tensor("mixing", {4, 4}, Initial::locality({2, 2}));
    const auto out = g.dense("out", {c, c});
    const Operator<Relu, Relu, KeySum> op{{}, {}, {1e-6}};
    const Value qkv = dense_step(g, rms_norm_step(g, x, gain, 1e-6), to_qkv);
    const Value a = attention_step(g, {qkv.part(0, 3), qkv.part(1, 3), qkv.part(2, 3)}, 2,
                                   Grid({4, 6}, {2, 3}), op, mixing);
    return residual_step(g, dense_step(g, a, out), x);
  }
};

struct OwnLayer {
  using Layer = mhla::Layer<OwnFamily>;
  static constexpr Index kRows = 24, kBatch = 2;
  static OwnOptions options() { return {.channels = 6}; }
};

TEST_ATTENTION_LAYERS(Own, testing::Types<OwnLayer>);

}  // namespace
}  // namespace mhla::test
