// expect: deleted
#include "mhla/mhla.hpp"

int main() {
  const mhla::Tensor<float> x({2, 8, 2, 4});
  const std::vector<unsigned char> keep(16, 1);
  auto in = mhla::inputs(x, x, x);
#if defined(MHLA_CONTROL)
  in.key_mask = mhla::BatchMask(keep, 2);
#else
  in.key_mask = mhla::BatchMask(std::vector<unsigned char>(16, 1), 2);
#endif
  in.query_mask = mhla::BatchMask(std::span(keep), 2);  // a view may be a temporary
  mhla::bidirectional(in, mhla::Contiguous(8, 4), mhla::locality<float>(2));
}
