// The smallest program that uses the library: one head over 100 tokens, with a finite output.

#include <cstdio>

#include "mhla/mhla.hpp"

int main() {
  const mhla::Matrix<float> q = mhla::Matrix<float>::Random(100, 8);
  const mhla::Matrix<float> k = mhla::Matrix<float>::Random(100, 8);
  const mhla::Matrix<float> v = mhla::Matrix<float>::Random(100, 12);
  const mhla::Contiguous blocks(100, 16);
  const auto mixing = mhla::locality<float>(blocks.blocks());
  const mhla::Matrix<float> o = mhla::bidirectional(q, k, v, blocks, mixing);
  const bool good = o.rows() == 100 && o.cols() == 12 && o.allFinite() && !o.isZero();
  std::printf("mhla %s: %s\n", mhla::kVersion, good ? "finite" : "WRONG");
  return good ? 0 : 1;
}
