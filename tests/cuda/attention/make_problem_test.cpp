// Tests of masks, offsets and prefixes as arguments of forms on a device.

#include "mhla/cuda/attention/make_problem.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/mixing_inputs.cuh"
#include "mhla/cuda/attention/rotary_inputs.cuh"
#include "mhla/cuda/attention/same_layout.cuh"
#include "mhla/cuda/attention/streaming_inputs.cuh"
#include "support/cuda/form_arguments.hpp"
#include "support/cuda/own_maps.hpp"
#include "support/message_of.hpp"

namespace {

using cuda_test::FormArguments;
using mhla::cuda::Problem;
using mhla::test::message_of;
using T = FormArguments::T;

/// Arguments with masks, and packed ones: 3 sequences of at most 100 tokens, 200 in all.
struct MaskedArguments : FormArguments {
  bool keep[200] = {};
  MaskedArguments() { in.query_mask = in.key_mask = mhla::BatchMask(keep, 2, 100, 100); }
};
struct PackedArguments : FormArguments {
  std::int32_t numbers[4] = {};
  bool flags[200] = {};
  PackedArguments() {
    in = {mhla::bnhd<const T>(data, 1, 200, 3, 64), mhla::bnhd<const T>(data, 1, 200, 3, 64),
          mhla::bnhd<const T>(data, 1, 200, 3, 64)};
    out = mhla::bnhd(data, 1, 200, 3, 64);
    in.query_offsets = in.key_offsets = numbers;
  }
};

TEST(CudaMakeProblem, MasksAndOffsetsAreTakenOver) {
  MaskedArguments a;
  a.in.key_mask = mhla::BatchMask(a.keep, 2, 100, 3, 2);
  const Problem masked = a.problem();
  EXPECT_TRUE(masked.copies());
  EXPECT_TRUE(masked.queries.masked && masked.keys.masked);
  EXPECT_FALSE(masked.queries.packed);
  EXPECT_EQ(masked.queries.batch_stride, 100);
  EXPECT_EQ(masked.keys.batch_stride, 3);
  EXPECT_EQ(masked.keys.token_stride, 2);
  EXPECT_EQ(masked.keys.keep, a.in.key_mask.keep);
  const PackedArguments b;
  const Problem packed = b.problem();
  EXPECT_EQ(packed.batch, 3);
  EXPECT_EQ(packed.query_blocks.blocks(), 7);
  EXPECT_TRUE(packed.queries.packed && packed.keys.packed);
  EXPECT_EQ(packed.keys.offsets, b.numbers);
  EXPECT_FALSE(FormArguments{}.problem().copies());
}

TEST(CudaMakeProblem, TensorsOfFloat32HaveStridesInTheirBytesAndPairsOfSummaries) {
  alignas(256) float memory[64] = {};
  const auto tensor = mhla::bnhd<const float>(memory, 2, 100, 3, 64);
  const mhla::cuda::Inputs<float> in{tensor, tensor, tensor};
  const auto blocks = mhla::cuda::contiguous(100, 16);
  const Problem problem = mhla::cuda::detail::make_problem<64, 64>(
      "cuda::f", in, blocks, blocks, false, {}, mhla::bnhd(memory, 2, 100, 3, 64));
  EXPECT_TRUE(problem.floats);
  EXPECT_EQ(problem.op.summaries, mhla::cuda::Precision::kPair);
  EXPECT_EQ(problem.k.head_stride, 4 * 64);
  EXPECT_EQ(problem.v.token_stride, 4 * 3 * 64);
  EXPECT_EQ(problem.o.batch_stride, 4 * 100 * 3 * 64);
  EXPECT_FALSE(FormArguments{}.problem().floats);
  const mhla::cuda::Plan plan = mhla::cuda::plan<64, 64>(problem, {mhla::cuda::Arch::kSm90a, 132});
  EXPECT_EQ(std::string(plan.reason), "float32 tensors have kernels of three stages alone");
}

TEST(CudaMakeProblem, MasksAndOffsetsThatDoNotFitAreRefused) {
  const auto shape = []<class A>(A a, auto change, bool causal = false) {
    change(a);
    return message_of<mhla::shape_error>([&] { a.problem(causal); });
  };
  EXPECT_EQ(shape(MaskedArguments{}, [](auto& a) { a.in.query_mask.rows = 1; }),
            "mhla::cuda::f: query_mask has shape [1, 100], expected [2, 100]");
  EXPECT_EQ(shape(MaskedArguments{}, [](auto& a) { a.in.key_mask.cols = 99; }),
            "mhla::cuda::f: key_mask has shape [2, 99], expected [2, 100]");
  EXPECT_EQ(shape(PackedArguments{}, [](auto& a) { a.in.key_offsets = {}; }),
            "mhla::cuda::f: key_offsets has 0 elements, expected 4, as query_offsets has");
  EXPECT_EQ(shape(PackedArguments{}, [](auto& a) { a.in.query_offsets = {}; }),
            "mhla::cuda::f: key_offsets has 4 elements, expected 0, as query_offsets has");
  EXPECT_EQ(shape(PackedArguments{}, [](auto& a) { a.in.q.shape[0] = 2; }),
            "mhla::cuda::f: q has 2 batch items, expected 1 of packed sequences");
  EXPECT_EQ(shape(PackedArguments{}, [](auto& a) { a.in.v.shape[1] = 100; }),
            "mhla::cuda::f: v has shape [1, 100, 3, 64], expected [1, 200, 3, 64]");
  PackedArguments a;
  const std::int32_t others[4] = {};
  a.in.key_offsets = others;
  EXPECT_NO_THROW(a.problem());
  EXPECT_EQ(
      message_of<mhla::option_error>([&] { a.problem(true); }),
      "mhla::cuda::f: key_offsets is another array than query_offsets, expected the same in a "
      "causal form");
}

TEST(CudaMakeProblem, MasksAndOffsetsWithoutDataAreOnlyForPlans) {
  const auto data = []<class A>(A a, auto change) {
    change(a);
    EXPECT_NO_THROW(a.problem());
    return message_of<mhla::option_error>(
        [&] { mhla::cuda::detail::expect_data<T>("cuda::f", a.in, a.out); });
  };
  const std::string wrong = " is null, expected a pointer to data", f = "mhla::cuda::f: ";
  EXPECT_EQ(data(MaskedArguments{}, [](auto& a) { a.in.query_mask.keep = nullptr; }),
            f + "query_mask" + wrong);
  EXPECT_EQ(data(MaskedArguments{}, [](auto& a) { a.in.key_mask.keep = nullptr; }),
            f + "key_mask" + wrong);
  const auto null = [](auto& offsets) { offsets = {static_cast<const std::int32_t*>(nullptr), 4}; };
  EXPECT_EQ(data(PackedArguments{}, [&](auto& a) { null(a.in.query_offsets); }),
            f + "query_offsets" + wrong);
  EXPECT_EQ(data(PackedArguments{}, [&](auto& a) { null(a.in.key_offsets); }),
            f + "key_offsets" + wrong);
}

/// Arguments with a prefix of 4 tokens before 6 blocks of 16 tokens.
struct PrefixArguments : FormArguments {
  PrefixArguments() {
    blocks = mhla::cuda::contiguous(96, 16);
    in.query_prefix = in.key_prefix = 4;
  }
};

TEST(CudaMakeProblem, APrefixIsOneMoreBlock) {
  PrefixArguments a;
  for (const Problem& p : {a.problem(), a.problem(true)}) {
    EXPECT_TRUE(p.copies());
    EXPECT_EQ(p.query_blocks, mhla::cuda::contiguous(7 * 16, 16));
    EXPECT_EQ(p.key_blocks, mhla::cuda::contiguous(7 * 16, 16));
    EXPECT_EQ(p.callers_query_blocks(), a.blocks);
    EXPECT_EQ(p.callers_key_blocks(), a.blocks);
  }
  a.in.query_prefix = a.in.key_prefix = 50;
  a.blocks = mhla::cuda::grid({5, 10}, {2, 4});
  const Problem longer = a.problem();
  EXPECT_EQ(longer.query_blocks, mhla::cuda::contiguous(10 * 50, 50));
  EXPECT_EQ(longer.callers_key_blocks(), a.blocks);
  EXPECT_EQ(FormArguments{}.problem().callers_query_blocks(), FormArguments{}.blocks);
}

TEST(CudaMakeProblem, PrefixesThatDoNotFitAreRefused) {
  const auto option = [](auto change, bool causal = false) {
    PrefixArguments a;
    change(a);
    return message_of<mhla::option_error>([&] { a.problem(causal); });
  };
  const std::string f = "mhla::cuda::f: ", slots =
                                               ", expected at least 0, and fewer than 2^31 "
                                               "slots of 6 + 1 equal blocks";
  PrefixArguments wrong;
  wrong.in.key_prefix = 3;
  EXPECT_EQ(message_of<mhla::shape_error>([&] { wrong.problem(); }),
            f + "k has shape [2, 100, 3, 64], expected [2, 99, 3, 64]");
  EXPECT_EQ(option([](auto& a) { a.in.key_prefix = 3; }, true),
            f + "key_prefix is 3, expected 4, as query_prefix, in a causal form");
  const auto with = [](mhla::Index prefix) {
    return [prefix](auto& a) {
      a.in.query_prefix = prefix;
      a.in.q.shape[1] = a.out.shape[1] = 96 + prefix;
      a.out.strides[0] = 192 * a.out.shape[1];
    };
  };
  EXPECT_EQ(option([](auto& a) { a.in.query_prefix = -1; }), f + "query_prefix is -1" + slots);
  EXPECT_EQ(option(with(306783379)), f + "query_prefix is 306783379" + slots);
  EXPECT_EQ(option([](auto& a) { a.op.denominator = mhla::cuda::Denominator::kCrossQuery; }),
            f + "op has a cross-query denominator, expected as many query blocks as key blocks, "
                "all of one size");
}

TEST(CudaMakeProblem, ARotaryEmbeddingHasAnglesOfThePrefix) {
  alignas(16) static float angles[4] = {};
  const auto error = [](mhla::Index rows) {
    return message_of<mhla::shape_error>([&] {
      const mhla::MatrixView<const float> view(angles, rows, 64, 64);
      Problem problem = PrefixArguments{}.problem();
      mhla::cuda::detail::add_rotary("cuda::f", mhla::cuda::Rotary{view, view}, 64, problem);
    });
  };
  EXPECT_EQ(error(100), "no exception");
  EXPECT_EQ(error(112),
            "mhla::cuda::f: rotary.query_angles has shape [112, 64], expected [100, 64]");
}

TEST(CudaMakeProblem, PreparedCallsKeepMasksAndOffsets) {
  const auto other = [](const FormArguments& a, const FormArguments& prepared) {
    return message_of<mhla::option_error>([&] {
      mhla::cuda::detail::expect_same_layout("cuda::f", a.problem(), prepared.problem());
    });
  };
  const std::string refused =
      "mhla::cuda::f: masks, offsets and prefixes are others, expected those that it was prepared "
      "for";
  EXPECT_EQ(other(FormArguments{}, MaskedArguments{}), refused);
  EXPECT_EQ(other(MaskedArguments{}, FormArguments{}), refused);
  MaskedArguments queries, keys;
  queries.in.key_mask = {}, keys.in.query_mask = {};
  EXPECT_EQ(other(queries, MaskedArguments{}), refused);
  EXPECT_EQ(other(keys, MaskedArguments{}), refused);
  EXPECT_EQ(other(MaskedArguments{}, MaskedArguments{}), "no exception");
  PackedArguments masked;
  masked.in.key_mask = mhla::BatchMask(masked.flags, 1, 200, 0);
  EXPECT_EQ(other(masked, PackedArguments{}), refused);
  FormArguments normed, gated;
  static const float gain[64] = {};
  normed.in.gain = gated.in.gain = gain;
  gated.in.gate = mhla::bnhd<const FormArguments::T>(gated.data, 2, 100, 3, 64);
  EXPECT_EQ(other(gated, normed), "mhla::cuda::f: gate is given, expected none, as prepared");
  EXPECT_EQ(other(normed, gated), "no exception");
  PrefixArguments a, b;
  b.in.query_prefix = b.in.key_prefix = 5, b.blocks = mhla::cuda::contiguous(95, 16);
  EXPECT_EQ(other(a, b), refused);
  EXPECT_EQ(other(a, FormArguments{}), refused);
}

TEST(CudaMakeProblem, DecayingTermsAreForCausalForms) {
  const auto refused = [](int terms, bool causal) {
    FormArguments a;
    a.op.decay_terms = terms;
    return message_of<mhla::option_error>([&] { a.problem(causal); });
  };
  const std::string f = "mhla::cuda::f: op.decay_terms is ";
  EXPECT_EQ(refused(1, true), "no exception");
  EXPECT_EQ(refused(32, true), "no exception");
  EXPECT_EQ(refused(33, true), f + "33, expected 0, or 1 to 32");
  EXPECT_EQ(refused(-1, true), f + "-1, expected 0, or 1 to 32");
  EXPECT_EQ(refused(2, false), f + "2, expected 0: only causal forms mix by decaying terms");
  EXPECT_EQ(message_of<mhla::option_error>([] {
              mhla::cuda::detail::expect_decay_terms("cuda::f", {.decay_terms = 2}, false, "none");
            }),
            f + "2, expected none");
}

TEST(CudaMakeProblem, DecayingTermsAreWeightsAndDecays) {
  FormArguments a;
  a.op.decay_terms = 3;
  const Problem problem = a.problem(true);
  const float numbers[32] = {};
  const auto array = [&](mhla::Index rows, mhla::Index columns) {
    return mhla::cuda::detail::mixing_array(
        "cuda::f", mhla::MatrixView<const float>(numbers, rows, columns, 8), problem);
  };
  EXPECT_EQ(array(2, 3).data, numbers);
  EXPECT_EQ(array(2, 3).stride, 8);
  const auto refused = [&](mhla::Index rows, mhla::Index columns) {
    return message_of<mhla::shape_error>([&] { array(rows, columns); });
  };
  EXPECT_EQ(refused(7, 7), "mhla::cuda::f: mixing has shape [7, 7], expected [2, 3]");
  EXPECT_EQ(refused(2, 4), "mhla::cuda::f: mixing has shape [2, 4], expected [2, 3]");
  mhla::cuda::MixingMatrices<const float> both(mhla::MatrixView<const float>(numbers, 2, 3, 8));
  const std::uint32_t bits = 0;
  both.pattern = &bits;
  EXPECT_EQ(message_of<mhla::option_error>(
                [&] { mhla::cuda::detail::mixing_array("cuda::f", both, problem); }),
            "mhla::cuda::f: mixing has a pattern and decaying terms, expected either");
}

TEST(CudaMakeProblem, MapsOfOnesOwnAreTakenOver) {
  using mhla::cuda::FeatureMap, mhla::cuda::MappedOperator;
  const FormArguments a;
  const auto make = [&](const auto& op) {
    return mhla::cuda::detail::make_problem<64, 64>("cuda::f", a.in, a.blocks, a.blocks, false, op,
                                                    a.out);
  };
  const mhla::cuda::Operator op{.eps = 0.5f};
  const FeatureMap elu = FeatureMap::elu_plus_one();
  const Problem both = make(MappedOperator(op, cuda_test::Softplus{}));
  EXPECT_TRUE(both.own_query_map && both.own_key_map && both.copies());
  EXPECT_EQ(both.op.eps, 0.5f);
  const Problem queries = make(MappedOperator(op, cuda_test::kSquaredRelu, elu));
  EXPECT_TRUE(queries.own_query_map && !queries.own_key_map);
  EXPECT_EQ(queries.op.key_map, elu);
  const Problem keys = make(MappedOperator(op, elu, cuda_test::Power{}));
  EXPECT_TRUE(!keys.own_query_map && keys.own_key_map);
  EXPECT_EQ(keys.op.query_map, elu);
  EXPECT_FALSE(make(op).copies());
}

TEST(CudaMakeProblem, StreamsTakeAllTokens) {
  const MaskedArguments a;
  EXPECT_EQ(message_of<mhla::option_error>(
                [&] { mhla::cuda::detail::expect_stream_inputs("cuda::f", a.in); }),
            "mhla::cuda::f: query_mask is given, expected none: a call passes only tokens that its "
            "sequences take");
  PackedArguments b;
  const auto refused = [&] {
    return message_of<mhla::option_error>(
        [&] { mhla::cuda::detail::expect_all_tokens("cuda::f", b.in, "none"); });
  };
  EXPECT_EQ(refused(), "mhla::cuda::f: query_offsets is given, expected none");
  b.in.query_offsets = {};
  EXPECT_EQ(refused(), "mhla::cuda::f: key_offsets is given, expected none");
  b.in.key_offsets = {};
  b.in.key_prefix = 1;
  EXPECT_EQ(refused(), "mhla::cuda::f: key_prefix is given, expected none");
  b.in.query_prefix = 1;
  EXPECT_EQ(refused(), "mhla::cuda::f: query_prefix is given, expected none");
}

}  // namespace
