#pragma once

/// \file
/// A call whose mixing matrix has a pattern. It tells which of the kernels that the library
/// launches for the call skip zeros.

#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/attention/gradient_inputs.cuh"
#include "mhla/cuda/kernel/mixing_sm80.cuh"
#include "mhla/cuda/kernel/ordered_sums.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/gradient.cuh"
#include "support/cuda/form_arguments.hpp"

namespace cuda_test {

/// True for kernels that mix without zeros.
template <class Kernel>
inline constexpr bool kSkips = false;
template <class Number, int kD, int kE, mhla::cuda::Precision kPrecision>
inline constexpr bool kSkips<mhla::cuda::MixingSm80<Number, kD, kE, kPrecision, true>> = true;

/// A stream that launches nothing.
struct PatternListing {
  mutable bool mixes = false;  ///< summaries are mixed without zeros
  mutable bool sums = false;   ///< gradients of the pattern's coefficients alone are summed

  template <class Kernel>
  void run(const typename Kernel::Params& p, std::int32_t,
           mhla::cuda::Start = mhla::cuda::Start::kInOrder) const {
    mixes |= kSkips<Kernel>;
    if constexpr (std::is_same_v<Kernel, mhla::cuda::OrderedSumsSm80>) {
      sums |= p.pattern != nullptr;
    }
  }
  mhla::cuda::TensorMap tensor_map(const mhla::cuda::TensorBox&) const { return {}; }
};

/// A bidirectional call of 128 heads.
struct PatternedCall : FormArguments {
  alignas(256) unsigned char bytes[512] = {};
  std::uint32_t words[1] = {};

  explicit PatternedCall(const mhla::cuda::TokenBlocks& of) {
    for (auto* x : {&in.q, &in.k, &in.v}) {
      *x = mhla::bnhd<const FormArguments::T>(data, 8, of.tokens(), 16, 64);
    }
    out = mhla::bnhd(data, 8, of.tokens(), 16, 64);
    blocks = of;
  }
  mhla::cuda::MixingMatrices<const float> matrices() const {
    const std::int32_t count = blocks.blocks();
    mhla::cuda::MixingMatrices<const float> mixing(reinterpret_cast<const float*>(bytes), count,
                                                   count, count);
    mixing.pattern = words;
    return mixing;
  }

  /// Plans the call, and tells whether its kernels skip zeros.
  /// \param form  that the plan must have
  bool skips(mhla::cuda::Form form, const mhla::cuda::Device& device) {
    const mhla::cuda::Problem call = problem();
    const mhla::cuda::Plan plan = mhla::cuda::plan<64, 64>(call, device);
    EXPECT_EQ(plan.form, form) << plan.reason;
    const PatternListing stream;
    mhla::cuda::run<mhla::cuda::bfloat16, 64, 64, false>(
        plan, call, mhla::cuda::detail::mixing_array("f", matrices(), call), bytes, device, stream);
    return stream.mixes;
  }

  /// Tells whether kernels of gradients leave out the coefficients that the pattern lacks.
  /// \param form  of the forward call, whose summaries are mixed in three stages
  bool gradient_skips(mhla::cuda::Form form, const mhla::cuda::Device& device) {
    using Number = FormArguments::T;
    const std::int32_t count = blocks.blocks();
    const mhla::cuda::Gradients<Number> gradients{
        out, out, out, {reinterpret_cast<float*>(bytes), count, count, count}};
    const mhla::cuda::GradientProblem call = mhla::cuda::detail::make_gradient<64, 64>(
        "f", in, blocks, blocks, false, op, mhla::TensorView<const Number>(out), gradients, {});
    const auto plan = mhla::cuda::gradient_plan<64, 64, false, false>(call, device);
    const PatternListing stream;
    mhla::cuda::run_gradient<mhla::cuda::bfloat16, 64, 64, false, false>(
        plan, call, mhla::cuda::detail::mixing_array("f", matrices(), call.forward), bytes, device,
        stream);
    EXPECT_EQ(stream.mixes, form == mhla::cuda::Form::kThreeStage);
    return stream.sums;
  }
};

}  // namespace cuda_test
