// Tests of gradients on a device, for all widths and types, against the CPU's gradient in double.
// Inputs are random, gradients and workspaces are poisoned, guard zones surround all memory, and
// two runs have the same bits.

#include "cuda/device/check.hpp"
#include "cuda/device/device_gradient.hpp"

namespace {

using cuda_test::CallShape;
using device_test::DeviceGradient;
using device_test::Selected;
using mhla::cuda::Denominator;
using mhla::cuda::FeatureMap;
using mhla::cuda::Matrices;
using mhla::cuda::Precision;

/// Checks a shape with all kernels that this device has.
template <class T, int D, int E>
void check(const CallShape& shape, std::int32_t multiprocessors = 1,
           Selected which = Selected::kAll) {
  static std::uint64_t seed = device_test::first_seed();
  const device_test::Stream stream;
  DeviceGradient<T, D, E> call(shape, seed++, which);
  for (const mhla::cuda::Device& device : device_test::targets(multiprocessors)) {
    call.check(device, stream);
  }
}

void of_partitions() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    check<T, D, E>({.tokens = 40, .block = 1});
    check<T, D, E>({.batch = 2, .heads = 3, .tokens = 200, .block = 16});
    for (const std::int32_t multiprocessors : {1, 8}) {  // a fused kernel, or products
      check<T, D, E>({.tokens = 400, .block = 64, .layout = 1}, multiprocessors);
    }
    check<T, D, E>({.batch = 2, .tokens = {19, 14}, .block = {4, 3}, .layout = 2});
    check<T, D, E>({.heads = 2, .tokens = {6, 9, 10}, .block = {2, 3, 5}, .layout = 1});
    check<T, D, E>({.tokens = 90, .block = 30, .key_tokens = {20, 18}, .key_block = {4, 3}});
    check<T, D, E>({.batch = 2, .heads = 2, .tokens = {14, 14}, .block = {7, 7}, .prefix = 1});
    check<T, D, E>({.tokens = 300, .block = 64, .causal = true, .layout = 1, .prefix = 5});
  });
}

void of_selected_tokens() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (const Selected which : {Selected::kMasked, Selected::kPacked}) {
      for (const int tokens : {64, 600}) {
        for (const bool is_causal : {false, true}) {
          CallShape shape{.batch = 3, .heads = 2, .tokens = tokens, .block = tokens / 4};
          shape.causal = is_causal;
          shape.op.key_map = FeatureMap::elu_plus_one();
          shape.op.eps = 0.5f;
          check<T, D, E>(shape, 1, which);
        }
      }
    }
  });
}

void of_normalizers_and_maps() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    CallShape shape{.batch = 2, .tokens = {12, 12}, .block = {3, 4}};
    shape.op.eps = 1e-3f;
    shape.op.denominator = Denominator::kCrossQuery;
    check<T, D, E>(shape);
    shape.op.denominator = Denominator::kKeySum;
    shape.op.query_map = shape.op.key_map = FeatureMap::elu_plus_one();
    shape.op.scale = 0.5f;
    shape.op.summaries = Precision::kPair;
    check<T, D, E>(shape);
    shape.tokens = shape.key_tokens = 300;
    shape.block = shape.key_block = 50;
    check<T, D, E>(shape);
    shape.op = {.query_map = FeatureMap::identity(),
                .key_map = FeatureMap::identity(),
                .denominator = Denominator::kNone,
                .scale = 0.125f};
    check<T, D, E>(shape);
  });
}

void of_own_maps() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (const int tokens : {54, 300}) {
      CallShape shape{.batch = 2, .heads = 3, .tokens = tokens, .block = 25, .own_maps = true};
      check<T, D, E>(shape);
      shape.causal = true;
      check<T, D, E>(shape);
    }
  });
}

void causal() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    const std::pair<int, int> sizes[] = {{40, 1}, {200, 16}, {256, 64}, {300, 49}, {450, 150}};
    for (const auto& [tokens, block] : sizes) {
      CallShape shape{.batch = 2, .tokens = tokens, .block = block, .causal = true};
      shape.layout = tokens % 3;
      if (block == 49) shape.op.denominator = Denominator::kNone;
      check<T, D, E>(shape);
    }
  });
}

void matrices_of_heads() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (const Matrices matrices : {Matrices::kPerHead, Matrices::kPerItemAndHead}) {
      for (const bool is_causal : {false, true}) {
        for (const int tokens : {54, 300}) {
          CallShape shape{
              .batch = 2, .heads = 3, .tokens = tokens, .block = 9, .causal = is_causal};
          shape.op.matrices = matrices;
          check<T, D, E>(shape);
        }
      }
    }
  });
}

void patterns() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (const bool is_causal : {false, true}) {
      CallShape shape{.heads = 2, .tokens = 420, .block = 3, .causal = is_causal};
      shape.pattern = mhla::Pattern(140, 140, 40, 5);
      check<T, D, E>(shape);
    }
    CallShape few{.batch = 2, .heads = 2, .tokens = 64, .block = 16};
    few.pattern = mhla::Pattern(4, {{0, 3}, {1}, {}, {0, 2, 3}});
    few.op.denominator = Denominator::kNone;
    few.op.matrices = Matrices::kPerHead;
    check<T, D, E>(few);
  });
}

void decaying_terms() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
      for (const int block : {1, 16, 49}) {
        CallShape shape{.batch = 2, .heads = 2, .tokens = 300, .block = block, .causal = true};
        shape.op.decay_terms = block == 16 ? 5 : 2;
        shape.op.summaries = summaries;
        shape.op.matrices = block == 16 ? Matrices::kPerHead : Matrices::kShared;
        if (block == 49) shape.op.denominator = Denominator::kNone;
        check<T, D, E>(shape);
      }
    }
  });
}

void rotary_gain_and_gate() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    CallShape shape{.heads = 2, .tokens = {1, 8, 12}, .block = {1, 4, 6}, .normed = true};
    shape.rotary = D != 72;
    for (const bool gated : {false, true}) {
      shape.gated = gated;
      check<T, D, E>(shape);
      CallShape causal{.tokens = 150, .block = 64, .causal = true};
      causal.op.denominator = Denominator::kNone;
      causal.normed = true;
      causal.gated = gated;
      causal.rotary = D != 72;
      check<T, D, E>(causal);
    }
  });
}

void of_float32() {
  device_test::for_widths<float>("float", []<class T, int D, int E>() {
    check<T, D, E>({.batch = 2, .heads = 3, .tokens = 200, .block = 16});
    check<T, D, E>({.batch = 2, .tokens = {19, 14}, .block = {4, 3}, .layout = 2});
    CallShape shape{.tokens = {12, 12}, .block = {3, 4}};
    shape.op.eps = 1e-3f;
    shape.op.denominator = Denominator::kCrossQuery;
    check<T, D, E>(shape);
    for (const int block : {16, 150}) {
      CallShape causal{.batch = 2, .tokens = 450, .block = block, .causal = true, .layout = 1};
      causal.op.query_map = causal.op.key_map = FeatureMap::elu_plus_one();
      causal.normed = causal.gated = block == 16 && device_test::kTakesNorm<T, E>;
      check<T, D, E>(causal);
    }
  });
}

void of_many_heads() {
  const std::int32_t all = device_test::current_device().multiprocessors;
  device_test::for_each_kind([&]<class T, int D, int E>() {
    check<T, D, E>({.batch = 3, .heads = 50, .tokens = 64, .block = 16}, all);
    CallShape shape{.batch = 2, .heads = 20, .tokens = 512, .block = 64, .causal = true};
    if (D == 64) check<T, D, E>(shape, all);
    CallShape few_blocks{.batch = 4, .heads = 50, .tokens = 512, .block = 64};
    if (D == 64) check<T, D, E>(few_blocks, all);
  });
}

}  // namespace

int main(int count, char** arguments) {
  return device_test::run_tests({{"Gradients.OfPartitions", of_partitions},
                                 {"Gradients.OfNormalizersAndMaps", of_normalizers_and_maps},
                                 {"Gradients.OfSelectedTokens", of_selected_tokens},
                                 {"Gradients.OfOwnMaps", of_own_maps},
                                 {"Gradients.Causal", causal},
                                 {"Gradients.MatricesOfHeads", matrices_of_heads},
                                 {"Gradients.Patterns", patterns},
                                 {"Gradients.DecayingTerms", decaying_terms},
                                 {"Gradients.RotaryGainAndGate", rotary_gain_and_gate},
                                 {"Gradients.OfFloat32", of_float32},
                                 {"Gradients.OfManyHeads", of_many_heads}},
                                count, arguments);
}
