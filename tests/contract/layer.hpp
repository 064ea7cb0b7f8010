#pragma once

/// \file
/// Promises of every layer: it is its definition, its adjoint adds the derivative of the
/// definition, errors name an argument of another shape, a bias that is left out is 0, and bits
/// depend neither on strides, nor on threads, nor on the memory used.
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
/// and, if it is differentiable (AdjointContract), with
///
///     static void adjoint(in, out, dy, din, call)    dy: gradient of the last output
///     kLoss, if it is there: dy is 1
///
/// and, if its errors name its arguments (ArgumentContract), with
///
///     static std::vector<std::string> names()    {function, inputs, outputs}
///
/// where an input after a '-' may have any columns, and, if it has a workspace (WorkspaceContract),
/// with forward_bytes(s) and adjoint_bytes(s).
///
///     TEST_LAYERS(Dense, testing::Types<DenseLayer<float>, DenseLayer<double>>);
///
/// adds Dense/LayerContract/0.* and others. The tests are in layer.cpp. They call a layer through
/// AnyLayer, so they are compiled once per type of numbers.

#include <gtest/gtest.h>

#include <string>

#include "support/layer_run.hpp"

namespace mhla::test {

template <class L>
constexpr AnyLayer<typename L::Scalar> any_layer() {
  AnyLayer<typename L::Scalar> layer{&L::sizes,   &L::inputs,     &L::outputs,
                                     &L::forward, &L::definition, &L::roundings};
  layer.is_loss = requires { L::kLoss; };
  if constexpr (requires { &L::adjoint; }) layer.adjoint = &L::adjoint;
  if constexpr (requires { &L::names; }) layer.names = &L::names;
  if constexpr (requires { &L::forward_bytes; }) {
    layer.forward_bytes = &L::forward_bytes;
    layer.adjoint_bytes = &L::adjoint_bytes;
  }
  return layer;
}
template <class L>
inline constexpr auto kLayerOn = any_layer<L>();

/// Adds tests of layer `number` of a list.
template <class A>
void add_layer_tests(const std::string& prefix, int number, const AnyLayer<A>& layer);
template <class... L>
bool test_layers(const std::string& prefix, testing::Types<L...>) {
  int number = 0;
  (add_layer_tests<typename L::Scalar>(prefix, number++, kLayerOn<L>), ...);
  return true;
}

/// Adds the tests of a list of layers.
#define TEST_LAYERS(prefix, ...) \
  [[maybe_unused]] const bool kTested##prefix = test_layers(#prefix, __VA_ARGS__())

}  // namespace mhla::test
