// expect: no member named .features|FeatureMap
#include "mhla/mhla.hpp"

struct Square {
#if defined(MHLA_CONTROL)
  mhla::Index features(mhla::Index d) const { return d; }
#endif
  void operator()(const float* x, float* y, mhla::Index d) const {
    for (mhla::Index j = 0; j < d; ++j) y[j] = x[j] * x[j];
  }
};

int main() {
  const mhla::Matrix<float> x = mhla::Matrix<float>::Random(8, 4);
  const mhla::Contiguous blocks(8, 4);
  mhla::bidirectional(x, x, x, blocks, mhla::locality<float>(blocks.blocks()),
                      mhla::Operator{Square{}});
}
