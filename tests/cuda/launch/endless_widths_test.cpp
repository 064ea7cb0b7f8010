// Tests of streams that mix by decaying terms, for further types, widths, precisions and feature
// maps: endless_stream_test.cpp.

#include <gtest/gtest.h>

#include "mhla/cuda/kernel/earlier_terms.cuh"
#include "mhla/cuda/launch/prefill.cuh"
#include "support/cuda/endless_run.hpp"
#include "support/cuda/own_maps.hpp"
#include "support/cuda/prefill_run.hpp"

namespace cuda_test {
namespace {

using mhla::cuda::Arch, mhla::cuda::bfloat16, mhla::cuda::half, mhla::cuda::Denominator,
    mhla::cuda::Precision;

TEST(EndlessWidths, StepsAreWithinTheBound) {
  check_steps<half, 64, 64, Precision::kPair>(endless(3, 3, 65, Denominator::kNone));
  check_steps<bfloat16, 72, 72, Precision::kPair>(endless(4, 5, 45));
  check_steps<half, 128, 256, Precision::kSingle>(endless(1, 4, 22));
}

TEST(EndlessWidths, PrefillsGoOn) {
  StreamCase c = endless(9, 5, 26, Denominator::kKeySum, 2);
  c.batch = 2;
  c.heads = 1;
  check_prefills<half, 72, 72, Precision::kPair>(c, {7, 22}, Arch::kSm90a);
  check_prefills<bfloat16, 128, 256, Precision::kSingle>(c, {12, 21}, Arch::kSm80);
  c.denominator = Denominator::kNone;
  check_prefills<half, 64, 64, Precision::kPair>(c, {10, 24}, Arch::kSm90a);
  check_prefills<bfloat16, 128, 128, Precision::kSingle>(c, {10, 11, 23}, Arch::kSm90a);
}

TEST(EndlessWidths, FeatureMapsMayBeOnesOwn) {
  StreamCase c = endless(2, 4, 30);
  c.batch = 2;
  check_prefills<bfloat16, 64, 64, Precision::kSingle, Softplus>(c, {9, 26}, Arch::kSm80);
}

}  // namespace
}  // namespace cuda_test
