// The attention layers with all their parts: projections, norms, embeddings, gates, attention.
// Layer is the forward. LayerBackward is the gradient of x and of all parameters, and repeats the
// forward; LayerBackwardKept uses the activations that the forward kept. language_340m_token is
// decoding.

#include <chrono>
#include <vector>

#include "support/layer_run.hpp"

namespace mhla::bench::layer_bench {
namespace {

template <class Family>
void forward_case(Session& session, const Shape& shape, Index threads) {
  LayerRun<Family> run(shape, threads, false, false);
  session.time(
      forward_cost<Family>(shape, run.table()), measure_peak<float>(run.pool()),
      [&] { run.forward(); }, [&] { return run.worst_of_rows(); });
}

template <class Family>
void backward_case(Session& session, const Shape& shape, Index threads, bool keep) {
  LayerRun<Family> run(shape, threads, true, keep);
  session.time_gradient(
      backward_cost<Family>(shape, run.table()), measure_peak<float>(run.pool()),
      [&] { run.forward(); }, [&] { run.backward(); }, [&] { return run.worst_of_gradients(); });
}

constexpr Index kPrompt = 1000;       // tokens
constexpr Index kDecodedTokens = 64;  // one after another: a block's length, so one block begins

/// Weights are read once per token; the summaries of a state are mixed at the first token of a
/// block.
Cost decoding_cost(const Shape& s, const ParameterTable& table) {
  const double state = number(s.heads * s.width * s.values);
  const double blocks = number((kPrompt + kDecodedTokens - 1) / s.block_length());
  const double mixed = state * blocks / number(kDecodedTokens);
  return {2 * weights_of<LanguageFamily>(table) + 4 * state + 2 * mixed,
          (number(table.size()) + 2 * state + mixed) * sizeof(float), 1};
}

void decoding_case(Session& session, const Shape& shape, Index threads) {
  using Clock = std::chrono::steady_clock;
  const LanguageLayer<float> layer = drawn_layer<LanguageFamily>(shape);
  const Matrix<float> x = drawn(shape, kInput);
  Matrix<float> y(kPrompt + kDecodedTokens, x.cols());
  ThreadPool pool(threads);
  auto start = layer.start();
  layer.append(start, x.topRows(kPrompt), y.topRows(kPrompt), {.executor = pool});
  auto state = start;
  std::vector<std::byte, Allocator<std::byte>> memory(layer.append_workspace_bytes(state, 1, pool));
  const auto decode = [&] {
    for (Index t = kPrompt; t < y.rows(); ++t) {
      layer.append(state, x.middleRows(t, 1), y.middleRows(t, 1),
                   {.workspace = memory, .executor = pool});
      benchmark::ClobberMemory();
    }
  };
  decode();
  const bool right = session.accept([&] {
    const std::vector<Index> tokens = {kPrompt, kPrompt + 23, kPrompt + 24, y.rows() - 1};
    const Matrix<double> seen = x.topRows(y.rows()).cast<double>();
    return error_of_rows(exact_rows(layer, in_double(layer.parameters()), seen, tokens),
                         y(tokens, Eigen::all).cast<double>());
  });
  if (!right) return;
  const double peak = measure_peak<float>(pool);
  double seconds = 0;
  while (session.state().KeepRunningBatch(kDecodedTokens)) {
    session.state().PauseTiming();
    state = start;
    session.state().ResumeTiming();
    const auto before = Clock::now();
    decode();
    seconds += std::chrono::duration<double>(Clock::now() - before).count();
  }
  session.report(decoding_cost(shape, layer.table()), peak, seconds,
                 static_cast<double>(session.state().iterations()));
}

template <class Family>
void register_layer(const Shape& shape) {
  for_each_thread_count(shape, [&](Index threads) {
    register_case("Layer", "float", shape, threads,
                  [=](Session& s) { forward_case<Family>(s, shape, threads); });
    register_case("LayerBackward", "float", shape, threads,
                  [=](Session& s) { backward_case<Family>(s, shape, threads, false); });
    register_case("LayerBackwardKept", "float", shape, threads,
                  [=](Session& s) { backward_case<Family>(s, shape, threads, true); });
  });
}

const bool kRegistered = [] {
  for (const Shape& shape : vision_layer_shapes()) register_layer<VisionFamily>(shape);
  register_layer<VideoFamily>(video_layer_shape());
  Shape language = language_layer_shape();
  register_layer<LanguageFamily>(language);
  language.name += "_token";
  for_each_thread_count(language, [&](Index threads) {
    register_case("Layer", "float", language, threads,
                  [=](Session& s) { decoding_case(s, language, threads); });
  });
  return true;
}();

}  // namespace
}  // namespace mhla::bench::layer_bench
