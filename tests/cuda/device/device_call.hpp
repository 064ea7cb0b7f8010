#pragma once

/// \file
/// A call of a form with its tensors on the device, and the comparison of its results with the
/// CPU's form in double.

#include <cmath>
#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/device/check.hpp"
#include "cuda/device/device_bytes.hpp"
#include "cuda/device/forms.hpp"
#include "support/cuda/masked_tokens.hpp"
#include "support/cuda/random_call.hpp"
#include "support/cuda/reference.hpp"

namespace device_test {

using cuda_test::Call;
using cuda_test::CallShape;

/// Largest error, relative to the norm of a head's outputs. The worst-case bound of reference.hpp
/// is far above errors of independent roundings; wrong outputs exceed this limit.
inline constexpr double kLargestError = 0.03;

/// Describes a call, for messages.
inline std::string text(const CallShape& s, const char* form, mhla::cuda::Arch arch) {
  const auto axes = [](const mhla::GridShape& g) {
    return std::to_string(g[0]) + "x" + std::to_string(g[1]) + "x" + std::to_string(g[2]);
  };
  return std::string(form) + (s.causal ? " causal" : "") +
         (arch == mhla::cuda::Arch::kSm90a ? " sm_90a" : " sm_80") +
         " B=" + std::to_string(s.batch) + " H=" + std::to_string(s.heads) + " tokens " +
         axes(s.tokens) + "/" + axes(s.block) + " keys " + axes(s.key_tokens) + "/" +
         axes(s.key_block) + " denominator " + std::to_string(static_cast<int>(s.op.denominator)) +
         " precision " + std::to_string(static_cast<int>(s.op.summaries)) + " layout " +
         std::to_string(s.layout) + " prefix " + std::to_string(s.prefix) + "/" +
         std::to_string(s.key_prefix) + (s.rotary ? " rotary" : "") + (s.normed ? " normed" : "") +
         (s.gated ? " gated" : "") + (s.own_maps ? " own maps" : "");
}

/// Compares the outputs of a head, output(t, e), with the expected ones.
template <class Output>
bool head_is_right(const std::string& text, int b, int h, const cuda_test::Expected& exact,
                   Output&& output) {
  double error = 0, norm = 0;
  for (int t = 0; t < exact.o.rows(); ++t) {
    for (int e = 0; e < exact.o.cols(); ++e) {
      const double o = output(t, e);
      const double difference = std::abs(o - exact.o(t, e));
      error += difference * difference;
      norm += exact.o(t, e) * exact.o(t, e);
      if (difference <= exact.bound(t, e)) continue;  // false for NaN
      expect(false, text + ": o(" + std::to_string(b) + "," + std::to_string(t) + "," +
                        std::to_string(h) + "," + std::to_string(e) + ") is " + std::to_string(o) +
                        ", expected " + std::to_string(exact.o(t, e)) + " within " +
                        std::to_string(exact.bound(t, e)));
      return false;
    }
  }
  const double relative = std::sqrt(error / norm);
  expect(relative <= kLargestError,
         text + ": the error is " + std::to_string(relative) + " of the norm");
  return relative <= kLargestError;
}

/// Tokens that a call has.
enum class Selected {
  kAll,
  kMasked,  ///< those of cuda_test::mask_some()
  kPacked   ///< all, of items packed into one; for layout 0
};

/// Offsets of items of `tokens` tokens.
inline std::vector<std::int32_t> equal_offsets(int items, int tokens) {
  std::vector<std::int32_t> offsets;
  for (int i = 0; i <= items; ++i) offsets.push_back(i * tokens);
  return offsets;
}

/// Masks and offsets of a call on the device.
class Selection {
 public:
  template <class T>
  Selection(const Call<T>& call, Selected which)
      : queries_(call.query_keep.raw(), call.query_keep.bytes()),
        keys_(call.key_keep.raw(), call.key_keep.bytes()) {
    if (which != Selected::kPacked) return;
    const auto offsets = equal_offsets(call.q.batches(), call.q.tokens());
    offsets_ = DeviceBytes(offsets.data(), offsets.size() * 4);
  }
  void add_to(FormCall& call) {
    const auto mask = [](DeviceBytes& bytes) {
      return bytes.size() > 0 ? reinterpret_cast<const bool*>(bytes.data()) : nullptr;
    };
    call.query_mask = mask(queries_);
    call.key_mask = mask(keys_);
    if (offsets_.size() > 0) call.offsets = reinterpret_cast<const std::int32_t*>(offsets_.data());
  }

 private:
  DeviceBytes queries_, keys_, offsets_{0};
};

/// Masks tokens of a random call.
template <class AnyCall>
AnyCall masked(AnyCall call, const CallShape& shape, Selected which) {
  if (which == Selected::kMasked) cuda_test::mask_some(call, static_cast<int>(shape.block[2]));
  return call;
}

/// A random call on the device. Input tensors lie between guard zones; the output starts as NaN.
template <class T, int D, int E>
class DeviceCall {
 public:
  DeviceCall(const CallShape& shape, std::uint64_t seed, Selected which = Selected::kAll)
      : shape_(shape),
        host_(masked(cuda_test::random_call<T, D, E>(shape, seed), shape, which)),
        q_(host_.q.raw(), host_.q.bytes()),
        k_(host_.k.raw(), host_.k.bytes()),
        v_(host_.v.raw(), host_.v.bytes()),
        o_(host_.o.bytes()),
        mixing_(host_.mixing.raw(), host_.mixing.bytes()),
        pattern_(host_.bits.data(), host_.bits.bytes()),
        gain_(host_.gain.raw(), host_.gain.bytes()),
        gate_(host_.gate.raw(), host_.gate.bytes()),
        query_angles_(host_.query_angles.raw(), host_.query_angles.bytes()),
        key_angles_(host_.key_angles.raw(), host_.key_angles.bytes()),
        selection_(host_, which),
        call_(make_call()) {
    selection_.add_to(call_);
  }

  /// Plans for a device and poisons the output.
  void plan_for(mhla::cuda::Device device) {
    call_.device = device;
    if constexpr (kTurns) {
      plan_ = shape_.rotary ? RotaryForms<T, D, E>::plan(call_) : Forms<T, D, E>::plan(call_);
    } else {
      plan_ = Forms<T, D, E>::plan(call_);
    }
    workspace_ = DeviceBytes(plan_.workspace_bytes);
    call_.workspace = workspace_.data();
    call_.workspace_bytes = workspace_.size();
    o_.poison();
  }

  const char* form() const { return plan_.form; }
  std::string text() const { return device_test::text(shape_, plan_.form, call_.device.kernels()); }

  void run(cudaStream_t stream) {
    if constexpr (kTurns) {
      if (shape_.rotary) return RotaryForms<T, D, E>::run(call_, stream);
    }
    Forms<T, D, E>::run(call_, stream);
  }
  /// Fills output and workspace with NaN, as before the first run.
  void poison() {
    o_.poison();
    workspace_.poison();
  }
  /// Returns all bytes of the output tensor.
  std::vector<unsigned char> output() { return o_.contents(); }

  /// Compares outputs with the definition, and inputs and guard zones with their values before the
  /// run.
  void expect_right() {
    o_.download(host_.o.raw());
    if (exact_.empty()) find_exact();
    for (int b = 0; b < shape_.batch; ++b) {
      for (int h = 0; h < shape_.heads; ++h) {
        const auto pair = static_cast<std::size_t>(b * shape_.heads + h);
        const auto output = [&](int t, int e) { return host_.o.value(b, t, h, e); };
        if (!head_is_right(text(), b, h, exact_[pair], output)) return;
      }
    }
    expect(host_.o.padding_is_untouched(), text() + ": wrote between rows");
    const std::pair<DeviceBytes*, const void*> inputs[] = {
        {&q_, host_.q.raw()},
        {&k_, host_.k.raw()},
        {&v_, host_.v.raw()},
        {&mixing_, host_.mixing.raw()},
        {&pattern_, host_.bits.data()},
        {&gain_, host_.gain.raw()},
        {&gate_, host_.gate.raw()},
        {&query_angles_, host_.query_angles.raw()},
        {&key_angles_, host_.key_angles.raw()}};
    for (const auto& [device, host] : inputs) {
      const std::vector<unsigned char> bytes = device->contents();
      expect(bytes.empty() || std::memcmp(bytes.data(), host, bytes.size()) == 0,
             text() + ": wrote to an input");
    }
    for (DeviceBytes* bytes : {&q_, &k_, &v_, &o_, &mixing_, &pattern_, &gain_, &gate_,
                               &query_angles_, &key_angles_, &workspace_}) {
      expect(bytes->guards_are_untouched(), text() + ": wrote outside of a tensor");
    }
  }

 private:
  static constexpr bool kTurns = D != 72 && !std::is_same_v<T, float>;

  void find_exact() {
    const int widest = std::max({host_.q.tokens(), host_.k.tokens(), D, E});
    const double chain = 2.0 * widest + static_cast<double>(call_.columns()) + 64;
    for (int b = 0; b < shape_.batch; ++b) {
      for (int h = 0; h < shape_.heads; ++h) {
        exact_.push_back(cuda_test::expected(host_, b, h, chain));
      }
    }
  }

  FormCall make_call() {
    const auto blocks = [](const mhla::GridShape& n, const mhla::GridShape& w) {
      const auto size = [](mhla::Index x) { return static_cast<std::int32_t>(x); };
      const auto part = [&](int axis) { return size(std::min(n[axis], w[axis])); };
      return mhla::cuda::TokenBlocks(size(n[0]), size(n[1]), size(n[2]), part(0), part(1), part(2));
    };
    const auto on_device = [](auto tensor, DeviceBytes& bytes) {
      tensor.data = bytes.data();
      return tensor;
    };
    const auto floats = [](DeviceBytes& bytes) {
      return reinterpret_cast<const float*>(bytes.data());
    };
    return {shape_.causal,
            shape_.batch,
            shape_.heads,
            blocks(shape_.tokens, shape_.block),
            blocks(shape_.key_tokens, shape_.key_block),
            shape_.op,
            on_device(host_.q.input(), q_),
            on_device(host_.k.input(), k_),
            on_device(host_.v.input(), v_),
            on_device(host_.o.output(), o_),
            floats(mixing_),
            nullptr,
            0,
            {},
            host_.normed() ? floats(gain_) : nullptr,
            host_.gated() ? on_device(host_.gate.input(), gate_) : mhla::cuda::ConstTokenTensor{},
            floats(query_angles_),
            floats(key_angles_),
            host_.mixing_array().head_stride,
            host_.mixing_array().item_stride,
            shape_.prefix,
            shape_.key_prefix,
            pattern_.size() > 0 ? reinterpret_cast<const std::uint32_t*>(pattern_.data()) : nullptr,
            shape_.own_maps};
  }

  CallShape shape_;
  Call<T> host_;
  DeviceBytes q_, k_, v_, o_, mixing_, pattern_, gain_, gate_, query_angles_, key_angles_;
  Selection selection_;
  FormCall call_;
  FormPlan plan_{};
  DeviceBytes workspace_{0};
  std::vector<cuda_test::Expected> exact_;  // of every head
};

/// Returns devices whose kernels this device can run, planned for `multiprocessors`: itself, one
/// with kernels of sm_80, and one with the least shared memory.
inline std::vector<mhla::cuda::Device> targets(std::int32_t multiprocessors) {
  using mhla::cuda::Arch, mhla::cuda::kLeastShared;
  mhla::cuda::Device device = current_device();
  device.multiprocessors = multiprocessors;
  std::vector<mhla::cuda::Device> found{device};
  if (device.kernels() == Arch::kSm90a) found.push_back(with_arch(device, Arch::kSm80));
  if (device.shared_bytes > kLeastShared) found.push_back(with_shared_bytes(device, kLeastShared));
  return found;
}

/// The D that a program is limited to, or 0: MHLA_DEVICE_WIDTH of CMakeLists.txt.
#ifdef MHLA_DEVICE_WIDTH
inline constexpr int kOnlyWidth = MHLA_DEVICE_WIDTH;
#else
inline constexpr int kOnlyWidth = 0;
#endif

/// True if outputs may be normalised. Kernels of float32 have half the columns of wide outputs.
template <class T, int E>
inline constexpr bool kTakesNorm = !std::is_same_v<T, float> || E <= 128;

/// Calls f.operator()<T, D, E>() for all widths of a type, or for those of kind().
template <class T, class F>
void for_widths(const std::string& type, F&& f) {
  const auto of_widths = [&]<int D, int E>() {
    if constexpr (kOnlyWidth == 0 || kOnlyWidth == D) {
      const std::string name = type + "_" + std::to_string(D) + "_" + std::to_string(E);
      if (kind().empty() || kind() == name) f.template operator()<T, D, E>();
    }
  };
  of_widths.template operator()<64, 64>();
  of_widths.template operator()<72, 72>();
  of_widths.template operator()<128, 128>();
  of_widths.template operator()<128, 256>();
}

/// The same for both types of 16 bits. Tests of float32 are fewer.
template <class F>
void for_each_kind(const F& f) {
  for_widths<mhla::cuda::bfloat16>("bfloat16", f);
  for_widths<mhla::cuda::half>("half", f);
}

}  // namespace device_test
