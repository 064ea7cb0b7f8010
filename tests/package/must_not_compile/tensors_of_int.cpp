// expect: Scalar<T>. .with T = int|.int. does not satisfy .Scalar
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
