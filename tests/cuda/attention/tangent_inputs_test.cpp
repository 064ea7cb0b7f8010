#include "mhla/cuda/attention/tangent_inputs.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "support/cuda/form_arguments.hpp"
#include "support/message_of.hpp"

namespace {

using mhla::Index;
using mhla::cuda::Along;
using mhla::cuda::TangentProblem;
using mhla::test::message_of;
using T = Eigen::bfloat16;

/// A call with all directions. No data is read, so tensors share memory.
struct TangentArguments : cuda_test::FormArguments {
  float* floats = reinterpret_cast<float*>(memory);
  mhla::cuda::Tangents<T> tangents{mhla::bhnd<const T>(data, 2, 3, 100, 64),
                                   mhla::bnhd<const T>(data, 2, 100, 3, 64),
                                   mhla::bnhd<const T>(data, 2, 100, 3, 64),
                                   {floats, 7, 7, 7}};
  mhla::TensorView<T> tangent = mhla::bhnd(data, 2, 3, 100, 64);
  bool causal = false;

  TangentProblem made() const {
    return mhla::cuda::detail::make_tangent<64, 64>("cuda::f", in, blocks, blocks, causal, op,
                                                    tangents, out, tangent);
  }
  void expect_data() const {
    mhla::cuda::detail::expect_tangent_data("cuda::f", in, tangents, out, tangent);
  }
};

/// Returns the error of changed arguments.
template <class Change>
std::string made_of(const Change& change) {
  TangentArguments a;
  change(a);
  return message_of<mhla::error>([&] { a.made(); });
}

TEST(CudaTangentInputs, DescribeTheDirections) {
  TangentArguments a;
  const TangentProblem all = a.made();
  for (const Along along : mhla::cuda::kDirections) EXPECT_TRUE(all.wants_along(along));
  EXPECT_EQ(all.q.head_stride, 100 * 64 * 2);
  EXPECT_EQ(all.k.head_stride, 64 * 2);
  EXPECT_EQ(all.tangent.head_stride, 100 * 64 * 2);
  EXPECT_TRUE(all.key_sums());
  a.tangents = {};
  a.tangents.v = mhla::bnhd<const T>(nullptr, 2, 100, 3, 64);  // plans need no data
  const TangentProblem values = a.made();
  for (const Along along : mhla::cuda::kDirections) {
    EXPECT_EQ(values.wants_along(along), along == Along::kValues);
  }
}

TEST(CudaTangentInputs, ShapesThatDoNotFitAreNamed) {
  EXPECT_EQ(made_of([](TangentArguments& a) {
              a.tangents.q = mhla::bnhd<const T>(a.data, 2, 99, 3, 64);
            }),
            "mhla::cuda::f: tangents.q has shape [2, 99, 3, 64], expected [2, 100, 3, 64]");
  EXPECT_EQ(made_of([](TangentArguments& a) {
              a.tangents.k = mhla::bnhd<const T>(a.data, 2, 100, 3, 72);
            }),
            "mhla::cuda::f: tangents.k has shape [2, 100, 3, 72], expected [2, 100, 3, 64]");
  EXPECT_EQ(made_of([](TangentArguments& a) {
              a.tangents.v = mhla::bnhd<const T>(a.data, 1, 100, 3, 64);
            }),
            "mhla::cuda::f: tangents.v has shape [1, 100, 3, 64], expected [2, 100, 3, 64]");
  EXPECT_EQ(made_of([](TangentArguments& a) {
              a.tangents.mixing = {a.floats, 7, 6, 6};
            }),
            "mhla::cuda::f: tangents.mixing has shape [7, 6], expected [7, 7]");
  EXPECT_EQ(made_of([](TangentArguments& a) { a.tangents.mixing.head_stride = 49; }),
            "mhla::cuda::f: tangents.mixing has head stride 49, and op.matrices is kShared, "
            "expected a stride of 0, or other op.matrices");
  EXPECT_EQ(made_of([](TangentArguments& a) { a.tangents.mixing.col_stride = 2; }),
            "mhla::cuda::f: tangents.mixing has column stride 2, expected 1");
  EXPECT_EQ(made_of([](TangentArguments& a) { a.tangent = mhla::bnhd(a.data, 2, 100, 2, 64); }),
            "mhla::cuda::f: tangent has shape [2, 100, 2, 64], expected [2, 100, 3, 64]");
  EXPECT_NE(made_of([](TangentArguments& a) { a.tangent.strides[0] = 0; }), "no exception");
}

TEST(CudaTangentInputs, CallsWithoutTangentsAreRefused) {
  EXPECT_EQ(
      made_of([](TangentArguments& a) { a.op.denominator = mhla::cuda::Denominator::kCrossQuery; }),
      "mhla::cuda::f: op has a cross-query denominator, expected none or key sums in "
      "tangents");
  EXPECT_EQ(made_of([](TangentArguments& a) { a.causal = true; }),
            "mhla::cuda::f: op has a denominator, expected none in tangents of causal forms");
  EXPECT_EQ(made_of([](TangentArguments& a) {
              a.causal = true;
              a.op.denominator = mhla::cuda::Denominator::kNone;
            }),
            "no exception");
  EXPECT_EQ(made_of([](TangentArguments& a) { a.op.decay_terms = 2; }),
            "mhla::cuda::f: op.decay_terms is 2, expected 0: tangents take matrices of "
            "coefficients");
  EXPECT_EQ(made_of([](TangentArguments& a) {
              a.in.gain = {a.floats, 64};
            }),
            "mhla::cuda::f: gain is given, expected none: tangents take no norm");
  EXPECT_EQ(made_of([](TangentArguments& a) { a.in.gate = a.in.v; }),
            "mhla::cuda::f: gate is given, expected none: tangents take no gate");
  EXPECT_EQ(made_of([](TangentArguments& a) { a.in.key_prefix = 1; }),
            "mhla::cuda::f: key_prefix is given, expected none: tangents take all tokens");
  static constexpr std::int32_t kOffsets[] = {0, 100};
  EXPECT_EQ(made_of([](TangentArguments& a) { a.in.query_offsets = kOffsets; }),
            "mhla::cuda::f: query_offsets is given, expected none: tangents take all tokens");
}

TEST(CudaTangentInputs, AbsentDataIsNamed) {
  const auto data_of = [](const auto& change) {
    TangentArguments a;
    change(a);
    EXPECT_NO_THROW(a.made());  // plans need no data
    return message_of<mhla::option_error>([&] { a.expect_data(); });
  };
  EXPECT_EQ(data_of([](TangentArguments&) {}), "no exception");
  EXPECT_EQ(data_of([](TangentArguments& a) { a.in.k.data = nullptr; }),
            "mhla::cuda::f: k is null with shape [2, 100, 3, 64], expected a pointer to data");
  EXPECT_EQ(
      data_of([](TangentArguments& a) { a.tangent.data = nullptr; }),
      "mhla::cuda::f: tangent is null with shape [2, 100, 3, 64], expected a pointer to data");
  EXPECT_EQ(data_of([](TangentArguments& a) { a.tangents.v.data = nullptr; }),
            "mhla::cuda::f: tangents.v is null, expected a pointer to data");
}

}  // namespace
