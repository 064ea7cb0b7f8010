#include "mhla/cuda/attention/rotary_inputs.cuh"

#include <gtest/gtest.h>

#include <string>

#include "support/message_of.hpp"

namespace {

using mhla::MatrixView;
using mhla::cuda::Denominator;
using mhla::cuda::NoRotary;
using mhla::cuda::Problem;
using mhla::cuda::Rotary;
using mhla::test::message_of;

/// 100 queries and 60 keys of 64 features. No data is read.
struct RotaryArguments {
  alignas(16) float numbers[8] = {};
  Rotary rotary{{numbers, 100, 64, 64}, {numbers, 60, 64, 72}};
  Problem problem{};

  RotaryArguments() {
    problem.query_blocks = mhla::cuda::contiguous(100, 10);
    problem.key_blocks = mhla::cuda::contiguous(60, 10);
  }
  void add() { mhla::cuda::detail::add_rotary("cuda::f", rotary, 64, problem); }
};

TEST(RotaryInputs, AnglesBecomeThoseOfTheProblem) {
  RotaryArguments a;
  mhla::cuda::detail::add_rotary("cuda::f", NoRotary{}, 64, a.problem);
  EXPECT_FALSE(a.problem.rotary);
  a.add();
  EXPECT_TRUE(a.problem.rotary);
  EXPECT_EQ(a.problem.query_angles.row(3), a.numbers + 3 * 64);
  EXPECT_EQ(a.problem.key_angles.row(3), a.numbers + 3 * 72);
  EXPECT_EQ(a.problem.key_angles.row(-1), a.numbers);
  EXPECT_NO_THROW(mhla::cuda::detail::expect_angles("cuda::f", a.problem));
}

TEST(RotaryInputs, WhatDoesNotFitIsRefused) {
  const auto message = []<class Error>(Error*, auto change) {
    RotaryArguments a;
    change(a);
    return message_of<Error>([&] {
      a.add();
      mhla::cuda::detail::expect_angles("cuda::f", a.problem);
    });
  };
  constexpr mhla::option_error* kOption = nullptr;
  constexpr mhla::shape_error* kShape = nullptr;
  EXPECT_EQ(message(kShape, [](auto& a) { a.rotary.key_angles.rows = 100; }),
            "mhla::cuda::f: rotary.key_angles has shape [100, 64], expected [60, 64]");
  EXPECT_EQ(message(kShape, [](auto& a) { a.rotary.query_angles.cols = 32; }),
            "mhla::cuda::f: rotary.query_angles has shape [100, 32], expected [100, 64]");
  const char* const kDense = ", expected dense rows that begin at multiples of 16 bytes";
  EXPECT_EQ(message(kOption, [](auto& a) { a.rotary.query_angles.row_stride = 66; }),
            std::string("mhla::cuda::f: rotary.query_angles has strides [66, 1] and begins 0 bytes "
                        "after a multiple of 16") +
                kDense);
  EXPECT_EQ(message(kOption, [](auto& a) { ++a.rotary.key_angles.data; }),
            std::string("mhla::cuda::f: rotary.key_angles has strides [72, 1] and begins 4 bytes "
                        "after a multiple of 16") +
                kDense);
  EXPECT_EQ(message(kOption, [](auto& a) { a.rotary.key_angles.data = nullptr; }),
            "mhla::cuda::f: rotary is null, expected pointers to data");
  EXPECT_EQ(
      message(kOption,
              [](auto& a) {
                a.problem.causal = true;
                a.problem.op.denominator = Denominator::kKeySum;
              }),
      "mhla::cuda::f: op has a denominator, expected none: causal forms with a rotary embedding "
      "have no denominator");
}

}  // namespace
