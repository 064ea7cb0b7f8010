/// \file
/// The program of README.md: one head of MHLA over an image of 16 x 16 tokens. It compares the
/// outputs with the definition, and prints the rank of the attention matrix. README.md has the
/// output.
///
/// Run:       build/examples/readme

#include <iostream>
#include <mhla/mhla.hpp>

int main() {
  using Tokens = mhla::Matrix<float>;
  const Tokens q = Tokens::Random(256, 8), k = Tokens::Random(256, 8);  // [N,D]
  const Tokens v = Tokens::Random(256, 64);                             // [N,E]
  const auto in = mhla::inputs(q, k, v);
  const mhla::Grid blocks({16, 16}, {4, 4});                     // an image in 16 blocks
  const auto mixing = mhla::locality(blocks);                    // [16,16]
  const Tokens o = mhla::bidirectional(in, blocks, mixing);      // [N,E]
  const auto exact = mhla::naive_attention(in, blocks, mixing);  // the definition, in double
  const bool right = (o.cast<double>() - exact).cwiseAbs().maxCoeff() < 1e-6;
  std::cout << "rank " << mhla::diagnose(in, blocks, mixing).rank
            << (right ? ", right\n" : ", WRONG\n");
  return right ? 0 : 1;
}
