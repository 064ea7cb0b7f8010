// expect: deleted
#include "mhla/mhla.hpp"

int main() {
  const mhla::Matrix<float> x = mhla::Matrix<float>::Random(8, 4);
  const std::vector<unsigned char> keep(8, 1);
  auto in = mhla::inputs(x, x, x);
#if defined(MHLA_CONTROL)
  in.key_mask = keep;
#else
  in.key_mask = std::vector<unsigned char>(8, 1);
#endif
  in.query_mask = std::span(keep);  // a view may be a temporary
  mhla::bidirectional(in, mhla::Contiguous(8, 4), mhla::locality<float>(2));
}
