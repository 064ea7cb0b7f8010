// Calls that newcomers write, right ones first. The comment of a wrong call is its only error.
#include <complex>

#include "mhla/mhla.hpp"

using mhla::bidirectional, mhla::causal, mhla::inputs, mhla::locality;
template <class T>
using Tokens = mhla::Matrix<T>;
using Offsets = std::vector<mhla::Index>;
using Keep = std::vector<unsigned char>;

Tokens<float> made() { return Tokens<float>::Random(8, 4); }

int main() {
  const auto x = made();
  const Tokens<double> wide = x.cast<double>();
  const Tokens<int> integers = x.cast<int>();
  const Tokens<std::complex<float>> waves = x.cast<std::complex<float>>();
  const std::vector<float> numbers(32);
  const mhla::Tensor<float> tensor({1, 8, 2, 4});
  const mhla::Tensor<double> wide_tensor({1, 8, 2, 4});
  const mhla::Contiguous blocks(8, 4);
  const auto mixing = locality(2);
  const Tokens<float> coefficients = mixing.dense();
  const auto in = inputs(x, x, x);
  auto batch = inputs(tensor, tensor, tensor);
  auto masked = in;
  Tokens<float> out(8, 4);

  bidirectional(x, x, x, blocks, mixing);
  bidirectional(wide, wide, wide, blocks, locality<double>(2));
  bidirectional(integers, integers, integers, blocks, mixing);  // elements
  bidirectional(waves, waves, waves, blocks, mixing);           // elements
  bidirectional(wide, x, x, blocks, mixing);                    // elements
  inputs(integers, x, x);                                       // elements
  inputs(tensor, tensor, wide_tensor);                          // elements

  const Eigen::MatrixXf columns = x;
  bidirectional(columns, columns, columns.transpose().transpose(), blocks, mixing);
  inputs(tensor.data().data(), tensor.data().data(), tensor.data().data(), tensor.shape());
  bidirectional((2 * x).eval(), x, x, blocks, mixing);
  bidirectional(2 * x, x, x, blocks, mixing);                // tensors
  bidirectional(numbers, numbers, numbers, blocks, mixing);  // tensors
  causal(tensor, tensor, tensor, blocks, mixing);            // tensors
  inputs(numbers, numbers, numbers);                         // tensors

  bidirectional(in, mhla::ContiguousBlocks{4}, mixing);
  bidirectional(in, mhla::CrossBlocks{blocks, blocks}, mixing);
  bidirectional(x, x, x, mixing);         // blocks
  bidirectional(x, x, x, 4, mixing);      // blocks
  bidirectional(in, mixing, blocks);      // blocks
  causal(batch, mixing);                  // blocks
  causal(x, x, x, coefficients, blocks);  // blocks

  bidirectional(in, blocks, mhla::MixingView<const float>(coefficients));
  bidirectional(in, blocks, mhla::MixingMatrix<float>(wide.topLeftCorner(2, 2)));
  bidirectional(x, x, x, blocks);                   // mixing
  bidirectional(wide, wide, wide, blocks, mixing);  // mixing
  bidirectional(batch, blocks, coefficients);       // mixing
  causal(in, blocks, locality<double>(2));          // mixing

  bidirectional(in, blocks, mixing, mhla::Operator{mhla::Relu{}}, out, mhla::Call{});
  bidirectional(in, blocks, mixing, mhla::Relu{});                   // options
  causal(in, blocks, mixing, mhla::Tensor<double>(), mhla::Call{});  // options
  causal(x, x, x, blocks, mixing, 2);                                // options
  bidirectional(x, x, x, blocks, mixing, out, mhla::Call{});
  bidirectional(x, x, x, {1, 8, 1, 4}, blocks, mixing);                 // shape
  causal(wide, wide, wide, {1, 8, 1, 4}, blocks, locality<double>(2));  // shape
  mhla::softmax_causal(x, x, x, {1, 8, 1, 4});                          // shape
  inputs(wide, wide, wide, {1, 8, 1, 4});                               // shape
  inputs(numbers, numbers, numbers, {1, 8, 1, 4});                      // shape
  inputs(tensor, tensor, tensor, tensor.shape());                       // shape

  mhla::Operator{mhla::Relu{}, mhla::Relu{}, mhla::NoNormalizer{}};
  mhla::Operator{mhla::Relu{}, mhla::KeySum{}};  // maps
  mhla::Operator{mhla::NoNormalizer{}};          // maps

  std::vector<std::byte> bytes(8);
  std::vector<float> floats(8);
  std::vector<double> doubles(8);
  std::vector<char> chars(8);
  mhla::Call{.workspace = bytes, .kept = std::span(bytes).first(4)};
  mhla::Call{.workspace = floats};   // bytes
  mhla::Call{.workspace = doubles};  // bytes
  mhla::Call{.kept = chars};         // bytes

  const mhla::DecayMixing<float> decay{{1}, {0.5f}};
  causal(in, blocks, decay, mhla::Operator{}, out);
  causal(x, x, x, blocks, decay);
  const mhla::Operator crossing{mhla::Relu{}, mhla::Relu{}, mhla::CrossQuery{}};
  bidirectional(in, blocks, mixing, crossing);
  causal(in, blocks, mixing, crossing);       // crossing
  causal(in, blocks, decay, crossing, out);   // crossing
  causal(x, x, x, blocks, mixing, crossing);  // crossing

  bidirectional(made(), made(), made(), blocks, mixing);
  inputs(Eigen::Map<const Tokens<float>>(x.data(), 8, 4), x.topRows(8), x);
  inputs(tensor.view(), tensor.view(), tensor.view());
  inputs(made(), x, x);                           // temporary
  inputs(tensor, tensor, mhla::Tensor<float>());  // temporary

  const Keep keep(8);
  masked.key_mask = masked.query_mask = keep;
  masked.key_mask = std::span(keep);
  masked.key_mask = Keep(8);  // temporary

  const Offsets offsets = {0, 8};
  const std::vector<int> int_offsets = {0, 8};
  batch.query_offsets = batch.key_offsets = offsets;
  batch.key_offsets = std::span(offsets);
  batch.key_offsets = Offsets{0, 8};  // temporary
  batch.key_offsets = int_offsets;    // offsets
}
