// expect: kRaster for row after row, or .order = mhla::TokenOrder::kBlocks for block after block
#include "mhla/layer/vision_block.hpp"

int main() {
#if defined(MHLA_CONTROL)
  const auto attention = mhla::deit_attention({.order = mhla::TokenOrder::kBlocks});
  const mhla::DeitOptions options{.attention = attention, .channels = 6};
#else
  const mhla::DeitOptions options{.channels = 6};
#endif
  const mhla::DeitBlock<float> block(options);
}
