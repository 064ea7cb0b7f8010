/// \file
/// The program of the README: one head of MHLA over the tokens of a picture.
///
///     o_t = phi(q_t)^T S~_i / (phi(q_t)^T z~_i),   S~_i = sum_b m_ib S_b,   z~_i = sum_b m_ib z_b
///
/// 32 x 32 tokens lie in raster order. Blocks of 8 x 8 tokens make a 4 x 4 grid, so m is [16,16];
/// it starts as the paper has it: near blocks weigh more, rows sum to 1. phi is relu.
///
/// The denominator makes the weights of a token sum to 1, so values that are all 1 come out as 1.
/// That is checked at the end.
///
/// Run:       build/examples/readme
/// Expected:  (inputs by std::rand of glibc; last digits depend on the processor)
///
///     0.000827492  0.00835053   0.0127175  -0.0120068
///     weights sum to 1 within 4.76837e-07: ok

#include <iostream>
#include <mhla/mhla.hpp>

int main() {
  using Tokens = mhla::Matrix<float>;
  const Tokens q = Tokens::Random(1024, 64);  // [N,D]
  const Tokens k = Tokens::Random(1024, 64);  // [N,D]
  const Tokens v = Tokens::Random(1024, 64);  // [N,E]

  const mhla::Grid blocks({32, 32}, {8, 8});                       // 32 x 32 tokens in 16 blocks
  const auto mixing = mhla::locality<float>(blocks.block_grid());  // [16,16], rows sum to 1
  const Tokens o = mhla::bidirectional(q, k, v, blocks, mixing);   // [N,E]
  std::cout << o.row(0).head(4) << "\n";

  const Tokens ones = Tokens::Ones(1024, 1);                            // [N,1]
  const Tokens sums = mhla::bidirectional(q, k, ones, blocks, mixing);  // [N,1]

  // Numerator and denominator are sums of nonnegative terms, each wrong by at most N + M + D
  // roundings of 2^-24.
  const float error = (sums.array() - 1).abs().maxCoeff();
  const bool ok = o.allFinite() && error <= 2 * (1024 + 16 + 64) * 0x1p-24F;
  std::cout << "weights sum to 1 within " << error << (ok ? ": ok\n" : ": FAILED\n");
  return ok ? 0 : 1;
}
