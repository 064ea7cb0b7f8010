/// \file
/// The attention layer of the language model of 340M parameters: a prompt of 256 tokens, then one
/// token at a time, compared with one call on the whole sequence.
///
/// Run:       build/examples/language [FILE PREFIX], without them from initial values
/// Expected:  (times depend on the machine)
///
///     4195584 parameters, at most 2048 tokens
///     prompt of 256 tokens: 3000 a second, then 64 tokens: 370 a second
///     largest difference from the whole sequence 4.9e-07: ok

#include <cstdio>
#include <mhla/layer/language_layer.hpp>
#include <mhla/mhla.hpp>

#include "support/attention_layer.hpp"
#include "support/clock.hpp"

int main(int argc, char** argv) try {
  using Tokens = mhla::Matrix<float>;
  constexpr mhla::Index kPrompt = 256, kTokens = 320, kChannels = 1024;
  const mhla::LanguageOptions options{.heads = 4, .channels = kChannels, .chunk = 64, .chunks = 32};
  const auto layer = attention_layer::load_or_make<mhla::LanguageLayer<float>>(argc, argv, options);
  auto state = layer.start();
  std::printf("%td parameters, at most %td tokens\n", layer.table().size(), state.capacity());

  const Tokens x = Tokens::Random(kTokens, kChannels);
  Tokens y(kTokens, kChannels);
  std::vector<std::byte> workspace(layer.append_workspace_bytes(state, kPrompt));
  const auto append = [&](mhla::Index count) {
    const mhla::Index begin = state.position();
    layer.append(state, x.middleRows(begin, count), y.middleRows(begin, count),
                 {.workspace = workspace});
  };
  const double prompt = 1e3 * examples::seconds_of(0, [&] { append(kPrompt); });
  const double tokens = 1e3 * examples::seconds_of(0, [&] {
                          while (state.position() < kTokens) append(1);
                        });
  std::printf("prompt of %td tokens: %.0f a second, then %td tokens: %.0f a second\n", kPrompt,
              1000 * kPrompt / prompt, kTokens - kPrompt, 1000 * (kTokens - kPrompt) / tokens);

  const Tokens whole = layer(x);
  const float error = (y - whole).cwiseAbs().maxCoeff() / whole.cwiseAbs().maxCoeff();
  attention_layer::expect(error < 1e-5F, "decoding does not give what the whole sequence gives");
  std::printf("largest difference from the whole sequence %.1e: ok\n", error);
} catch (const std::exception& e) {
  return attention_layer::report(e);
}
