/// \file
/// The self-attention layer of Wan2.1 with MHLA, on small videos: 4 frames of 6 x 10 tokens in
/// 2 x 2 x 2 blocks, with gate and LePE. (Released layers have 12 heads in 1536 channels.)
///
/// The program checks that a video alone and in a batch of two on two threads has the same bits,
/// and that backward gives the derivative.
///
/// Run:       build/examples/video [FILE PREFIX], without them from initial values
/// Expected:  (times depend on the machine)
///
///     240 tokens a video in 8 blocks, 336832 parameters
///     two videos on two threads 29 ms
///     alone as in the batch, gradient against differences 6.4e-09: ok

#include <cstdio>
#include <mhla/layer/video_layer.hpp>
#include <mhla/mhla.hpp>

#include "support/attention_layer.hpp"
#include "support/clock.hpp"

int main(int argc, char** argv) try {
  using Tokens = mhla::Matrix<double>;
  const mhla::VideoOptions options{.heads = 2,
                                   .grid = {4, 6, 10},
                                   .layout = {2, 2, 2},
                                   .channels = 256,
                                   .gate = true,
                                   .lepe = true};
  const auto layer = attention_layer::load_or_make<mhla::VideoLayer<double>>(argc, argv, options);
  std::printf("240 tokens a video in 8 blocks, %td parameters\n", layer.table().size());

  const Tokens videos = Tokens::Random(2 * 240, 256);  // in raster order
  Tokens y(2 * 240, 256);
  mhla::ThreadPool pool(2);
  const auto both = [&] { layer(videos, y, {.executor = pool}); };
  both();  // the first call touches the memory
  std::printf("two videos on two threads %.0f ms\n", 1e3 * examples::seconds_of(0, both));

  const Tokens first = videos.topRows(240);
  attention_layer::expect(layer(first) == y.topRows(240), "a video alone comes out differently");
  const double error = attention_layer::derivative_error(layer, first);
  attention_layer::expect(error < 1e-6, "backward does not give the derivative");
  std::printf("alone as in the batch, gradient against differences %.1e: ok\n", error);
} catch (const std::exception& e) {
  return attention_layer::report(e);
}
