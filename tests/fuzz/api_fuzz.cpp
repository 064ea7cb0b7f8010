// Arbitrary calls of forms, gradients, tangents and streams, with libFuzzer and sanitizers.
//
// Sizes, strides, masks, offsets, mixing matrices and options are arbitrary, and often wrong. Every
// tensor lies in memory of its own, without a byte more. A call must write what the definition
// says, or throw an mhla::error whose text begins with mhla::.

#include <fuzzer/FuzzedDataProvider.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/attention/naive.hpp"
#include "mhla/attention/softmax.hpp"
#include "mhla/attention/streaming.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/tangent/causal.hpp"

namespace {

using mhla::Index;
using mhla::Shape;
using Data = FuzzedDataProvider;

void expect(bool good, const std::string& what) {
  if (good) return;
  std::fprintf(stderr, "api_fuzz: not true: %s\n", what.c_str());
  std::abort();
}

/// A tensor in memory that ends with it: dense, or with arbitrary strides.
struct Tensor {
  std::unique_ptr<float[]> memory;
  mhla::TensorView<float> view;

  Tensor(Data& data, const Shape& shape, bool output) {
    Shape strides{shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1};
    if (data.ConsumeIntegralInRange(0, 3) == 0) {
      for (Index& stride : strides) {
        if (data.ConsumeBool()) stride = data.ConsumeIntegralInRange<Index>(-40, 40);
      }
    }
    Index first = 0, last = 0;
    bool empty = false;
    for (std::size_t i = 0; i < 4; ++i) {
      empty = empty || shape[i] <= 0;
      (strides[i] < 0 ? first : last) += (shape[i] - 1) * strides[i];
    }
    const auto count = empty ? 0 : static_cast<std::size_t>(last - first + 1);
    memory = std::make_unique<float[]>(count);
    for (std::size_t i = 0; i < count; ++i) {
      memory[i] = output ? 7 : static_cast<float>(data.ConsumeIntegralInRange(-16, 16)) / 16;
    }
    view = {empty ? memory.get() : memory.get() - first, shape, strides};
    if (data.ConsumeIntegralInRange(0, 63) == 0) view.data = nullptr;
  }
};

/// Arguments of a call. Most fit each other.
struct Arguments {
  std::vector<Tensor> in, out;
  std::vector<Index> query_offsets, key_offsets;
  std::unique_ptr<bool[]> mask;
  mhla::BatchInputs<float> inputs{};
  Index length, blocks;

  explicit Arguments(Data& data) {
    const auto size = [&](Index most) {
      return data.ConsumeIntegralInRange(0, 31) == 0 ? data.ConsumeIntegralInRange<Index>(-2, 3)
                                                     : data.ConsumeIntegralInRange<Index>(1, most);
    };
    const Shape q{size(2), size(12), size(2), size(5)};
    Shape v = q;
    v[3] = size(5);
    const auto perhaps_other = [&](Shape shape) {
      if (data.ConsumeIntegralInRange(0, 15) == 0)
        shape[data.ConsumeIntegralInRange<std::size_t>(0, 3)] = size(6);
      return shape;
    };
    for (const Shape& shape : {q, q, v, v, v}) in.emplace_back(data, perhaps_other(shape), false);
    for (const Shape& shape : {v, q, v, v}) out.emplace_back(data, perhaps_other(shape), true);
    inputs = {.q = in[0].view, .k = in[1].view, .v = in[2].view};
    if (data.ConsumeIntegralInRange(0, 3) == 0) {
      const Index batch = perhaps_other(q)[0], tokens = perhaps_other(q)[1];
      const Index count = std::max<Index>(batch, 0) * std::max<Index>(tokens, 0);
      mask = std::make_unique<bool[]>(static_cast<std::size_t>(count));
      for (Index i = 0; i < count; ++i) mask[static_cast<std::size_t>(i)] = data.ConsumeBool();
      (data.ConsumeBool() ? inputs.key_mask : inputs.query_mask) = {mask.get(), batch, tokens,
                                                                    tokens, 1};
    }
    if (data.ConsumeIntegralInRange(0, 3) == 0) {
      for (auto* offsets : {&query_offsets, &key_offsets}) {
        offsets->push_back(data.ConsumeIntegralInRange<Index>(-1, 1) / 2);
        for (Index n = data.ConsumeIntegralInRange(0, 3); n > 0; --n) {
          offsets->push_back(offsets->back() + data.ConsumeIntegralInRange<Index>(-1, 6));
        }
        if (data.ConsumeIntegralInRange(0, 3) > 0) offsets->push_back(q[1]);
      }
      if (data.ConsumeBool()) key_offsets = query_offsets;
      inputs.query_offsets = query_offsets;
      inputs.key_offsets = key_offsets;
    }
    length = size(6);
    blocks = data.ConsumeIntegralInRange<Index>(1, 12);
  }
};

/// Compares an output with the definition, all of whose numbers are at most a few units.
void expect_definition(const Arguments& a, const mhla::Tensor<double>& exact, double tolerance) {
  const auto [batch, tokens, heads, width] = a.out[0].view.shape;
  for (Index b = 0; b < batch; ++b) {
    for (Index t = 0; t < tokens; ++t) {
      for (Index h = 0; h < heads; ++h) {
        for (Index e = 0; e < width; ++e) {
          const double right = exact.view()(b, t, h, e), got = a.out[0].view(b, t, h, e);
          if (!a.query_offsets.empty() && got == 7) continue;  // of no sequence
          expect(std::abs(got - right) <= tolerance,
                 std::to_string(got) + " is " + std::to_string(right));
        }
      }
    }
  }
}

void call(Data& data) {
  const Arguments a(data);
  const mhla::ContiguousBlocks blocks{a.length};
  mhla::Matrix<float> coefficients(a.blocks, a.blocks);
  for (float& m : coefficients.reshaped()) m = data.ConsumeIntegralInRange(0, 16) / 16.0f;
  const mhla::MixingMatrix<float> mixing(coefficients);
  const auto choice = data.ConsumeIntegralInRange(0, 7);
  const mhla::Operator plain{mhla::Identity{}, mhla::Identity{}, mhla::NoNormalizer{},
                             data.ConsumeBool() ? 1.0 : 0.5};
  const mhla::Operator op{mhla::EluPlusOne{}, mhla::EluPlusOne{}, mhla::KeySum{1e-3}};
  const mhla::TensorView<float>&o = a.out[0].view, &dq = a.out[1].view, &dk = a.out[2].view;
  const auto naive = [&](const auto& with, mhla::Order order) {
    return mhla::naive_attention<double>(a.inputs, blocks, mixing, with, order);
  };
  switch (choice) {
    case 0:
      mhla::bidirectional(a.inputs, blocks, mixing, plain, o);
      return expect_definition(a, naive(plain, mhla::Order::kBidirectional), 1e-3);
    case 1:
      mhla::causal(a.inputs, blocks, mixing, plain, o);
      return expect_definition(a, naive(plain, mhla::Order::kCausal), 1e-3);
    case 2:
      mhla::causal(a.inputs, blocks, mixing, op, o);
      return expect_definition(a, naive(op, mhla::Order::kCausal), 1e-3);
    case 3:
      return mhla::softmax_causal(a.inputs, o);
    case 4:
      return mhla::bidirectional_gradient(a.inputs, blocks, mixing, op, a.in[3].view,
                                          {.q = dq, .v = dk});
    case 5:
      return mhla::causal_gradient(a.inputs, blocks, mixing, op, a.in[3].view, {.v = dk});
    case 6:
      return mhla::causal_tangent(a.inputs, blocks, mixing, op, {.v = a.in[3].view},
                                  {o, a.out[3].view});
    default: {
      const mhla::Streaming<float> stream({.width = data.ConsumeIntegralInRange<Index>(1, 5),
                                           .values = data.ConsumeIntegralInRange<Index>(1, 5),
                                           .block_length = a.length},
                                          mixing);
      std::vector<mhla::StreamingState<float>> states(
          static_cast<std::size_t>(data.ConsumeIntegralInRange(0, 4)), stream.start());
      return append(stream, std::span(states), a.inputs, o);
    }
  }
}

/// Bytes of tensors of any size, without memory.
void count(Data& data) {
  const auto size = [&] {
    return data.ConsumeBool() ? data.ConsumeIntegralInRange<Index>(-3, 70)
                              : data.ConsumeIntegral<Index>();
  };
  const Shape shape{size(), size(), size(), size()};
  const mhla::TensorView<const float> x(nullptr, shape, {0, 0, 0, 1});
  const mhla::BatchInputs<float> in{.q = x, .k = x, .v = x};
  const mhla::ContiguousBlocks blocks{size()};
  if (data.ConsumeBool()) {
    static_cast<void>(mhla::causal_workspace_bytes(in, blocks, mhla::Operator<>()));
  } else {
    static_cast<void>(mhla::softmax_workspace_bytes(in));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  Data data(bytes, size);
  try {
    data.ConsumeIntegralInRange(0, 15) == 0 ? count(data) : call(data);
  } catch (const mhla::error& e) {
    expect(std::string(e.what()).starts_with("mhla::"), e.what());
    expect(std::string(e.what()).find(", expected ") != std::string::npos, e.what());
  }
  return 0;
}
