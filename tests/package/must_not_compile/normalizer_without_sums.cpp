// expect: z\.sums\(\).*invalid|Z = Root\]: constraints not satisfied
#include "mhla/mhla.hpp"

struct Root {
#if defined(MHLA_CONTROL)
  static constexpr mhla::WeightSums sums() { return mhla::WeightSums::kToken; }
#endif
  template <class A>
  void denominators(const A* r, mhla::Index count, A* den) const {
    for (mhla::Index t = 0; t < count; ++t) den[t] = std::sqrt(r[t]);
  }
};

int main() {
  const mhla::Matrix<float> x = mhla::Matrix<float>::Random(8, 4);
  const mhla::Contiguous blocks(8, 4);
  mhla::bidirectional(x, x, x, blocks, mhla::locality<float>(blocks.blocks()),
                      mhla::Operator{mhla::Relu{}, mhla::Relu{}, Root{}});
}
