// expect: kRaster for row after row, or .order = mhla::TokenOrder::kBlocks for block after block
#include "mhla/layer/vision_layer.hpp"

int main() {
#if defined(MHLA_CONTROL)
  constexpr auto kOrder = mhla::TokenOrder::kRaster;
  const mhla::VisionLayer<float> layer(
      {.heads = 2, .tokens = {4, 4}, .block = {2, 2}, .order = kOrder, .channels = 6});
#else
  const mhla::VisionLayer<float> layer(
      {.heads = 2, .tokens = {4, 4}, .block = {2, 2}, .channels = 6});
#endif
}
