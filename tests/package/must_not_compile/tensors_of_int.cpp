// expect: Scalar<T>. .with T = int|accumulator_t. .with T = int
#include "mhla/mhla.hpp"

#if defined(MHLA_CONTROL)
using Element = float;
#else
using Element = int;
#endif

int main() {
  const mhla::Matrix<Element> x = mhla::Matrix<Element>::Ones(8, 4);
  const mhla::Contiguous blocks(8, 4);
  mhla::bidirectional(x, x, x, blocks, mhla::locality<float>(blocks.blocks()));
}
