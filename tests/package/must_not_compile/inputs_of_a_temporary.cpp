// expect: deleted
#include "mhla/mhla.hpp"

mhla::Matrix<float> queries() { return mhla::Matrix<float>::Random(8, 4); }

int main() {
  const mhla::Matrix<float> x = queries();
  const mhla::Contiguous blocks(8, 4);
#if defined(MHLA_CONTROL)
  const auto in = mhla::inputs(x, x, x);
#else
  const auto in = mhla::inputs(queries(), x, x);
#endif
  mhla::bidirectional(in, blocks, mhla::locality<float>(2));
  // Views may be temporaries, and matrices where the call ends before them.
  mhla::inputs(Eigen::Map<const mhla::Matrix<float>>(x.data(), 8, 4), x.topRows(8), x);
  mhla::bidirectional(queries(), queries(), queries(), blocks, mhla::locality<float>(2));
}
