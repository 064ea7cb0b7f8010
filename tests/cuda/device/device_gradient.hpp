#pragma once

/// \file
/// A call of a gradient on the device, and the comparison with the CPU's gradient in double.

#include <cstring>
#include <string>
#include <vector>

#include "cuda/device/check.hpp"
#include "cuda/device/device_call.hpp"
#include "cuda/device/gradients.hpp"
#include "support/cuda/gradient_call.hpp"

namespace device_test {

/// A random call, with its gradients from the device and from the CPU.
template <class T, int D, int E>
class DeviceGradient {
 public:
  DeviceGradient(const CallShape& shape, std::uint64_t seed, Selected which = Selected::kAll)
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

  /// Runs several times on a device, and compares bits and all gradients with the definition.
  void check(mhla::cuda::Device device, cudaStream_t stream, int runs = 2) {
    GradientFormCall call = make_call(device);
    const std::size_t bytes = GradientForms<T, D, E>::workspace_bytes(call);
    DeviceBytes workspace(bytes);
    call.forward.workspace = workspace.data();
    call.forward.workspace_bytes = bytes;
    const std::string text = "gradient of " + device_test::text(shape_, "", device.arch) + " D " +
                             std::to_string(D) + ", E " + std::to_string(E);
    std::vector<std::vector<unsigned char>> first;
    for (int run = 0; run < runs; ++run) {
      for (DeviceBytes& place : places_) place.poison();
      workspace.poison();
      GradientForms<T, D, E>::run(call, stream);
      for (int i = 0; i < 6; ++i) {
        const std::vector<unsigned char> now = places_[i].contents();
        if (run == 0) {
          first.push_back(now);
        } else {
          expect(now == first[static_cast<std::size_t>(i)],
                 text + ": other bits in run " + std::to_string(run));
        }
      }
    }
    unsigned char* const to[] = {got_.q.raw(),    got_.k.raw(),      got_.v.raw(),
                                 got_.gate.raw(), got_.mixing.raw(), got_.gain.raw()};
    for (int i = 0; i < 6; ++i) places_[i].download(to[i]);
    cuda_test::compare(host_, got_,
                       [&](const std::string& wrong) { expect(false, text + ": " + wrong); });
    for (DeviceBytes& place : places_) {
      expect(place.guards_are_untouched(), text + ": wrote outside of a gradient");
    }
    for (DeviceBytes& input : inputs_) {
      expect(input.guards_are_untouched(), text + ": wrote outside of an input");
    }
    expect(workspace.guards_are_untouched(), text + ": wrote outside of the workspace");
  }

 private:
  static cuda_test::GradientCall<T> masked_call(const CallShape& shape, std::uint64_t seed,
                                                Selected which) {
    auto call = masked(cuda_test::random_gradient_call<T, D, E>(shape, seed), shape, which);
    if (which == Selected::kMasked) cuda_test::spoil_masked(call.dout, call.query_keep);
    return call;
  }

  GradientFormCall make_call(mhla::cuda::Device device) {
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
    GradientFormCall call{};
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
  Selection selection_;
};

}  // namespace device_test
