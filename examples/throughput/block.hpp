#pragma once

/// \file
/// A model as equal blocks and its ends, measured with each of the three attentions.
///
///     seconds = ends + depth * (rest + attention)
///
/// rest is the time of a block with MHLA less the time of its MHLA. So the models differ in the
/// attention alone: projections, norms, convolutions and perceptrons are the same.

#include <algorithm>
#include <array>
#include <cmath>
#include <mhla/io/safetensors.hpp>
#include <mhla/layer/dense.hpp>
#include <mhla/layer/layer.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../support/attention_layer.hpp"
#include "attention.hpp"

namespace throughput {

/// A dense layer before or after the blocks.
struct End {
  Index rows, in, out;
};

/// A measured model.
struct Case {
  std::string model, input;
  std::string unit;                   ///< what is counted: images, videos, tokens
  Index items;                        ///< of these in a call
  Index depth;                        ///< blocks of the model
  mhla::GridShape grid{1}, block{1};  ///< tokens of an item and of a block, in raster order
  std::vector<End> ends{};
};

struct Settings {
  Index threads;
  double budget, longest;  ///< seconds_of, AttentionRun::time
  std::string save;        ///< folder for blocks with inputs and outputs, or empty
};

/// Result of a case on a number of threads; arrays have an element per attention.
struct Result {
  Case what;
  Problem problem;
  Index threads;
  double rest, ends;                             // seconds
  std::array<Timed, kAttentions> attention;      // of one block
  std::array<double, kAttentions> flops, bytes;  // of the model

  double seconds(int a) const {
    const auto depth = static_cast<double>(what.depth);
    return ends + depth * (rest + attention[static_cast<std::size_t>(a)].seconds);
  }
  double rate(int a) const { return static_cast<double>(what.items) / seconds(a); }
};

/// Number of weights of a block that multiply every row: without mixing and condition.
inline double weights_of(const mhla::ParameterTable& table) {
  double count = 0;
  for (const mhla::Parameter& p : table.all()) {
    const auto has = [&p](const char* part) { return p.name.find(part) != std::string::npos; };
    const bool of_item = has("adaLN") || has("modulation") || has("table") || has("mixing") ||
                         has("piece_attn") || has("block_attn");
    if (p.shape.size() > 1 && !of_item) count += static_cast<double>(p.size);
  }
  return count;
}

/// A block with random weights, and mixing matrices with equal coefficients. With initial values a
/// DiT block would be the identity.
template <class Block>
Block random_block(const typename Block::Options& options) {
  Block block(options);
  for (const mhla::Parameter& p : block.table().all()) {
    const auto numbers = p.place().numbers(block.parameters());
    Eigen::Map<Eigen::ArrayXf> values(numbers.data(), p.size);
    const auto fan_in = static_cast<float>(p.place().cols);
    if (p.name.ends_with("_attn.conv.weight") || p.name.ends_with("mixing_matrix")) {
      values = 1 / static_cast<float>(p.shape[0]);
    } else if (p.shape.size() == 1) {
      values = p.name.ends_with("bias") ? 0.0f : 1.0f;
    } else {
      values = values.Random(p.size) / std::sqrt(fan_in);
    }
  }
  return block;
}

inline double seconds_of_ends(const std::vector<End>& ends, mhla::ThreadPool& pool, double budget) {
  double seconds = 0;
  for (const End& end : ends) {
    const Tokens x = Tokens::Random(end.rows, end.in), w = Tokens::Random(end.out, end.in);
    Tokens y(end.rows, end.out);
    std::vector<std::byte> memory(mhla::packed_dense_bytes<float>(end.in, end.out));
    const mhla::PackedDense<float> packed(memory, {.weight = w});
    seconds += seconds_of(budget / 4, [&] { mhla::dense(x, packed, y, pool); });
  }
  return seconds;
}

/// Writes a block to FOLDER/MODEL.safetensors, with x, its condition c, if it has one, and y.
template <class Block>
void save(const std::string& folder, const std::string& model, const Block& block, const Tokens& x,
          const Tokens& c, const Tokens& y) {
  mhla::SafetensorsWriter file;
  for (const mhla::Parameter& p : block.table().all()) {
    file.add("block." + p.name, p.shape, block.table().numbers(block.parameters(), p.name));
  }
  const auto add = [&file](const char* name, const Tokens& rows) {
    if (rows.size() == 0) return;
    file.add(name, {rows.rows(), rows.cols()},
             std::span(rows.data(), static_cast<std::size_t>(rows.size())));
  };
  add("x", x), add("c", c), add("y", y);
  std::string name = model;
  std::ranges::replace(name, '/', '_');
  file.write(folder + "/" + name + ".safetensors");
}

/// Bytes of a model's parameters.
template <class Block>
double parameter_bytes(const Case& what, const Block& block) {
  double count = static_cast<double>(what.depth * block.table().size());
  for (const End& end : what.ends) count += static_cast<double>(end.in * end.out);
  return count * sizeof(float);
}

/// \param condition  columns of the block's condition, or 0
template <bool kCausal, class Block, class Op>
Result measure(const Case& what, const typename Block::Options& options, Index condition,
               const Problem& problem, const Op& op, const Settings& settings) {
  mhla::ThreadPool pool(settings.threads);
  Result result{what, problem, settings.threads, 0, 0, {}, {}, {}};
  AttentionRun<Op, kCausal> attention(problem, op, pool);
  for (int a = 0; a < kAttentions; ++a) {
    result.attention[static_cast<std::size_t>(a)] =
        attention.time(static_cast<Attention>(a), settings.budget, settings.longest);
  }

  const Block block = random_block<Block>(options);
  const Index rows = problem.batch * problem.tokens();
  const Tokens x = Tokens::Random(rows, block.options().channels);
  const Tokens c = Tokens::Random(condition > 0 ? problem.batch : 0, condition);
  Tokens y(rows, x.cols());
  mhla::LayerCall call{.batch = problem.batch, .executor = pool};
  std::vector<std::byte> memory(block.workspace_bytes(rows, call));
  call.workspace = memory;
  const auto run = [&] {
    if constexpr (requires { block(x, c, y, call); })
      block(x, c, y, call);
    else
      block(x, y, call);
  };
  const double whole = seconds_of(settings.budget, run);
  attention_layer::expect(y.allFinite(), what.model + " has outputs that are no finite numbers");
  if (!settings.save.empty()) save(settings.save, what.model, block, x, c, y);
  result.rest = std::max(whole - result.attention[kMhla].seconds, 0.0);
  result.ends = seconds_of_ends(what.ends, pool, settings.budget);

  const double weights = 2 * static_cast<double>(rows) * weights_of(block.table());
  double ends = 0;
  for (const End& end : what.ends) ends += 2 * static_cast<double>(end.rows * end.in * end.out);
  const double outside =
      parameter_bytes(what, block) + 2 * sizeof(float) * static_cast<double>(x.size());
  for (int a = 0; a < kAttentions; ++a) {
    const auto i = static_cast<std::size_t>(a);
    result.flops[i] = ends + static_cast<double>(what.depth) *
                                 (weights + flops_of(static_cast<Attention>(a), problem));
    result.bytes[i] = outside + static_cast<double>(memory.size()) +
                      static_cast<double>(attention.bytes(static_cast<Attention>(a))) -
                      static_cast<double>(attention.bytes(kMhla));
  }
  return result;
}

}  // namespace throughput
