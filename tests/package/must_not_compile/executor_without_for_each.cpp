// expect: x\.for_each\(count, f\).*invalid|no member named .for_each
#include "mhla/mhla.hpp"

struct Caller {
  mhla::Index workers() const { return 1; }
#if defined(MHLA_CONTROL)
  template <class F>
  void for_each(mhla::Index count, F&& f) const {
    for (mhla::Index i = 0; i < count; ++i) f(i, mhla::Index{0});
  }
#endif
};

int main() {
  const mhla::Matrix<float> x = mhla::Matrix<float>::Random(8, 4);
  const mhla::Contiguous blocks(8, 4);
  mhla::bidirectional(x, x, x, blocks, mhla::locality<float>(blocks.blocks()), mhla::Operator{},
                      mhla::Call{.executor = mhla::ExecutorRef(Caller{})});
}
