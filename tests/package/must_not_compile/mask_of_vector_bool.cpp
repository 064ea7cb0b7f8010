// expect: vector<bool>.*Mask|Mask.*vector<bool>
#include "mhla/mhla.hpp"

#if defined(MHLA_CONTROL)
using Flag = unsigned char;
#else
using Flag = bool;
#endif

int main() {
  const mhla::Matrix<float> x = mhla::Matrix<float>::Random(8, 4);
  const std::vector<Flag> keep(8, Flag(1));
  auto in = mhla::inputs(x, x, x);
  in.key_mask = keep;
  mhla::bidirectional(in, mhla::Contiguous(8, 4), mhla::locality<float>(2));
}
