// Tests of gradients on a device, for all widths and types, against the CPU's gradient in double.
// Inputs are random, gradients and workspaces are poisoned, guard zones surround all memory, and
// two runs have the same bits.

#include "cuda/device/gradients.hpp"

#include <cstring>
#include <vector>

#include "cuda/device/check.hpp"
#include "cuda/device/device_call.hpp"
#include "support/cuda/gradient_call.hpp"

namespace {

using cuda_test::CallShape;
using device_test::DeviceBytes;
using device_test::Selected;
using mhla::cuda::Denominator;
using mhla::cuda::FeatureMap;
using mhla::cuda::Matrices;
using mhla::cuda::Precision;

/// A random call, with its gradients from the device and from the CPU.
template <class T, int D, int E>
class DeviceGradient {
 public:
  DeviceGradient(const CallShape& shape, std::uint64_t seed, Selected which)
      : shape_(shape),
        host_(masked_call(shape, seed, which)),
        got_(host_, shape.layout),
        inputs_{{host_.q.raw(), host_.q.bytes()},
                {host_.k.raw(), host_.k.bytes()},
                {host_.v.raw(), host_.v.bytes()},
                {host_.mixing.raw(), host_.mixing.bytes()},
                {host_.dout.raw(), host_.dout.bytes()},
                {host_.gain.raw(), host_.gain.bytes()},
                {host_.gate.raw(), host_.gate.bytes()},
                {host_.query_angles.raw(), host_.query_angles.bytes()},
                {host_.key_angles.raw(), host_.key_angles.bytes()},
                {host_.bits.data(), host_.bits.bytes()}},
        selection_(host_, which) {
    for (DeviceBytes& place : places_) place = DeviceBytes(0);
    const std::size_t bytes[] = {got_.q.bytes(),    got_.k.bytes(),      got_.v.bytes(),
                                 got_.gate.bytes(), got_.mixing.bytes(), got_.gain.bytes()};
    for (int i = 0; i < 6; ++i) places_[i] = DeviceBytes(bytes[i]);
  }

  /// Runs twice on a device, and compares bits and all gradients with the definition.
  void check(mhla::cuda::Device device, cudaStream_t stream) {
    device_test::GradientFormCall call = make_call(device);
    const std::size_t bytes = device_test::GradientForms<T, D, E>::workspace_bytes(call);
    DeviceBytes workspace(bytes);
    call.forward.workspace = workspace.data();
    call.forward.workspace_bytes = bytes;
    const std::string text = "gradient of " + device_test::text(shape_, "", device.arch) + " D " +
                             std::to_string(D) + ", E " + std::to_string(E);
    std::vector<std::vector<unsigned char>> first;
    for (int run = 0; run < 2; ++run) {
      for (DeviceBytes& place : places_) place.poison();
      workspace.poison();
      device_test::GradientForms<T, D, E>::run(call, stream);
      for (int i = 0; i < 6; ++i) {
        const std::vector<unsigned char> now = places_[i].contents();
        if (run == 0) {
          first.push_back(now);
        } else {
          device_test::expect(now == first[static_cast<std::size_t>(i)],
                              text + ": other bits in a second run");
        }
      }
    }
    unsigned char* const to[] = {got_.q.raw(),    got_.k.raw(),      got_.v.raw(),
                                 got_.gate.raw(), got_.mixing.raw(), got_.gain.raw()};
    for (int i = 0; i < 6; ++i) places_[i].download(to[i]);
    cuda_test::compare(host_, got_, [&](const std::string& wrong) {
      device_test::expect(false, text + ": " + wrong);
    });
    for (DeviceBytes& place : places_) {
      device_test::expect(place.guards_are_untouched(), text + ": wrote outside of a tensor");
    }
    device_test::expect(workspace.guards_are_untouched(),
                        text + ": wrote outside of the workspace");
  }

 private:
  static cuda_test::GradientCall<T> masked_call(const CallShape& shape, std::uint64_t seed,
                                                Selected which) {
    auto call =
        device_test::masked(cuda_test::random_gradient_call<T, D, E>(shape, seed), shape, which);
    if (which == Selected::kMasked) cuda_test::spoil_masked(call.dout, call.query_keep);
    return call;
  }

  device_test::GradientFormCall make_call(mhla::cuda::Device device) {
    const auto blocks = [](const mhla::GridShape& n, const mhla::GridShape& w) {
      const auto size = [](mhla::Index x) { return static_cast<std::int32_t>(x); };
      const auto part = [&](int axis) { return size(std::min(n[axis], w[axis])); };
      return mhla::cuda::TokenBlocks(size(n[0]), size(n[1]), size(n[2]), part(0), part(1), part(2));
    };
    const auto at = [](auto tensor, DeviceBytes& bytes) {
      tensor.data = bytes.data();
      return tensor;
    };
    const auto floats = [](DeviceBytes& bytes) { return reinterpret_cast<float*>(bytes.data()); };
    device_test::GradientFormCall call{};
    call.forward = {
        .causal = shape_.causal,
        .batch = shape_.batch,
        .heads = shape_.heads,
        .query_blocks = blocks(shape_.tokens, shape_.block),
        .key_blocks = blocks(shape_.key_tokens, shape_.key_block),
        .op = shape_.op,
        .q = at(host_.q.input(), inputs_[0]),
        .k = at(host_.k.input(), inputs_[1]),
        .v = at(host_.v.input(), inputs_[2]),
        .o = {},
        .mixing = floats(inputs_[3]),
        .workspace = nullptr,
        .workspace_bytes = 0,
        .device = device,
        .gain = host_.normed() ? floats(inputs_[5]) : nullptr,
        .gate = host_.gated() ? at(host_.gate.input(), inputs_[6]) : mhla::cuda::ConstTokenTensor{},
        .query_angles = floats(inputs_[7]),
        .key_angles = floats(inputs_[8]),
        .head_stride = host_.mixing_array().head_stride,
        .item_stride = host_.mixing_array().item_stride,
        .query_prefix = shape_.prefix,
        .key_prefix = shape_.key_prefix,
        .pattern = host_.bits.bytes() > 0
                       ? reinterpret_cast<const std::uint32_t*>(inputs_[9].data())
                       : nullptr,
        .own_maps = shape_.own_maps};
    selection_.add_to(call.forward);
    call.dout = at(host_.dout.input(), inputs_[4]);
    call.dq = at(got_.q.output(), places_[0]);
    call.dk = at(got_.k.output(), places_[1]);
    call.dv = at(got_.v.output(), places_[2]);
    call.dgate = at(got_.gate.output(), places_[3]);
    call.dmixing = floats(places_[4]);
    call.dgain = floats(places_[5]);
    call.rotary = shape_.rotary;
    return call;
  }

  CallShape shape_;
  cuda_test::GradientCall<T> host_;
  cuda_test::GradientTensors<T> got_;
  DeviceBytes inputs_[10];
  DeviceBytes places_[6] = {DeviceBytes(0), DeviceBytes(0), DeviceBytes(0),
                            DeviceBytes(0), DeviceBytes(0), DeviceBytes(0)};
  device_test::Selection selection_;
};

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
      causal.normed = causal.gated = block == 16;
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
