// expect: blocks.runs.b.. is invalid|no member named .runs
#include "mhla/mhla.hpp"

struct Halves {
  mhla::Index tokens() const { return 8; }
  mhla::Index blocks() const { return 2; }
  mhla::Index block_size(mhla::Index) const { return 4; }
#if defined(MHLA_CONTROL)
  mhla::Index runs(mhla::Index) const { return 1; }
#endif
  mhla::Run run(mhla::Index b, mhla::Index) const { return {4 * b, 4}; }
};

int main() {
  const mhla::Matrix<float> x = mhla::Matrix<float>::Random(8, 4);
  mhla::bidirectional(x, x, x, Halves{}, mhla::locality<float>(2));
}
