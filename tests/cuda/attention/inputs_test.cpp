#include "mhla/cuda/attention/inputs.cuh"

#include <gtest/gtest.h>

#include <vector>

#include "mhla/cuda/attention/blocks.cuh"
#include "mhla/cuda/attention/mixing_inputs.cuh"
#include "mhla/cuda/attention/streaming_inputs.cuh"
#include "support/cuda/form_arguments.hpp"
#include "support/message_of.hpp"

namespace {

using mhla::Index;
using mhla::TensorView;
using mhla::cuda::Denominator;
using mhla::cuda::Matrices;
using mhla::cuda::Operator;
using mhla::cuda::Problem;
using mhla::cuda::TokenBlocks;
using Arguments = cuda_test::FormArguments;
using T = Arguments::T;
using mhla::test::message_of;

TEST(CudaInputs, StridesBecomeBytes) {
  const Arguments a;
  const Problem p = a.problem();
  EXPECT_EQ(p.batch, 2);
  EXPECT_EQ(p.heads, 3);
  EXPECT_EQ(p.pairs(), 6);
  EXPECT_EQ(p.q.token_stride, 3 * 64 * 2);
  EXPECT_EQ(p.q.head_stride, 64 * 2);
  EXPECT_EQ(p.v.token_stride, 64 * 2);
  EXPECT_EQ(p.v.head_stride, 100 * 64 * 2);
  EXPECT_EQ(p.v.batch_stride, 3 * 100 * 64 * 2);
  EXPECT_EQ(p.o.data, reinterpret_cast<const unsigned char*>(a.data));
}

TEST(CudaInputs, StridesOfSingleElementsDoNotMatter) {
  Arguments a;
  const TensorView<const T> one(a.data, {1, 100, 1, 64}, {3, 64, 5, 1});
  a.in = {one, one, one};
  a.out = {a.data, {1, 100, 1, 64}, {7, 64, 9, 1}};
  EXPECT_EQ(a.problem().q.batch_stride, 0);
  EXPECT_EQ(a.problem().q.head_stride, 0);
}

TEST(CudaInputs, ShapesThatDoNotFitAreNamed) {
  Arguments a;
  a.in.k.shape[1] = 99;
  EXPECT_EQ(message_of<mhla::shape_error>([&] { a.problem(); }),
            "mhla::cuda::f: k has shape [2, 99, 3, 64], expected [2, 100, 3, 64]");
  Arguments b;
  b.in.q.shape[3] = 72;
  EXPECT_EQ(message_of<mhla::shape_error>([&] { b.problem(); }),
            "mhla::cuda::f: q has shape [2, 100, 3, 72], expected [2, 100, 3, 64]");
  Arguments c;
  c.out.shape[2] = 2;
  EXPECT_EQ(message_of<mhla::shape_error>([&] { c.problem(); }),
            "mhla::cuda::f: out has shape [2, 100, 2, 64], expected [2, 100, 3, 64]");
}

TEST(CudaInputs, RowsMustBeDenseAndAligned) {
  Arguments a;
  a.in.q.strides[1] += 4;
  EXPECT_EQ(
      message_of<mhla::option_error>([&] { a.problem(); }),
      "mhla::cuda::f: q has strides [19200, 196, 64, 1] and begins 0 bytes after a multiple of "
      "16, expected dense rows that begin at multiples of 16 bytes");
  Arguments b;
  b.in.v.data += 1;
  EXPECT_NE(message_of<mhla::option_error>([&] { b.problem(); }).find("begins 2 bytes after"),
            std::string::npos);
  Arguments c;
  c.in.k.strides[3] = 2;
  EXPECT_THROW(c.problem(), mhla::option_error);
  Arguments d;
  d.in.q.data = nullptr;
  EXPECT_NO_THROW(d.problem());  // plans need no data
  EXPECT_EQ(message_of<mhla::option_error>(
                [&] { mhla::cuda::detail::expect_data("cuda::f", d.in, d.out); }),
            "mhla::cuda::f: q is null with shape [2, 100, 3, 64], expected a pointer to data");
}

TEST(CudaInputs, OutputsHaveDistinctElements) {
  const std::string distinct = ", and elements that overlap, expected strides of distinct elements";
  const auto text = [](Index axis, Index stride) {
    Arguments a;
    a.in.k.strides[2] = a.in.v.strides[0] = 0;  // inputs may have strides of 0
    a.out.strides[static_cast<std::size_t>(axis)] = stride;
    return message_of<mhla::option_error>([&] { a.problem(); });
  };
  EXPECT_EQ(text(2, 0), "mhla::cuda::f: out has strides [19200, 192, 0, 1]" + distinct);
  EXPECT_EQ(text(1, 184), "mhla::cuda::f: out has strides [19200, 184, 64, 1]" + distinct);
  EXPECT_EQ(text(0, 19192), "mhla::cuda::f: out has strides [19192, 192, 64, 1]" + distinct);
  EXPECT_EQ(text(0, 19200), "no exception");
}

TEST(CudaInputs, CrossQueryDenominatorsNeedEqualBlocksAndNoCausality) {
  Arguments a;
  a.op.denominator = Denominator::kCrossQuery;
  EXPECT_EQ(message_of<mhla::option_error>([&] { a.problem(); }),
            "mhla::cuda::f: op has a cross-query denominator, expected as many query blocks as key "
            "blocks, all of one size");
  a.blocks = mhla::cuda::contiguous(100, 20);
  EXPECT_NO_THROW(a.problem());
  EXPECT_EQ(message_of<mhla::option_error>([&] { a.problem(true); }),
            "mhla::cuda::f: op has a cross-query denominator, expected none or key sums: it reads "
            "later queries");
}

TEST(CudaInputs, TheCausalFormWantsRuns) {
  Arguments a;
  a.blocks = mhla::cuda::grid({10, 10}, {5, 5});
  EXPECT_NO_THROW(a.problem());
  EXPECT_EQ(
      message_of<mhla::option_error>([&] { a.problem(true); }),
      "mhla::cuda::f: blocks are of a grid, expected runs of consecutive tokens: contiguous()");
}

TEST(CudaInputs, SoManyHeadsThatThreadBlocksRunOutAreRefused) {
  Arguments a;
  for (TensorView<const T>* x : {&a.in.q, &a.in.k, &a.in.v})
    *x = mhla::bnhd<const T>(a.data, 1 << 15, 100, 1 << 15, 64);
  a.out = mhla::bnhd(a.data, 1 << 15, 100, 1 << 15, 64);
  EXPECT_NE(
      message_of<mhla::shape_error>([&] { a.problem(); }).find("heads in all, expected at most"),
      std::string::npos);
}

TEST(CudaInputs, MixingMatricesMustFitTheBlocks) {
  const Arguments a;
  const Problem p = a.problem(), causal = a.problem(true);
  const float m = 0;
  const auto mixing = [&m](const Problem& problem, Index rows, Index columns, Index step = 1) {
    return mhla::cuda::detail::mixing_array(
        "cuda::f", mhla::MatrixView<const float>(&m, rows, columns, 9, step), problem);
  };
  EXPECT_THROW(mhla::cuda::detail::mixing_array("cuda::f", {nullptr, 7, 7, 7}, p),
               mhla::option_error);
  EXPECT_EQ(mixing(p, 7, 7).stride, 9);
  EXPECT_EQ(message_of<mhla::shape_error>([&] { mixing(p, 8, 7); }),
            "mhla::cuda::f: mixing has shape [8, 7], expected [7, 7]");
  EXPECT_NO_THROW(mixing(causal, 8, 8));
  EXPECT_EQ(message_of<mhla::shape_error>([&] { mixing(causal, 7, 6); }),
            "mhla::cuda::f: mixing has shape [7, 6], expected at least [7, 7]");
  EXPECT_EQ(message_of<mhla::option_error>([&] { mixing(p, 7, 7, 2); }),
            "mhla::cuda::f: mixing has column stride 2, expected 1");
}

TEST(CudaInputs, StridesOfMatricesMustFitTheOperator) {
  Arguments a;
  const float m = 0;
  const auto mixing = [&](Matrices matrices, Index per_head, Index per_item) {
    a.op.matrices = matrices;
    const mhla::MatrixView<const float> first(&m, 7, 7, 9);
    return mhla::cuda::detail::mixing_array("cuda::f", {first, per_head, per_item}, a.problem());
  };
  const auto all = mixing(Matrices::kPerItemAndHead, 63, 200);
  EXPECT_EQ(all.of({2, 3}).row(1), &m + 2 * 200 + 3 * 63 + 9);
  EXPECT_EQ(mixing(Matrices::kPerHead, 63, 0).of({2, 3}).row(1), &m + 3 * 63 + 9);
  EXPECT_EQ(mixing(Matrices::kShared, 0, 0).of({2, 3}).row(1), &m + 9);
  EXPECT_EQ(message_of<mhla::option_error>([&] { mixing(Matrices::kShared, 63, 0); }),
            "mhla::cuda::f: mixing has head stride 63, and op.matrices is kShared, expected a "
            "stride of 0, or other op.matrices");
  EXPECT_EQ(message_of<mhla::option_error>([&] { mixing(Matrices::kPerHead, 63, 200); }),
            "mhla::cuda::f: mixing has item stride 200, and op.matrices is kPerHead, expected a "
            "stride of 0, or other op.matrices");
}

TEST(CudaInputs, WorkspacesThatAreTooSmallOrMisalignedAreRefused) {
  Arguments a;
  mhla::cuda::Plan plan{};
  plan.workspace_bytes = 256;
  const auto begin = [&](std::size_t offset, std::size_t bytes) {
    return mhla::cuda::detail::workspace_begin("cuda::f", {a.memory + offset, bytes},
                                               plan.workspace_bytes);
  };
  EXPECT_EQ(begin(0, 256), reinterpret_cast<unsigned char*>(a.memory));
  EXPECT_THROW(begin(0, 255), mhla::option_error);
  EXPECT_EQ(message_of<mhla::option_error>([&] { begin(16, 300); }),
            "mhla::cuda::f: workspace has 300 bytes, 16 after a multiple of 256, expected at least "
            "256 at a multiple of 256");
  plan.workspace_bytes = 0;
  EXPECT_NO_THROW(begin(16, 0));
}

TEST(CudaInputs, AStreamHasTheBlocksOfItsMatrixOrNoEnd) {
  mhla::cuda::Operator op;
  const auto blocks = [&op](Index rows, Index length) {
    return mhla::cuda::detail::stream_blocks("cuda::f", rows, length, op);
  };
  EXPECT_EQ(blocks(10, 16), mhla::cuda::contiguous(160, 16));
  EXPECT_EQ(message_of<mhla::option_error>([&] { blocks(1 << 16, 1 << 15); }),
            "mhla::cuda::f: mixing and block_length are for 65536 blocks of 32768 tokens, expected "
            "at least 1 and fewer than 2^31 tokens in all");
  EXPECT_THROW(blocks(0, 16), mhla::option_error);
  op.decay_terms = 3;
  EXPECT_EQ(blocks(2, 16).tokens(), 0x7FFFFFF0);
  EXPECT_EQ(blocks(2, 429496729).blocks(), 5);
  EXPECT_THROW(blocks(2, 0), mhla::option_error);
  EXPECT_EQ(
      message_of<mhla::option_error>([&] { blocks(2, 429496730); }),
      "mhla::cuda::f: block_length is 429496730, expected 1 to 429496729 with decaying terms");
}

TEST(CudaInputs, APrefillFitsItsStream) {
  const Arguments a;
  const auto prefill = [&a](Index capacity, Index heads, Index seen = 0) {
    return mhla::cuda::detail::prefill_problem<64, 64>(
        "cuda::f", a.in, mhla::cuda::contiguous(capacity, 16), seen, heads, a.op, a.out);
  };
  const Problem p = prefill(160, 3);
  EXPECT_TRUE(p.causal);
  EXPECT_EQ(p.key_blocks.blocks(), 7);
  EXPECT_EQ(p.query_blocks.slots(), 16);
  EXPECT_EQ(message_of<mhla::option_error>([&] { prefill(96, 3); }),
            "mhla::cuda::f: in has 100 tokens, expected 1 to 96");
  EXPECT_NO_THROW(prefill(160, 3, 60));
  EXPECT_EQ(message_of<mhla::option_error>([&] { prefill(160, 3, 61); }),
            "mhla::cuda::f: in has 100 tokens, expected 1 to 99");
  EXPECT_EQ(message_of<mhla::option_error>([&] { prefill(160, 3, 160); }),
            "mhla::cuda::f: seen is 160, expected 0 to 159");
  EXPECT_THROW(prefill(160, 3, -1), mhla::option_error);
  EXPECT_EQ(message_of<mhla::shape_error>([&] { prefill(160, 4); }),
            "mhla::cuda::f: q has 3 heads, expected 4");
}

TEST(CudaInputs, SequencesThatAStateDoesNotHaveAreRefused) {
  const auto expect = [](Index first, Index count) {
    mhla::cuda::detail::expect_sequences("cuda::f", first, count, 4);
  };
  EXPECT_NO_THROW(expect(0, 4));
  EXPECT_NO_THROW(expect(3, 1));
  EXPECT_NO_THROW(expect(4, 0));
  EXPECT_EQ(message_of<mhla::option_error>([&] { expect(3, 2); }),
            "mhla::cuda::f: sequences are 2 from 3 on, expected some of the 4 that the state has");
  EXPECT_THROW(expect(-1, 1), mhla::option_error);
  EXPECT_THROW(expect(0, 5), mhla::option_error);
}

TEST(CudaInputs, GridsThatCannotBeAreRefused) {
  EXPECT_EQ(message_of<mhla::option_error>([] {
              mhla::cuda::grid({4, 0, 4}, {1, 1, 1});
            }),
            "mhla::cuda::grid: tokens is [4, 0, 4], expected sizes >= 1 with a product below 2^31");
  EXPECT_THROW(mhla::cuda::grid({1 << 20, 1 << 11}, {1, 1}), mhla::option_error);
  EXPECT_EQ(message_of<mhla::option_error>([] { mhla::cuda::contiguous(8, 0); }),
            "mhla::cuda::contiguous: length is 0, expected at least 1");
  EXPECT_EQ(message_of<mhla::option_error>([] { mhla::cuda::contiguous(Index{1} << 31, 8); }),
            "mhla::cuda::contiguous: tokens is 2147483648, expected at least 1, below 2^31");
  EXPECT_EQ(mhla::cuda::contiguous(100, Index{1} << 40).slots(), 100);
}

/// Arguments with a gain and a gate.
struct NormedArguments : Arguments {
  alignas(8) float gain[66] = {};

  NormedArguments() {
    in.gain = {gain, 64};
    in.gate = mhla::bhnd<const T>(data, 2, 3, 100, 64);
    op.norm_eps = 0.5f;
  }
};

TEST(CudaInputs, OutputsAreNormalisedAndGatedWhereThereIsAGain) {
  NormedArguments a;
  const auto gated = a.problem().norm;
  EXPECT_TRUE(gated.normed && gated.gated);
  EXPECT_EQ(gated.eps, 0.5f);
  EXPECT_EQ(gated.gain, a.gain);
  EXPECT_EQ(gated.gate.token_stride, 64 * 2);
  EXPECT_EQ(gated.gate.head_stride, 100 * 64 * 2);
  a.in.gate = {};
  EXPECT_TRUE(a.problem().norm.normed);
  EXPECT_FALSE(a.problem().norm.gated);
  a.in.gain = {};
  EXPECT_FALSE(a.problem().norm.normed);
  EXPECT_NO_THROW(mhla::cuda::detail::expect_stream_inputs("cuda::f", a.in));
}

TEST(CudaInputs, GainsAndGatesThatDoNotFitAreRefused) {
  const auto message = []<class Error>(Error*, auto change) {
    NormedArguments a;
    change(a);
    return message_of<Error>([&] { a.problem(); });
  };
  constexpr mhla::option_error* kOption = nullptr;
  constexpr mhla::shape_error* kShape = nullptr;
  EXPECT_EQ(message(kOption, [](auto& a) { a.in.gain = {}; }),
            "mhla::cuda::f: gate is given without a gain, expected both, or a gain alone");
  EXPECT_EQ(message(kShape,
                    [](auto& a) {
                      a.in.gain = {a.gain, 63};
                    }),
            "mhla::cuda::f: gain has 63 elements, expected 64");
  EXPECT_EQ(message(kOption,
                    [](auto& a) {
                      a.in.gain = {a.gain + 1, 64};
                    }),
            "mhla::cuda::f: gain begins 4 bytes after a multiple of 8, expected a multiple of 8");
  EXPECT_EQ(message(kOption, [](auto& a) { a.op.norm_eps = -1; }),
            "mhla::cuda::f: op.norm_eps is -1.000000, expected >= 0");
  EXPECT_EQ(message(kShape, [](auto& a) { a.in.gate.shape[1] = 99; }),
            "mhla::cuda::f: gate has shape [2, 99, 3, 64], expected [2, 100, 3, 64]");
}

TEST(CudaInputs, StreamsHaveNoNorms) {
  const NormedArguments a;
  EXPECT_EQ(
      message_of<mhla::option_error>(
          [&] { mhla::cuda::detail::expect_stream_inputs("cuda::f", a.in); }),
      "mhla::cuda::f: gain is given, expected none: a norm reads all columns, and steps split "
      "those of wide outputs");
  EXPECT_THROW((mhla::cuda::detail::prefill_problem<64, 64>(
                   "cuda::f", a.in, mhla::cuda::contiguous(160, 16), 0, 3, a.op, a.out)),
               mhla::option_error);
  NormedArguments empty;
  empty.in.gain = {static_cast<const float*>(nullptr), 64};
  EXPECT_EQ(message_of<mhla::option_error>(
                [&] { mhla::cuda::detail::expect_data<T>("cuda::f", empty.in, empty.out); }),
            "mhla::cuda::f: gain is null, expected a pointer to data");
}

}  // namespace
