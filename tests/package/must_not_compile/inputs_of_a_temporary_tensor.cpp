// expect: deleted
#include "mhla/mhla.hpp"

mhla::Tensor<float> values() { return mhla::Tensor<float>({1, 8, 2, 4}); }

int main() {
  const mhla::Tensor<float> x = values();
#if defined(MHLA_CONTROL)
  const auto in = mhla::inputs(x, x, x);
#else
  const auto in = mhla::inputs(x, x, values());
#endif
  mhla::bidirectional(in, mhla::Contiguous(8, 4), mhla::locality<float>(2));
  mhla::inputs(x.view(), x.view(), x.view());  // views may be temporaries
}
