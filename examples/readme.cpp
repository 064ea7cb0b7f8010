/// \file
/// The program of README.md, which also has what it prints: one head of MHLA over an image of
/// 16 x 16 tokens, compared with the definition, and the rank of its attention matrix.
///
/// Run:       build/examples/readme

#include <iostream>
#include <mhla/mhla.hpp>

int main() {
  using Tokens = mhla::Matrix<float>;
  const Tokens q = Tokens::Random(256, 8);   // [N,D]
  const Tokens k = Tokens::Random(256, 8);   // [N,D]
  const Tokens v = Tokens::Random(256, 64);  // [N,E]

  const mhla::Grid blocks({16, 16}, {4, 4});                      // 16 x 16 tokens in 16 blocks
  const auto mixing = mhla::locality(blocks);                     // [16,16], rows sum to 1
  const Tokens o = mhla::bidirectional(q, k, v, blocks, mixing);  // [N,E]

  const auto in = mhla::inputs(q, k, v);
  const auto exact = mhla::naive_attention(in, blocks, mixing);  // the definition, in double
  const bool right = (o.cast<double>() - exact).cwiseAbs().maxCoeff() < 1e-6;
  std::cout << o.rows() << " x " << o.cols() << " outputs, " << (right ? "right" : "WRONG")
            << "\nrank of the attention matrix " << mhla::diagnose(in, blocks, mixing).rank
            << ", of linear attention at most " << q.cols() << "\n";
  return right ? 0 : 1;
}
