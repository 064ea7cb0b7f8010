/// \file
/// The attention layer of DiT-S/2 for images of 256 x 256 pixels. The program loads it from a file
/// under the authors' names, runs it forwards and backwards in float, and checks it in double.
/// Without a FILE it first writes image_generation.safetensors with initial values.
///
/// Run:       build/examples/image_generation [FILE [PREFIX]]
/// Expected:  (times depend on the machine)
///
///     256 tokens in 16 blocks, 596224 parameters, 3540 KB kept for backward
///     forward 13 ms, backward 28 ms
///     float against double 4.7e-07, gradient against differences 1.5e-09: ok

#include <cstdio>
#include <mhla/layer/vision_layer.hpp>
#include <mhla/mhla.hpp>

#include "support/attention_layer.hpp"
#include "support/clock.hpp"

namespace {
const mhla::VisionOptions kOptions{.heads = 6,
                                   .tokens = {16, 16},
                                   .block = {4, 4},
                                   .order = mhla::TokenOrder::kBlocks,
                                   .channels = 384,
                                   .lepe = 3};

std::filesystem::path write_initial_values(const std::string& prefix) {
  mhla::VisionLayer<float> layer(kOptions);
  layer.initialize(1);
  attention_layer::write(layer, prefix, "image_generation.safetensors");
  return "image_generation.safetensors";
}
}  // namespace

int main(int argc, char** argv) try {
  const std::string prefix = argc > 2 ? argv[2] : "blocks.0.attn.";
  const auto file = mhla::Safetensors::read(argc > 1 ? argv[1] : write_initial_values(prefix));
  const mhla::VisionLayer<float> layer(file, prefix, kOptions);
  const mhla::Matrix<float> x = mhla::Matrix<float>::Random(256, 384);  // tokens, block by block
  mhla::Matrix<float> y(256, 384), dx = y.Zero(256, 384);
  std::vector<float> gradients(layer.parameters().size());  // in the layout of parameters()
  std::vector<std::byte> kept(layer.kept_bytes(256));
  std::printf("256 tokens in 16 blocks, %td parameters, ", layer.table().size());
  std::printf("%zu KB kept for backward\n", kept.size() / 1024);
  const auto forward = [&] { layer(x, y, {.kept = kept}); };
  const auto backward = [&] { layer.backward(x, y, dx, gradients, {.kept = kept}); };
  forward(), backward();  // the first calls touch the memory
  std::printf("forward %.0f ms, ", 1e3 * examples::seconds_of(0, forward));
  std::printf("backward %.0f ms\n", 1e3 * examples::seconds_of(0, backward));

  const mhla::VisionLayer<double> exact(file, prefix, kOptions);  // the same numbers, widened
  const mhla::Matrix<double> wide = x.cast<double>(), expected = exact(wide);
  const double error = (y.cast<double>() - expected).norm() / expected.norm();
  const double slope_error = attention_layer::derivative_error(exact, wide);
  attention_layer::expect(error < 1e-5, "the layer in float is not the layer in double");
  attention_layer::expect(slope_error < 1e-6, "backward does not give the derivative");
  std::printf("float against double %.1e, ", error);
  std::printf("gradient against differences %.1e: ok\n", slope_error);
} catch (const std::exception& e) {
  return attention_layer::report(e);
}
