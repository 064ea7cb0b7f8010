// Tests of every form on a device, for all widths and types, against the CPU's form in double.
// Inputs are random, outputs and workspaces are poisoned, and guard zones surround all memory.

#include <string>
#include <type_traits>

#include "cuda/device/check.hpp"
#include "cuda/device/check_form.hpp"
#include "mhla/cuda/launch/workspace.cuh"

namespace {

using device_test::CallShape;
using device_test::check;
using device_test::forms_seen;
using device_test::kShapes;
using mhla::cuda::Denominator;
using mhla::cuda::FeatureMap;
using mhla::cuda::Matrices;
using mhla::cuda::Precision;

void every_partition() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (CallShape shape : kShapes) {
      check<T, D, E>(shape);
      shape.op.denominator = Denominator::kNone;
      check<T, D, E>(shape);
    }
  });
  for (const char* form : {"quadratic", "fused", "three-stage"}) {
    if (!device_test::kind().empty()) break;  // a single kind may lack a form
    device_test::expect(forms_seen().count(form) == 1, std::string("no ") + form + " form ran");
  }
}

void matrices_of_heads() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (const Matrices matrices : {Matrices::kPerHead, Matrices::kPerItemAndHead}) {
      for (CallShape shape : kShapes) {
        shape.op.matrices = matrices;
        check<T, D, E>(shape);
      }
    }
    CallShape large{.batch = 2, .heads = 2, .tokens = 600, .block = 2};  // rounded copies
    large.op.matrices = Matrices::kPerHead;
    check<T, D, E>(large);
    large.causal = true;
    check<T, D, E>(large);
  });
}

void pairs_of_summaries() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (CallShape shape : kShapes) {
      shape.op.summaries = Precision::kPair;
      check<T, D, E>(shape);
    }
  });
}

void cross_query_denominators() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
      CallShape shape{.batch = 2, .heads = 2, .tokens = {12, 12}, .block = {3, 4}};
      shape.op.denominator = Denominator::kCrossQuery;
      shape.op.eps = 1e-6f;
      shape.op.summaries = summaries;
      check<T, D, E>(shape);
      shape.tokens = shape.key_tokens = 7 * 70;
      shape.block = shape.key_block = 70;
      check<T, D, E>(shape);
      shape.tokens = shape.key_tokens = {8, 16};  // a thread block has all queries of any width
      shape.block = shape.key_block = {4, 4};
      check<T, D, E>(shape);
    }
  });
}

void other_keys_than_queries() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (const int layout : {0, 1, 2}) {
      check<T, D, E>({.heads = 2,
                      .tokens = 90,
                      .block = 30,
                      .key_tokens = {20, 18},
                      .key_block = {4, 3},
                      .layout = layout});
      check<T, D, E>({.tokens = {9, 50},
                      .block = {3, 25},
                      .key_tokens = 70,
                      .key_block = 35,
                      .layout = layout});
      check<T, D, E>(
          {.tokens = 500, .block = 16, .key_tokens = 600, .key_block = 200, .layout = layout});
    }
  });
}

/// A class token before an image, registers before a sequence, and longer prefixes than blocks.
void prefixes() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (const int layout : {0, 1, 2}) {
      check<T, D, E>({.batch = 2,
                      .heads = 2,
                      .tokens = {14, 14},
                      .block = {7, 7},
                      .layout = layout,
                      .prefix = 1});
      check<T, D, E>(
          {.tokens = {19, 14}, .block = {4, 3}, .layout = layout, .prefix = 20, .key_prefix = 4});
      check<T, D, E>({.tokens = 500, .block = 64, .causal = true, .layout = layout, .prefix = 4});
      CallShape rotary{.tokens = {9, 10}, .block = {3, 5}, .layout = layout, .rotary = D != 72};
      rotary.prefix = rotary.key_prefix = 2;
      check<T, D, E>(rotary);
    }
  });
}

void every_feature_map_and_scale() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (const FeatureMap& map :
         {FeatureMap::identity(), FeatureMap::relu(0.5f), FeatureMap::elu_plus_one()}) {
      for (const int tokens : {50, 260, 900}) {
        CallShape shape{.heads = 2, .tokens = tokens, .block = 13};
        shape.op = {.query_map = map,
                    .key_map = map,
                    .denominator = map.floor == 0 ? Denominator::kKeySum : Denominator::kNone,
                    .eps = 0.25f,
                    .scale = 0.125f};
        check<T, D, E>(shape);
        shape.causal = true;
        check<T, D, E>(shape);
      }
    }
  });
}

/// Maps of one's own, also with short last blocks.
void own_maps() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (const int tokens : {50, 260, 900}) {
      CallShape shape{.heads = 2, .tokens = tokens, .block = 70, .own_maps = true};
      check<T, D, E>(shape);
      shape.causal = true;
      check<T, D, E>(shape);
    }
  });
}

void causal() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    const std::pair<int, int> sizes[] = {{1, 1},    {40, 1},     {200, 16},  {256, 64},  {300, 49},
                                         {777, 64}, {1024, 256}, {600, 210}, {900, 1000}};
    for (const auto& [tokens, block] : sizes) {
      for (const Denominator denominator : {Denominator::kKeySum, Denominator::kNone}) {
        for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
          CallShape shape{.batch = 2, .heads = 2, .tokens = tokens, .block = block};
          shape.causal = true;
          shape.layout = tokens % 3;
          shape.op.denominator = denominator;
          shape.op.summaries = summaries;
          check<T, D, E>(shape);
        }
      }
    }
  });
}

void patterns() {
  const std::int32_t all = device_test::current_device().multiprocessors;
  device_test::for_each_kind([&]<class T, int D, int E>() {
    for (const mhla::Pattern& pattern :
         {mhla::Pattern(300, 300, 3, 1), mhla::Pattern(300, 300, 70, 0)}) {
      for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
        for (const bool is_causal : {false, true}) {
          CallShape shape{.heads = 2, .tokens = 600, .block = 2, .causal = is_causal};
          shape.op.summaries = summaries;
          shape.pattern = pattern;
          check<T, D, E>(shape, all);
        }
      }
    }
  });
}

void decaying_terms() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    const std::pair<int, int> sizes[] = {{1, 1}, {300, 1}, {200, 16}, {600, 49}, {900, 1000}};
    for (const auto& [tokens, block] : sizes) {
      for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
        CallShape shape{.batch = 2, .heads = 2, .tokens = tokens, .block = block, .causal = true};
        shape.op.decay_terms = 1 + tokens % 5;
        shape.op.summaries = summaries;
        shape.op.matrices = block == 16 ? Matrices::kPerHead : Matrices::kShared;
        if (block == 49) shape.op.denominator = Denominator::kNone;
        check<T, D, E>(shape);
      }
    }
  });
}

/// Cases with more blocks than fit beside a tile, so m is streamed, and with keys split over thread
/// blocks.
void many_blocks() {
  const std::int32_t all = device_test::current_device().multiprocessors;
  bool splits = false;  // true if a kind has the kernel for split keys
  device_test::for_each_kind([&]<class T, int D, int E>() {
    splits = splits || (D == E && D != 72);
    for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
      for (const bool causal : {false, true}) {
        CallShape shape{.heads = 2, .tokens = 600, .block = 2};
        shape.causal = causal;
        shape.op.summaries = summaries;
        check<T, D, E>(shape, all);
      }
    }
    // The matrix of 200 blocks stays in shared memory, but not as a high and a low part.
    for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
      CallShape shape{.heads = 2, .tokens = 400, .block = 2};
      shape.op.summaries = summaries;
      check<T, D, E>(shape, all);
    }
    if constexpr (D != 72) {
      const auto rounded = [](std::int32_t blocks, Precision summaries) {
        mhla::cuda::Problem problem{};
        problem.op.summaries = summaries;
        return mhla::cuda::rounded_coefficients<D, E>(blocks, blocks, problem,
                                                      {mhla::cuda::Arch::kSm90a, 132});
      };
      device_test::expect(rounded(300, Precision::kSingle) > 0 &&
                              rounded(200, Precision::kSingle) == 0 &&
                              rounded(200, Precision::kPair) > 0,
                          "m of 300 blocks, or of 200 in two parts, is not streamed");
    }
    check<T, D, E>({.heads = 2, .tokens = 256, .block = 16}, all);
  });
  device_test::expect(!splits || forms_seen().count("split keys") == 1, "no call split its keys");
}

/// Rotated features of images, videos and sequences, with separate keys.
void rotary() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    if constexpr (D != 72) {
      for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
        for (const int layout : {0, 1, 2}) {
          CallShape video{.heads = 2, .tokens = {3, 7, 9}, .block = {2, 3, 4}, .layout = layout};
          video.rotary = true;
          video.op.summaries = summaries;
          check<T, D, E>(video);
          CallShape cross{.tokens = 700,
                          .block = 70,
                          .key_tokens = {1, 9, 7},
                          .key_block = {1, 4, 4},
                          .layout = layout};
          cross.rotary = true;
          cross.op.denominator = Denominator::kNone;
          cross.op.summaries = summaries;
          check<T, D, E>(cross);
          for (const int block : {40, 64, 100, 256}) {
            CallShape sequence{.batch = 2, .tokens = 530, .block = block, .causal = true};
            sequence.layout = layout;
            sequence.rotary = true;
            sequence.op.denominator = Denominator::kNone;
            sequence.op.summaries = summaries;
            check<T, D, E>(sequence);
          }
        }
        CallShape image{.batch = 2, .tokens = {1, 8, 12}, .block = {1, 4, 6}};
        image.rotary = true;
        image.op.denominator = Denominator::kCrossQuery;
        image.op.eps = 1e-3f;
        image.op.summaries = summaries;
        check<T, D, E>(image);
      }
    }
  });
}

/// Normalised and gated outputs, with and without rotated features.
void gains_and_gates() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (const bool gated : {false, true}) {
      for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
        for (const Denominator denominator : {Denominator::kKeySum, Denominator::kNone}) {
          CallShape image{.batch = 2, .heads = 3, .tokens = {19, 14}, .block = {4, 3}};
          image.layout = gated ? 2 : 1;
          image.normed = true;
          image.gated = gated;
          image.op.summaries = summaries;
          image.op.denominator = denominator;
          check<T, D, E>(image);
          CallShape blocks{.heads = 2, .tokens = 700, .block = 128};
          blocks.normed = true;
          blocks.gated = gated;
          blocks.op = image.op;
          check<T, D, E>(blocks);
          for (const int block : {49, 64, 256}) {
            CallShape sequence = blocks;
            sequence.block = sequence.key_block = block;
            sequence.causal = true;
            sequence.layout = block % 3;
            check<T, D, E>(sequence);
          }
        }
        CallShape cross{.tokens = {12, 12}, .block = {3, 4}};
        cross.normed = true;
        cross.gated = gated;
        cross.op.denominator = Denominator::kCrossQuery;
        cross.op.eps = 1e-6f;
        cross.op.summaries = summaries;
        check<T, D, E>(cross);
      }
      if constexpr (D != 72) {
        CallShape turned{.heads = 2, .tokens = {2, 15, 10}, .block = {1, 5, 5}, .layout = 2};
        turned.rotary = turned.normed = true;
        turned.gated = gated;
        check<T, D, E>(turned);
        CallShape sequence{.tokens = 300, .block = 64, .causal = true};
        sequence.rotary = sequence.normed = true;
        sequence.gated = gated;
        sequence.op.denominator = Denominator::kNone;
        check<T, D, E>(sequence);
      }
    }
  });
}

void float32() {
  device_test::for_widths<float>("float", []<class T, int D, int E>() {
    for (CallShape shape : kShapes) {
      check<T, D, E>(shape);
      shape.op.matrices = Matrices::kPerHead;
      shape.op.query_map = shape.op.key_map = FeatureMap::elu_plus_one();
      check<T, D, E>(shape);
      if (shape.tokens[0] * shape.tokens[1] > 1) continue;
      shape.causal = true;
      check<T, D, E>(shape);
    }
    CallShape cross{.batch = 2, .heads = 2, .tokens = {12, 12}, .block = {3, 4}};
    cross.op.denominator = Denominator::kCrossQuery;
    cross.op.eps = 1e-6f;
    check<T, D, E>(cross);
    cross.op.denominator = Denominator::kNone;
    cross.normed = cross.gated = device_test::kTakesNorm<T, E>;
    check<T, D, E>(cross);
  });
}

/// Cases of a model's size, with more work than a device runs at once.
void many_heads() {
  const std::int32_t all = device_test::current_device().multiprocessors;
  device_test::for_each_kind([&]<class T, int D, int E>() {
    if constexpr (std::is_same_v<T, mhla::cuda::bfloat16>) {
      if constexpr (D == 64) {
        check<T, D, E>({.batch = 32, .heads = 12, .tokens = 256, .block = 16}, all);
        check<T, D, E>({.batch = 32, .heads = 12, .tokens = 1024, .block = 64}, all);
        check<T, D, E>({.batch = 4, .heads = 12, .tokens = 4096, .block = 64}, all);
      } else if constexpr (D == 72) {
        check<T, D, E>({.batch = 8, .heads = 16, .tokens = 1024, .block = 64}, all);
      } else if constexpr (E == 128) {
        check<T, D, E>({.heads = 4, .tokens = {21, 30, 50}, .block = {7, 6, 5}}, all);
      }
      if constexpr (D != 72) {
        for (const int block : {64, 256}) {
          CallShape shape{.batch = 4, .heads = 4, .tokens = 4096, .block = block};
          shape.causal = true;
          check<T, D, E>(shape, all);
        }
      }
    }
  });
}

}  // namespace

int main(int count, char** arguments) {
  return device_test::run_tests({{"Forms.EveryPartition", every_partition},
                                 {"Forms.MatricesOfHeads", matrices_of_heads},
                                 {"Forms.PairsOfSummaries", pairs_of_summaries},
                                 {"Forms.CrossQueryDenominators", cross_query_denominators},
                                 {"Forms.OtherKeysThanQueries", other_keys_than_queries},
                                 {"Forms.Prefixes", prefixes},
                                 {"Forms.EveryFeatureMapAndScale", every_feature_map_and_scale},
                                 {"Forms.OwnMaps", own_maps},
                                 {"Forms.Causal", causal},
                                 {"Forms.Patterns", patterns},
                                 {"Forms.DecayingTerms", decaying_terms},
                                 {"Forms.ManyBlocks", many_blocks},
                                 {"Forms.Rotary", rotary},
                                 {"Forms.GainsAndGates", gains_and_gates},
                                 {"Forms.Float32", float32},
                                 {"Forms.ManyHeads", many_heads}},
                                count, arguments);
}
