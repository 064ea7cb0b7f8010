#pragma once

/// \file
/// One decoded token of a language model after N tokens. MHLA and linear attention read streaming
/// states; softmax reads a whole cache of keys and values.

#include <cmath>
#include <mhla/layer/language_block.hpp>
#include <vector>

#include "block.hpp"

namespace throughput {

inline constexpr Index kDecoded = 64;  ///< consecutive tokens whose mean time is taken

using LanguageOp = mhla::Operator<mhla::Identity, mhla::Identity, mhla::NoNormalizer>;

/// Seconds and bytes of one token's step.
struct Step {
  double seconds, bytes;
};

/// Decodes the last kDecoded of N tokens.
inline Step streaming_step(const Problem& p, double budget, mhla::ThreadPool& pool) {
  const mhla::Streaming<float, LanguageOp> stream(
      {.width = p.width, .values = p.values, .block_length = p.block_length()},
      mhla::uniform_causal<float>(p.blocks()));
  const Index prompt = p.tokens() - kDecoded;
  mhla::Tensor<float> q({1, p.tokens(), p.heads, p.width}), k = q;
  mhla::Tensor<float> v({1, p.tokens(), p.heads, p.values}), out = v;
  for (auto* const t : {&q, &k, &v}) {
    Eigen::Map<Eigen::ArrayXf>(t->data().data(), static_cast<Index>(t->data().size())).setRandom();
  }
  std::vector<std::byte> memory(mhla::append_workspace_bytes(stream, pool));
  std::vector<mhla::StreamingState<float>> states(static_cast<std::size_t>(p.heads),
                                                  stream.start());
  const auto append = [&](Index begin, Index count) {
    const auto next = [&](auto view) {
      view.data += begin * view.strides[1];
      view.shape[1] = count;
      return view;
    };
    const mhla::BatchInputs<float> in{
        .q = next(q.view()), .k = next(k.view()), .v = next(v.view())};
    mhla::append(stream, states, in, next(out.view()), {.workspace = memory, .executor = pool});
  };
  append(0, prompt);
  const auto start = states;
  const double seconds = seconds_of(
      budget,
      [&] {
        for (Index t = prompt; t < p.tokens(); ++t) append(t, 1);
      },
      [&] { states = start; });
  return {seconds / kDecoded,
          static_cast<double>(p.heads) * static_cast<double>(stream.state_bytes())};
}

/// Softmax of one query of every head over N keys and values, for the layers of a model. Each layer
/// has its own keys and values, up to a total that no processor's cache holds.
inline Step cached_step(const Problem& p, Index depth, double budget, mhla::ThreadPool& pool) {
  constexpr Index kEnough = Index{1} << 29;  // bytes
  const Index n = p.tokens(), bytes = p.heads * n * (p.width + p.values) * Index{sizeof(float)};
  const Index layers = std::clamp<Index>(kEnough / bytes, 1, depth);
  const Tokens q = Tokens::Random(p.heads, p.width),
               k = Tokens::Random(layers * p.heads * n, p.width),
               v = Tokens::Random(layers * p.heads * n, p.values);
  Tokens out(p.heads, p.values), scores(p.heads, n);
  const double seconds = seconds_of(budget, [&] {
    for (Index layer = 0; layer < layers; ++layer) {
      pool.for_each(p.heads, [&](Index h, Index) {
        const Index begin = (layer * p.heads + h) * n;
        auto row = scores.row(h);
        row.noalias() = q.row(h) * k.middleRows(begin, n).transpose();
        row = ((row.array() - row.maxCoeff()) / std::sqrt(static_cast<float>(p.width))).exp();
        out.row(h).noalias() = row * v.middleRows(begin, n) / row.sum();
      });
    }
  });
  return {seconds / static_cast<double>(layers), static_cast<double>(bytes)};
}

/// Seconds per token and block, over `depth` blocks that each have their own packed weights.
inline double block_step(const mhla::LanguageBlock<float>& block, Index depth, double budget,
                         mhla::ThreadPool& pool) {
  const Tokens x = Tokens::Random(1, block.options().channels);
  Tokens y(1, x.cols());
  std::vector<mhla::LanguageBlock<float>::State> start;
  for (Index i = 0; i < depth; ++i) start.push_back(block.start());
  auto states = start;
  std::vector<std::byte> memory(block.append_workspace_bytes(start.front(), 1, pool));
  const double seconds = seconds_of(
      budget,
      [&] {
        for (auto& state : states) {
          block.append(state, x, y, {.workspace = memory, .executor = pool});
        }
      },
      [&] { states = start; });
  return seconds / static_cast<double>(depth);
}

/// Measures a case of one token. The block around the attention does not depend on the position, so
/// it is measured at the first tokens.
inline Result measure_decoding(const Case& what, mhla::LanguageBlockOptions options,
                               const Problem& problem, const Settings& settings) {
  mhla::ThreadPool pool(settings.threads);
  Result result{what, problem, settings.threads, 0, 0, {}, {}, {}};
  Problem first = problem;  // one block: linear attention; its step is equal at any position
  first.grid = first.block = mhla::GridShape(kDecoded);
  const Step steps[] = {cached_step(problem, what.depth, settings.budget, pool),
                        streaming_step(first, settings.budget, pool),
                        streaming_step(problem, settings.budget, pool)};

  options.attention.chunk = kDecoded;
  options.attention.chunks = 1;
  const auto block = random_block<mhla::LanguageBlock<float>>(options);
  const double whole = block_step(block, what.depth, settings.budget, pool);
  result.rest = std::max(whole - steps[kLinear].seconds, 0.0);
  result.ends = seconds_of_ends(what.ends, pool, settings.budget);

  const double weights = 2 * weights_of(block.table());
  double ends = 0;
  for (const End& end : what.ends) ends += 2 * static_cast<double>(end.rows * end.in * end.out);
  const auto n = static_cast<double>(problem.tokens());
  const auto width = static_cast<double>(problem.width),
             values = static_cast<double>(problem.values);
  const auto heads = static_cast<double>(problem.heads);
  const double linear = heads * 4 * width * values;
  const double mixing = 2 * heads * static_cast<double>(problem.blocks()) * width * values /
                        static_cast<double>(problem.block_length());
  const double flops[] = {heads * 2 * n * (width + values), linear, linear + mixing};
  for (std::size_t a = 0; a < kAttentions; ++a) {
    const auto depth = static_cast<double>(what.depth);
    result.attention[a] = {steps[a].seconds, problem.tokens()};
    result.flops[a] = ends + depth * (weights + flops[a]);
    result.bytes[a] = parameter_bytes(what, block) + depth * steps[a].bytes;
  }
  return result;
}

}  // namespace throughput
