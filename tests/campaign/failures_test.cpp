// Every allocation of forms, policies, pools, streams and layers fails, alone and with all later
// ones. io/memory_test.cpp and distributed/thread_ranks_test.cpp do so for files and ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "mhla/layer/adamw.hpp"
#include "mhla/layer/language_block.hpp"
#include "mhla/layer/vision_block.hpp"
#include "mhla/mhla.hpp"
#include "support/failing_memory.hpp"

namespace mhla::test {
namespace {

#ifdef MHLA_TEST_FAILS_MALLOC

using Bytes = std::vector<std::byte>;

/// Tensors of a batch, and outputs that begin as 7.
struct Tensors {
  Tensor<float> in{Shape{2, 24, 2, 4}}, out = in, second = in, third = in;

  Tensors() {
    for (std::size_t i = 0; i < in.data().size(); ++i)
      in.data()[i] = static_cast<float>(i % 17) / 16;
  }
  BatchInputs<float> inputs() const { return mhla::inputs(in, in, in); }
  Entry entry(std::function<void()> call) {
    return {std::move(call),
            [this] {
              for (Tensor<float>* t : {&out, &second, &third})
                std::fill(t->data().begin(), t->data().end(), 7.0f);
            },
            [this] {
              std::string all;
              for (const Tensor<float>* t : {&out, &second, &third}) {
                all.append(reinterpret_cast<const char*>(t->data().data()),
                           t->data().size() * sizeof(float));
              }
              return all;
            }};
  }
};

TEST(Failures, OfForms) {
  Tensors x;
  const auto mixing = uniform_causal<float>(6), all = locality<float>(6);
  const DecayMixing<float> decay{{1, 1}, {1, 0.5f}};
  const ContiguousBlocks blocks{4};
  const Operator op;
  ThreadPool pool(3);
  for (const ExecutorRef& executor : {ExecutorRef(), ExecutorRef(pool)}) {
    const Call call{.executor = executor};
    const auto check = [&](const char* name, std::function<void()> f) {
      expect_safe(name, x.entry(std::move(f)));
    };
    const auto in = x.inputs();
    const TensorView<const float> dout = x.in;
    const BatchGradients<float> g{.q = x.out, .k = x.second, .v = x.third};
    const BatchTangents<float> along{.q = dout, .k = dout, .v = dout};
    const WithTangent<TensorView<float>> with{x.out, x.second};
    check("bidirectional", [&] { bidirectional(in, blocks, all, op, x.out, call); });
    check("block_causal", [&] { block_causal(in, blocks, mixing, 2, op, x.out, call); });
    check("causal", [&] { causal(in, blocks, mixing, op, x.out, call); });
    check("causal, decay", [&] { causal(in, blocks, decay, op, x.out, call); });
    check("linear_bidirectional", [&] { linear_bidirectional(in, op, x.out, call); });
    check("linear_causal", [&] { linear_causal(in, op, x.out, call); });
    check("softmax_bidirectional", [&] { softmax_bidirectional(in, x.out, {}, call); });
    check("softmax_causal", [&] { softmax_causal(in, x.out, {}, call); });
    check("gradient", [&] { bidirectional_gradient(in, blocks, all, op, dout, g, {}, call); });
    check("block_causal_gradient",
          [&] { block_causal_gradient(in, blocks, mixing, 2, op, dout, g, {}, call); });
    check("causal_gradient", [&] { causal_gradient(in, blocks, mixing, op, dout, g, {}, call); });
    check("causal_gradient, decay",
          [&] { causal_gradient(in, blocks, decay, op, dout, g, {}, call); });
    check("linear_gradient", [&] { linear_bidirectional_gradient(in, op, dout, g, {}, call); });
    check("linear_causal_gradient", [&] { linear_causal_gradient(in, op, dout, g, {}, call); });
    check("softmax_gradient", [&] { softmax_bidirectional_gradient(in, dout, g, {}, call); });
    check("softmax_causal_gradient", [&] { softmax_causal_gradient(in, dout, g, {}, call); });
    check("tangent", [&] { bidirectional_tangent(in, blocks, all, op, along, with, {}, call); });
    check("block_causal_tangent",
          [&] { block_causal_tangent(in, blocks, mixing, 2, op, along, with, {}, call); });
    check("causal_tangent", [&] { causal_tangent(in, blocks, mixing, op, along, with, {}, call); });
    check("linear_tangent", [&] { linear_bidirectional_tangent(in, op, along, with, {}, call); });
    check("linear_causal_tangent", [&] { linear_causal_tangent(in, op, along, with, {}, call); });
    check("softmax_tangent", [&] { softmax_bidirectional_tangent(in, along, with, {}, call); });
    check("softmax_causal_tangent", [&] { softmax_causal_tangent(in, along, with, {}, call); });
  }
  expect_safe("a result", {[&] { bidirectional(x.inputs(), blocks, all); }});
}

TEST(Failures, OfPoliciesFitsAndDiagnosis) {
  const Matrix<float> q = Matrix<float>::Random(24, 4);
  const Grid grid({4, 6}, {2, 3});
  expect_safe("Grid", {[&] { Grid({4, 6}, {2, 3}); }});
  expect_safe("locality", {[&] { locality(grid); }});
  const auto mixing = locality(grid);
  expect_safe("per_head", {[&] { per_head(mixing, 3); }});
  expect_safe("sparse", {[&] { MixingMatrix<float>::sparse(mixing); }});
  expect_safe("diagnose", {[&] { diagnose(inputs(q, q, q), grid, mixing); }});
  expect_safe("fit_mixing", {[&] { fit_mixing(inputs(q, q, q), grid, Operator<>(), q, mixing); }});
  const MixingMatrix<float> other(Matrix<float>::Constant(4, 4, 0.5f));
  expect_safe("mixing_change_bound",
              {[&] { mixing_change_bound(inputs(q, q, q), grid, mixing, other); }});
  expect_safe("MixingFit", {[&] { MixingFit<float>{mixing}; }});
  MixingFit<float> fit(mixing);
  expect_safe("MixingFit::add", {[&] {
                MixingFit<float> once(mixing);
                once.add(inputs(q, q, q), grid, Operator<>(), q);
              }});
  fit.add(inputs(q, q, q), grid, Operator<>(), q);
  expect_safe("MixingFit::solve", {[&] { fit.solve(); }});
  expect_safe("suggest_from_data", {[&] { suggest_from_data(fit, grid.block_grid()); }});
  expect_safe("fit_decay", {[&] { fit_decay(uniform_causal<float>(6), 2); }});
  expect_safe("fit_distance", {[&] { fit_distance(mixing.view(), {2, 2}, {3, 3}, false); }});
  expect_safe("resize", {[&] { resize(mixing, {2, 2}, {3, 3}); }});
}

TEST(Failures, OfThreads) {
  expect_safe("ThreadPool", {[] { ThreadPool(4); }});
}

TEST(Failures, OfStreams) {
  Tensors x;
  const auto mixing = uniform_causal<float>(6);
  const StreamingSizes sizes{.width = 4, .values = 4, .block_length = 4};
  expect_safe("Streaming", {[&] { Streaming<float>(sizes, mixing); }});
  const Streaming<float> stream(sizes, mixing);
  expect_safe("start", {[&] { stream.start(); }});
  std::vector<StreamingState<float>> states(4, stream.start());
  const auto saved = [&] {
    std::string all;
    for (const auto& state : states) {
      Bytes bytes(stream.state_bytes());
      state.save(bytes);
      all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return all;
  };
  Entry entry = x.entry([&] { append(stream, std::span(states), x.inputs(), x.out); });
  const auto outputs = entry.state;
  entry.reset = [&, reset = entry.reset] {
    reset();
    states.assign(4, stream.start());
  };
  entry.state = [&] { return outputs() + saved(); };
  expect_safe("append", entry);
  expect_safe("copies of states", {[&] { auto copy = states; }});
  const auto make = [&] {
    return BlockStreaming<float, Contiguous>({.width = 4, .values = 4}, Contiguous(24, 4), mixing);
  };
  expect_safe("BlockStreaming", {[&] { make(); }});
  const auto steps = make();
  expect_safe("steps", x.entry([&] {
    std::vector<StreamingState<float>> fresh(4, steps.start());
    append(steps, std::span(fresh), x.inputs(), x.out);
  }));
}

TEST(Failures, OfLayers) {
  const VisionOptions vision{
      .heads = 2, .tokens = {4, 6}, .block = {2, 3}, .order = TokenOrder::kRaster, .channels = 8};
  const LanguageOptions language{.heads = 2, .channels = 8, .chunk = 4, .chunks = 8};
  const DeitOptions deit{.attention = vision, .channels = 8, .hidden = 16};
  const LanguageBlockOptions block{.attention = language, .channels = 8, .hidden = 16};
  expect_safe("VisionLayer", {[&] { VisionLayer<float>{vision}; }});
  expect_safe("DeitBlock", {[&] { DeitBlock<float>{deit}; }});
  expect_safe("LanguageBlock", {[&] { LanguageBlock<float>{block}; }});
  expect_safe("LanguageLayer", {[&] { LanguageLayer<float>{language}; }});
  const auto check = [](const auto& layer) {
    const Matrix<float> x = Matrix<float>::Random(48, 8);
    Matrix<float> y(48, 8), dx(48, 8);
    std::vector<float> gradients(layer.parameters().size());
    const LayerCall call{.batch = 2};
    const auto reset = [&] {
      y.setConstant(7), dx.setConstant(7);
      std::fill(gradients.begin(), gradients.end(), 7.0f);
    };
    const auto state = [&] {
      const bool same =
          (y.array() == 7).all() && (dx.array() == 7).all() &&
          std::all_of(gradients.begin(), gradients.end(), [](float g) { return g == 7; });
      return std::string(same ? "same" : "written");
    };
    expect_safe("forward", {[&] { layer(x, y, call); }, reset, state});
    expect_safe("backward", {[&] { layer.backward(x, x, dx, gradients, call); }, reset, state});
    expect_safe("copy", {[&] { auto copy = layer; }});
  };
  check(VisionLayer<float>(vision));
  check(DeitBlock<float>(deit));
  check(LanguageBlock<float>(block));
  const LanguageLayer<float> layer(language);
  check(layer);
  expect_safe("start", {[&] { layer.start(2); }});
  const Matrix<float> x = Matrix<float>::Random(10, 8);
  Matrix<float> y(10, 8);
  auto decoding = layer.start(2);
  expect_safe("append of a layer", {[&] { layer.append(decoding, x, y); },
                                    [&] {
                                      decoding = layer.start(2);
                                      y.setConstant(7);
                                    },
                                    [&] {
                                      return std::to_string(decoding.position(0)) +
                                             ((y.array() == 7).all() ? "same" : "written");
                                    }});
  expect_safe("AdamWState", {[] { AdamWState<float>(100); }});
}

#else

TEST(Failures, OfForms) {
  GTEST_SKIP() << "memory can fail with glibc and without sanitizers only";
}

#endif

}  // namespace
}  // namespace mhla::test
