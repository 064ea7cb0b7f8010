// expect: CausalNormalizer
#include "mhla/mhla.hpp"

#if defined(MHLA_CONTROL)
using Normalizer = mhla::KeySum;
#else
using Normalizer = mhla::CrossQuery;
#endif

int main() {
  const mhla::Matrix<float> x = mhla::Matrix<float>::Random(8, 4);
  const mhla::Contiguous blocks(8, 4);
  mhla::causal(x, x, x, blocks, mhla::uniform_causal<float>(blocks.blocks()),
               mhla::Operator{mhla::Relu{}, mhla::Relu{}, Normalizer{}});
}
