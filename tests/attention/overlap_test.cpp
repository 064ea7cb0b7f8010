#include "mhla/attention/overlap.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "mhla/mhla.hpp"
#include "support/message_of.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

using OverlapView = TensorView<const float>;

/// A packed [B,N,3,H,D] buffer: slice 0, 1 or 2, moved by `shift` numbers.
struct OverlapBuffer {
  static constexpr Index kBatch = 2, kTokens = 40, kHeads = 3, kWidth = 8;
  Tensor<float> memory{{kBatch, kTokens, 4 * kHeads, kWidth}};

  TensorView<float> slice(Index i, Index shift = 0) {
    constexpr Index kRow = 4 * kHeads * kWidth;
    return {memory.data().data() + i * kHeads * kWidth + shift,
            {kBatch, kTokens, kHeads, kWidth},
            {kTokens * kRow, kRow, kWidth, 1}};
  }
  BatchInputs<float> in() {
    return inputs(TensorView<const float>(slice(0)), TensorView<const float>(slice(1)),
                  TensorView<const float>(slice(2)));
  }
};

class OverlappingOutputs : public testing::Test {
 protected:
  OverlappingOutputs() {
    Random rng(1);
    for (float& x : packed.memory.data()) x = static_cast<float>(rng.uniform(-1, 1));
  }

  /// Runs every form on the packed buffer.
  template <class F>
  void with_forms(const F& f) {
    const Operator<> op;
    const Operator cross{Relu{1e-3}, Relu{1e-3}, CrossQuery{}};
    f([&](const auto& in, auto out, Call call) {
      bidirectional(in, blocks, mixing, op, out, call);
    });
    f([&](const auto& in, auto out, Call call) {
      bidirectional(in, blocks, mixing, cross, out, call);
    });
    f([&](const auto& in, auto out, Call call) { causal(in, blocks, mixing, op, out, call); });
    f([&](const auto& in, auto out, Call call) { linear_bidirectional(in, op, out, call); });
    f([&](const auto& in, auto out, Call call) { linear_causal(in, op, out, call); });
    f([&](const auto& in, auto out, Call call) { softmax_bidirectional(in, out, {}, call); });
    f([&](const auto& in, auto out, Call call) { softmax_causal(in, out, {}, call); });
    f([&](const auto& in, auto out, Call call) {
      const Streaming<float> stream({.width = 8, .values = 8, .block_length = 10}, mixing);
      std::vector<StreamingState<float>> states;
      for (int pair = 0; pair < 6; ++pair) states.push_back(stream.start());
      append(stream, std::span(states), in, out, call);
    });
  }

  OverlapBuffer packed;
  const Contiguous blocks{40, 10};
  const MixingMatrix<float> mixing = locality<float>(4);
  ThreadPool pool{2};
};

TEST_F(OverlappingOutputs, MayBeExactlyTheQueries) {
  const std::vector<unsigned char> keep = [] {
    std::vector<unsigned char> flags(80, 1);
    for (std::size_t t = 0; t < flags.size(); t += 7) flags[t] = 0;
    return flags;
  }();
  with_forms([&](const auto& form) {
    auto in = packed.in();
    in.query_mask = BatchMask(keep, 2);
    Tensor<float> expected(in.q.shape);
    form(in, TensorView<float>(expected), Call{});
    OverlapBuffer buffer = packed;
    auto buffer_in = buffer.in();
    buffer_in.query_mask = in.query_mask;
    form(buffer_in, buffer.slice(0), Call{.executor = pool});
    const OverlapView out = buffer.slice(0);
    for (Index b = 0; b < 2; ++b) {
      for (Index h = 0; h < 3; ++h) {
        EXPECT_TRUE(same_bits(dense(out.head(b, h)), dense(expected.view().head(b, h))));
      }
    }
  });
}

TEST_F(OverlappingOutputs, MayLieBetweenInputs) {
  with_forms(
      [&](const auto& form) { EXPECT_NO_THROW(form(packed.in(), packed.slice(3), Call{})); });
}

TEST_F(OverlappingOutputs, AreRefusedBeforeAnythingIsWritten) {
  const Tensor<float> before = packed.memory;
  const auto expect_refusal = [&](const char* argument, TensorView<float> out) {
    with_forms([&](const auto& form) {
      const std::string text = message_of<option_error>([&] { form(packed.in(), out, Call{}); });
      EXPECT_NE(text.find(std::string(": out overlaps ") + argument +
                          ", expected memory of its own, or exactly that of q"),
                std::string::npos)
          << text;
    });
    EXPECT_EQ(packed.memory.data(), before.data());
  };
  expect_refusal("q", packed.slice(0, 1));
  expect_refusal("q", packed.slice(0, 8));  // the next head's
  expect_refusal("k", packed.slice(1));
  expect_refusal("v", packed.slice(2));
  expect_refusal("v", packed.slice(3, -1));
}

TEST_F(OverlappingOutputs, WithElementsThatAreOneAreRefusedBeforeAnythingIsWritten) {
  Tensor<float> memory(packed.in().q.shape);
  const Tensor<float> before = memory;
  const auto expect_refusal = [&](const std::string& strides, const Shape& of) {
    with_forms([&](const auto& form) {
      const TensorView<float> out(memory.data().data(), memory.shape(), of);
      const std::string text =
          message_of<option_error>([&] { form(packed.in(), out, Call{.executor = pool}); });
      EXPECT_NE(text.find(": out has strides " + strides +
                          ", and elements that overlap, expected "
                          "strides of distinct elements"),
                std::string::npos)
          << text;
    });
    EXPECT_EQ(memory.data(), before.data());
  };
  expect_refusal("[960, 24, 0, 1]", {960, 24, 0, 1});  // one place for all heads
  expect_refusal("[0, 24, 8, 1]", {0, 24, 8, 1});
  expect_refusal("[960, 23, 8, 1]", {960, 23, 8, 1});
  expect_refusal("[960, 8, 24, 1]", {960, 8, 24, 1});
  expect_refusal("[960, 24, 7, 1]", {960, 24, 7, 1});
}

TEST_F(OverlappingOutputs, OneHeadIsHeldToTheSame) {
  Matrix<float> x = Matrix<float>::Random(41, 24);
  const auto in = inputs(x.block(0, 0, 40, 8), x.block(0, 8, 40, 8), x.block(0, 16, 40, 8));
  const Matrix<float> expected = bidirectional(in, blocks, mixing);
  EXPECT_EQ(
      message_of<option_error>([&] { bidirectional(in, blocks, mixing, x.block(1, 0, 40, 8)); }),
      "mhla::bidirectional: out overlaps q, expected memory of its own, or exactly that of q");
  const Streaming<float> stream({.width = 8, .values = 8, .block_length = 10}, mixing);
  auto state = stream.start();
  EXPECT_EQ(message_of<option_error>([&] { stream.append(state, in, x.block(0, 8, 40, 8)); }),
            "mhla::Streaming::append: out overlaps k, expected memory of its own, or exactly that "
            "of q");
  const std::string distinct = ", and elements that overlap, expected strides of distinct elements";
  std::vector<float> few(40 * 8);
  for (const auto& [out, strides] :
       {std::pair(MatrixView<float>(few.data(), 40, 8, 0), "[0, 1]"),
        std::pair(MatrixView<float>(few.data(), 40, 8, 7), "[7, 1]"),
        std::pair(MatrixView<float>(few.data() + 273, 40, 8, -7), "[-7, 1]"),
        std::pair(MatrixView<float>(few.data(), 40, 8, 8, 0), "[8, 0]")}) {
    EXPECT_EQ(message_of<option_error>([&, out = out] { bidirectional(in, blocks, mixing, out); }),
              std::string("mhla::bidirectional: out has strides ") + strides + distinct);
    EXPECT_EQ(message_of<option_error>([&, out = out] { stream.append(state, in, out); }),
              std::string("mhla::Streaming::append: out has strides ") + strides + distinct);
    EXPECT_EQ(message_of<option_error>([&, out = out] { stream.check_append(state, in, out); }),
              std::string("mhla::Streaming::append: out has strides ") + strides + distinct);
  }
  EXPECT_EQ(few, std::vector<float>(40 * 8));
  EXPECT_EQ(state.position(), 0);
  bidirectional(in, blocks, mixing, x.block(0, 0, 40, 8));
  EXPECT_TRUE(same_bits(x.block(0, 0, 40, 8).eval(), expected));
}

TEST_F(OverlappingOutputs, OfGradientsMayBeSlicesOfOneBuffer) {
  const auto in = packed.in();
  OverlapBuffer sums;
  Tensor<float> dq(in.q.shape), dk(in.q.shape), dv(in.q.shape);
  const TensorView<const float> dout = packed.slice(3);
  bidirectional_gradient(in, blocks, mixing, Operator<>{}, dout, {.q = dq, .k = dk, .v = dv});
  bidirectional_gradient(in, blocks, mixing, Operator<>{}, dout,
                         {.q = sums.slice(0), .k = sums.slice(1), .v = sums.slice(2)});
  for (const auto& [slice, alone] : {std::pair(0, &dq), std::pair(1, &dk), std::pair(2, &dv)}) {
    const OverlapView sum = sums.slice(slice);
    EXPECT_TRUE(same_bits(dense(sum.head(1, 2)), dense(OverlapView(*alone).head(1, 2))));
  }
  EXPECT_EQ(message_of<option_error>([&] {
              bidirectional_gradient(in, blocks, mixing, Operator<>{}, dout,
                                     {.q = sums.slice(0), .k = sums.slice(1, -1)});
            }),
            "mhla::bidirectional_gradient: gradients.q overlaps gradients.k, expected memory of "
            "its own");
}

TEST_F(OverlappingOutputs, OfKeysThatHeadsShareAreRefused) {
  const auto in = packed.in();
  const TensorView<const float> dout = packed.slice(3);
  Tensor<float> dk({2, 40, 1, 8});
  const TensorView<float> shared(dk.data().data(), in.k.shape, {320, 8, 0, 1});
  const Operator<> op;
  const auto expect_refusal = [&](const std::string& name, const auto& add) {
    for (const auto& [argument, gradients] : {std::pair("k", BatchGradients<float>{.k = shared}),
                                              std::pair("v", BatchGradients<float>{.v = shared})}) {
      EXPECT_EQ(message_of<option_error>([&, gradients = gradients] { add(gradients); }),
                "mhla::" + name + ": gradients." + argument +
                    " has strides [320, 8, 0, 1], and elements that overlap, expected strides of "
                    "distinct elements");
    }
    EXPECT_EQ(dk.data(), Tensor<float>(dk.shape()).data());
  };
  expect_refusal("bidirectional_gradient", [&](const auto& to) {
    bidirectional_gradient(in, blocks, mixing, op, dout, to, {}, {.executor = pool});
  });
  expect_refusal("causal_gradient", [&](const auto& to) {
    causal_gradient(in, blocks, mixing, op, dout, to, {}, {.executor = pool});
  });
  expect_refusal("linear_causal_gradient", [&](const auto& to) {
    linear_causal_gradient(in, op, dout, to, {}, {.executor = pool});
  });
  expect_refusal("softmax_bidirectional_gradient", [&](const auto& to) {
    softmax_bidirectional_gradient(in, dout, to, {}, {.executor = pool});
  });
}

}  // namespace
}  // namespace mhla::test
