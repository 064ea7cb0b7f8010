/// \file
/// How many items a second models run with softmax, linear attention and MHLA, on random weights:
/// what figure 1 of the paper shows of a GPU, on this processor.
///
///     DiT-S/2       images of 128 to 4096 pixels, N = 64 to 65,536 tokens
///     DeiT-S        images of 256 pixels
///     VLT-T 1, 2    the two stages of VLT-T whose attention is not softmax
///     SANA          a block, 1024 to 4096 pixels
///     Wan2.1        a self-attention layer of the model of 1.3B, 31,500 tokens
///     340M          a language model: prompts of 2048 to 131,072 tokens, and a token behind them
///
/// A model's time is that of its ends and of its depth times one block, which is measured. Blocks
/// are those of the library; those of softmax and linear attention differ in the attention alone
/// (throughput/block.hpp). MHLA has as many blocks of tokens as its authors' models, and at other
/// lengths the most that M^2 <= N allows. Predicted is the ratio of the operation counts.
///
/// Run:       bash examples/run.sh throughput [--quick] [options], see --help
///            where there is PyTorch (MHLA_PYTHON), the same models run there, too
/// Expected:  a table, PREFIX.json, and by run.sh PREFIX.svg; times depend on the machine

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <mhla/layer/sana_block.hpp>
#include <mhla/layer/video_layer.hpp>
#include <mhla/layer/vision_block.hpp>
#include <mhla/layer/vlt_stage.hpp>
#include <string>
#include <thread>
#include <vector>

#include "support/command_line.hpp"
#include "support/results.hpp"
#include "throughput/block.hpp"
#include "throughput/decoding.hpp"
#include "throughput/report.hpp"

namespace {

using namespace throughput;
using mhla::GridShape;

/// What the command line says.
struct Options {
  std::vector<std::string> models;
  std::vector<Index> threads;
  Index longest_input = 1 << 20;
  double seconds = 1, softmax_seconds = 10;
  std::string output = "throughput", save;
  bool quick = false;
};

constexpr Index kLeastTokens = 1024;  ///< of a call: small images come in batches

/// The most blocks along each side of a square of `side` tokens for M^2 <= N, a power of two.
Index blocks_of_side(Index side) {
  Index blocks = 1;
  while (16 * blocks * blocks * blocks * blocks <= side * side) blocks *= 2;
  return std::max<Index>(blocks, 4);
}

mhla::Operator<mhla::Relu, mhla::Relu, mhla::AnyNormalizer> vision_operator() {
  return {{1e-6}, {1e-6}, mhla::CrossQuery{1e-6}};
}

/// Images of side x side tokens, block after block, in blocks x blocks blocks.
struct Images {
  Index side, blocks, heads, channels, batch;

  mhla::VisionOptions attention() const {
    return {.heads = heads,
            .tokens = GridShape(side, side),
            .block = GridShape(side / blocks, side / blocks),
            .order = mhla::TokenOrder::kBlocks};
  }
  Problem problem() const {
    const Index n = side * side, d = channels / heads;
    return {batch, heads, d, d, GridShape(n), GridShape(n / (blocks * blocks))};
  }
};

Images images(Index side, Index blocks, Index heads, Index channels) {
  return {side, blocks, heads, channels, std::max<Index>(kLeastTokens / (side * side), 1)};
}

Case image_case(std::string model, const std::string& input, Index depth, const Images& i) {
  return {std::move(model),   input, "images", i.batch, depth, i.attention().tokens,
          i.attention().block};
}

Result dit(Index pixels, const Settings& s) {
  const Index side = pixels / 16;  // an eighth of the pixels in latents, patches of 2
  const Images i = images(side, blocks_of_side(side), 6, 384);
  Case what = image_case("DiT-S/2", std::to_string(pixels) + " px", 12, i);
  const Index rows = i.batch * side * side;
  what.ends = {{rows, 16, 384}, {rows, 384, 32}};
  return measure<false, mhla::DitBlock<float>>(what, {.attention = i.attention(), .channels = 384},
                                               384, i.problem(), vision_operator(), s);
}

Result deit(Index pixels, const Settings& s) {
  const Images i = images(pixels / 16, 4, 6, 384);
  Case what = image_case("DeiT-S", std::to_string(pixels) + " px", 12, i);
  what.ends = {{i.batch * i.side * i.side, 768, 384}, {i.batch, 384, 1000}};
  return measure<false, mhla::DeitBlock<float>>(
      what, {.attention = deit_attention(i.attention()), .channels = 384}, 0, i.problem(),
      vision_operator(), s);
}

Result vlt(Index stage, const Settings& s) {
  const Images i = stage == 1 ? images(56, 7, 1, 64) : images(28, 4, 2, 128);
  const Case what = image_case("VLT-T " + std::to_string(stage), "224 px", 2, i);
  return measure<false, mhla::VltStage<float>>(
      what, {.attention = i.attention(), .depth = 1, .channels = i.channels}, 0, i.problem(),
      vision_operator(), s);
}

Result sana(Index pixels, const Settings& s) {
  const Index side = pixels / 32;
  const Images i = images(side, blocks_of_side(side), 36, 1152);
  return measure<false, mhla::SanaBlock<float>>(
      image_case("SANA block", std::to_string(pixels) + " px", 1, i),
      {.attention = i.attention(), .channels = 1152}, 6 * 1152, i.problem(), vision_operator(), s);
}

Result wan(Index frames, const Settings& s) {
  const GridShape grid = frames == 21 ? GridShape(21, 30, 50) : GridShape(frames, 6, 10);
  const GridShape layout = frames == 21 ? GridShape(3, 5, 10) : GridShape(1, 2, 2);
  const GridShape block(grid[0] / layout[0], grid[1] / layout[1], grid[2] / layout[2]);
  const Case what{"Wan layer", std::to_string(frames) + " frames", "layers", 1, 1, grid, block};
  return measure<false, mhla::VideoLayer<float>>(
      what, {.heads = 12, .grid = grid, .layout = layout, .channels = 1536, .gate = true}, 0,
      {1, 12, 128, 128, grid, block},
      mhla::Operator<mhla::Identity, mhla::Identity, mhla::AnyNormalizer>{
          {}, {}, mhla::NoNormalizer{}},
      s);
}

Problem sequence(Index tokens) {
  Index length = 64;
  while ((tokens / length) * (tokens / length) > tokens) length *= 2;
  return {1, 4, 128, 256, GridShape(tokens), GridShape(length), true};
}
mhla::LanguageBlockOptions language_options(const Problem& p) {
  return {.attention = {.heads = 4, .chunk = p.block_length(), .chunks = p.blocks()},
          .channels = 1024};
}

Result prefill(Index tokens, const Settings& s) {
  const Problem p = sequence(tokens);
  const Case what{"340M",  std::to_string(tokens), "tokens", tokens, 24, p.grid,
                  p.block, {{1, 1024, 32000}}};
  return measure<true, mhla::LanguageBlock<float>>(what, language_options(p), 0, p,
                                                   LanguageOp{.scale = 1 / std::sqrt(128.0)}, s);
}

Result decode(Index tokens, const Settings& s) {
  const Problem p = sequence(tokens);
  const Case what{
      "340M token",      "at " + std::to_string(tokens), "tokens", 1, 24, p.grid, p.block,
      {{1, 1024, 32000}}};
  return measure_decoding(what, language_options(p), p, s);
}

/// A model, the inputs that are measured, and the one of --quick.
struct Model {
  std::string name;
  std::vector<Index> inputs;
  Index quick;
  std::function<Result(Index, const Settings&)> run;
};

const std::vector<Model>& models() {
  static const std::vector<Model> all{{"dit", {128, 256, 512, 1024, 2048, 4096}, 128, dit},
                                      {"deit", {256}, 256, deit},
                                      {"vlt", {1, 2}, 2, vlt},
                                      {"sana", {1024, 2048, 4096}, 256, sana},
                                      {"wan", {21}, 3, wan},
                                      {"prefill", {2048, 8192, 32768, 131072}, 256, prefill},
                                      {"decode", {2048, 8192, 32768, 131072}, 256, decode}};
  return all;
}

/// \throws CLI::ParseError, std::runtime_error naming the option
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  std::vector<std::string> names;
  for (const Model& m : models()) names.push_back(m.name);
  o.models = names;
  o.threads = {1};
  if (std::thread::hardware_concurrency() > 1) {
    o.threads.push_back(static_cast<Index>(std::thread::hardware_concurrency()));
  }
  app.add_option("--model", o.models, "what to measure; repeatable")
      ->check(CLI::IsMember(names))
      ->expected(1)
      ->take_all();
  app.add_option("--threads", o.threads, "numbers of threads; repeatable")
      ->check(CLI::Range(1, 1024))
      ->expected(1)
      ->take_all();
  app.add_option("--longest", o.longest_input, "largest input: pixels, frames or tokens")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--seconds", o.seconds, "a measurement repeats for so long")
      ->check(CLI::Range(0.0, 3600.0))
      ->check(examples::finite());
  app.add_option("--softmax-seconds", o.softmax_seconds,
                 "softmax of a layer that takes longer is measured on 8192 queries")
      ->check(CLI::Range(0.0, 86400.0))
      ->check(examples::finite());
  app.add_option("--output", o.output, "prefix of the .json");
  app.add_option("--save", o.save, "folder for each block with its input and output")
      ->check(CLI::ExistingDirectory);
  app.add_flag("--quick", o.quick, "seconds: each model once, on a small input");
  app.parse(argc, argv);
  examples::expect_folder("--output", o.output);
}

std::vector<Result> measure_all(const Options& o) {
  std::vector<Result> results;
  for (const Model& model : models()) {
    if (std::ranges::find(o.models, model.name) == o.models.end()) continue;
    for (const Index input : o.quick ? std::vector{model.quick} : model.inputs) {
      if (input > o.longest_input) continue;
      for (const Index threads : o.threads) {
        results.push_back(
            model.run(input, {threads, o.quick ? 0 : o.seconds, o.softmax_seconds, o.save}));
        print_row(results.back());
      }
    }
  }
  return results;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::with_command_line(
      "throughput", "Items per second of models with softmax, linear attention and MHLA.",
      [&](CLI::App& app) {
        Options options;
        parse(app, options, argc, argv);
        print_header();
        const std::vector<Result> results = measure_all(options);
        print_notes();
        print_crossings(results);
        examples::write_results(options.output + ".json", to_json(results), 1);
        std::printf("%s.json: ok\n", options.output.c_str());
        return 0;
      });
}
