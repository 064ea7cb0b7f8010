// The smallest program that uses files: it writes a matrix to argv[1] and reads it again.

#include <cstdio>

#include "mhla/io/safetensors.hpp"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const mhla::Matrix<float> weight = mhla::Matrix<float>::Random(3, 5);
  mhla::SafetensorsWriter writer;
  writer.add("weight", weight);
  writer.write(argv[1]);
  const bool same = mhla::Safetensors::read(argv[1]).matrix<float>("weight") == weight;
  std::printf("%s: %s\n", argv[1], same ? "the same" : "WRONG");
  return same ? 0 : 1;
}
