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
///     TEST_ATTENTION_LAYERS(Vision, testing::Types<DitLayer, DeitLayer>);
///
/// adds Vision/AttentionLayerContract/0.* and others. The tests are in attention_layer.cpp. They
/// call a layer through AnyLayerRun, so they are compiled once.
///
/// golden_test.cpp compares the numbers with the authors' code.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mhla/layer/layer.hpp"
#include "support/layer_oracle.hpp"
#include "support/random.hpp"

namespace mhla::test {

struct LayerGradients {
  Matrix<double> dx, dc;
  std::vector<double> parameters;
  friend bool operator==(const LayerGradients&, const LayerGradients&) = default;
};

/// A layer with random parameters, its input, and a gradient of its output.
struct AnyLayerRun {
  Index batch, rows_of_item;
  Matrix<double> x, c, dy;

  virtual ~AnyLayerRun() = default;
  virtual std::unique_ptr<AnyLayerRun> copy() const = 0;
  virtual const ParameterTable& table() const = 0;
  virtual std::span<double> parameters() = 0;
  virtual std::span<const double> parameters() const = 0;
  virtual std::size_t kept_bytes(Index rows, Index items) const = 0;
  virtual std::size_t workspace_bytes(Index rows, const LayerCall& call) const = 0;
  virtual std::size_t backward_workspace_bytes(Index rows, const LayerCall& call) const = 0;
  virtual bool has_definition() const = 0;
  virtual void expect_adjoint(const LayerGradients& before, const LayerGradients& after) const = 0;
  /// Runs the layer from `from` into `y`, with the condition if it has one.
  virtual void forward(MatrixView<const double> from, MatrixView<double> y,
                       LayerCall call = {}) const = 0;
  virtual void backward(MatrixView<const double> from, MatrixView<const double> d,
                        MatrixView<double> dx, MatrixView<double> dc, std::span<double> gradients,
                        LayerCall call = {}) const = 0;

  bool conditioned() const { return c.size() > 0; }
  Index rows() const { return batch * rows_of_item; }
  Matrix<double> forward(const LayerCall& call = {}) const {
    Matrix<double> y(x.rows(), x.cols());
    forward(MatrixView<const double>(x), y, call);
    return y;
  }
  /// Initial gradients, to which backward() adds.
  LayerGradients before() const {
    Random rng(9);
    LayerGradients g{rng.matrix<double>(x.rows(), x.cols()), rng.matrix<double>(c.rows(), c.cols()),
                     std::vector<double>(parameters().size())};
    for (double& p : g.parameters) p = rng.uniform(-1, 1);
    return g;
  }
  LayerGradients backward(const LayerCall& call = {}) const {
    LayerGradients g = before();
    backward(x, dy, g.dx, g.dc, g.parameters, call);
    return g;
  }
};

template <class L>
struct LayerRunOf : AnyLayerRun {
  using Layer = L;
  using AnyLayerRun::backward, AnyLayerRun::forward;

  Layer layer;

  LayerRunOf(const typename Layer::Options& options, Index items, Index rows, Index condition)
      : layer(options) {
    batch = items;
    rows_of_item = rows;
    Random rng(7);
    for (double& p : layer.parameters()) p = rng.uniform(-0.5, 0.5);
    for (const Parameter& tensor : layer.table().all()) {
      if (!tensor.name.ends_with("offsets"))
        continue;  // a table, of which rows are divided by sums
      for (double& f : tensor.place().numbers(layer.parameters())) f = std::abs(f) + 0.1;
    }
    // Items are drawn one after another, so a smaller batch has the first items of a larger one.
    x = rng.matrix<double>(this->rows(), layer.options().channels);
    Random other(8);
    dy = other.matrix<double>(x.rows(), x.cols());
    Random another(6);
    if (condition > 0) c = another.matrix<double>(batch, condition);
  }
  std::unique_ptr<AnyLayerRun> copy() const override { return std::make_unique<LayerRunOf>(*this); }
  const ParameterTable& table() const override { return layer.table(); }
  std::span<double> parameters() override { return layer.parameters(); }
  std::span<const double> parameters() const override { return layer.parameters(); }
  std::size_t kept_bytes(Index rows, Index items) const override {
    return layer.kept_bytes(rows, items);
  }
  std::size_t workspace_bytes(Index rows, const LayerCall& call) const override {
    return layer.workspace_bytes(rows, call);
  }
  std::size_t backward_workspace_bytes(Index rows, const LayerCall& call) const override {
    return layer.backward_workspace_bytes(rows, call);
  }
  bool has_definition() const override { return Defined<Layer>; }
  void expect_adjoint([[maybe_unused]] const LayerGradients& before,
                      [[maybe_unused]] const LayerGradients& after) const override {
    if constexpr (Defined<Layer>) expect_its_adjoint(layer, batch, x, dy, before, after);
  }
  void forward(MatrixView<const double> from, MatrixView<double> y, LayerCall call) const override {
    call.batch = call.batch == 0 ? batch : call.batch;
    if constexpr (requires { layer(from, c, y, call); }) {
      layer(from, c, y, call);
    } else {
      layer(from, y, call);
    }
  }
  void backward(MatrixView<const double> from, MatrixView<const double> d, MatrixView<double> dx,
                MatrixView<double> dc, std::span<double> gradients, LayerCall call) const override {
    call.batch = batch;
    if constexpr (requires { layer.backward(from, c, d, dx, dc, gradients, call); }) {
      layer.backward(from, c, d, dx, dc, gradients, call);
    } else {
      layer.backward(from, d, dx, gradients, call);
    }
  }
};

template <class L>
struct AttentionLayerRun : LayerRunOf<typename L::Layer> {
  explicit AttentionLayerRun(Index items = L::kBatch)
      : LayerRunOf<typename L::Layer>(L::options(), items, L::kRows, condition()) {}

 private:
  static Index condition() {
    if constexpr (requires { L::kCondition; }) return L::kCondition;
    return 0;
  }
};

/// Expects that bytes grow with the number of items until Index cannot hold them and the call is
/// refused.
void expect_bytes_to_grow_until_they_are_refused(const AnyLayerRun& run);

/// \param make  makes a run of some items, or of the layer's own number for 0
void add_attention_layer_tests(const std::string& suite,
                               std::unique_ptr<AnyLayerRun> (*make)(Index batch));
template <class... L>
bool test_attention_layers(const std::string& prefix, testing::Types<L...>) {
  int number = 0;
  (add_attention_layer_tests(prefix + "/AttentionLayerContract/" + std::to_string(number++),
                             [](Index batch) -> std::unique_ptr<AnyLayerRun> {
                               return std::make_unique<AttentionLayerRun<L>>(batch == 0 ? L::kBatch
                                                                                        : batch);
                             }),
   ...);
  return true;
}

/// Adds the tests of a list of layers.
#define TEST_ATTENTION_LAYERS(prefix, ...) \
  [[maybe_unused]] const bool kTested##prefix = test_attention_layers(#prefix, __VA_ARGS__())

}  // namespace mhla::test
