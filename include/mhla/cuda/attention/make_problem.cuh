#pragma once

/// \file
/// The checks of a call's tensors together, and the problem that they describe. Nothing here reads
/// device memory or calls CUDA. All checks precede the first launch.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/mixing_inputs.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda::detail {

/// Returns the number of packed sequences.
/// \throws shape_error, option_error for offsets that do not fit.
template <DeviceScalar T>
Index packed_sequences(const char* function, const Inputs<T>& in, bool causal) {
  if (in.query_offsets.size() != in.key_offsets.size()) {
    fail_shape(function, "key_offsets",
               "has " + std::to_string(in.key_offsets.size()) + " elements",
               std::to_string(in.query_offsets.size()) + ", as query_offsets has");
  }
  if (in.q.batch() != 1) {
    fail_shape(function, "q", "has " + std::to_string(in.q.batch()) + " batch items",
               "1 of packed sequences");
  }
  if (causal && in.query_offsets.data() != in.key_offsets.data()) {
    fail_option(function, "key_offsets", "is another array than query_offsets",
                "the same in a causal form");
  }
  return std::ssize(in.query_offsets) - 1;
}

/// Describes the arguments of a form as a problem.
/// \throws shape_error, option_error for arguments that do not fit.
template <int D, int E, DeviceScalar T, AnyOperator O = Operator>
Problem make_problem(const char* function, const Inputs<T>& in, const TokenBlocks& query_blocks,
                     const TokenBlocks& key_blocks, bool causal, const O& op, TensorView<T> out) {
  const Operator& options = options_of(op);
  (void)form_bounds<D, E>(Arch::kSm80);  // rejects unsupported (D, E)
  if constexpr (std::is_same_v<T, float>) {
    static_assert(Widths<D, E>::kFloats, "float32 tensors have kernels for D up to 128");
  }
  constexpr Index kLimit = std::numeric_limits<std::int32_t>::max();
  const Index items = in.q.batch(), heads = in.q.heads();
  const Index batch = is_packed(in) ? packed_sequences(function, in, causal) : items;
  if (batch < 0 || heads < 0 || (heads > 0 && batch > kLimit / heads)) {
    fail_shape(function, "q",
               "has " + std::to_string(batch) + " x " + std::to_string(heads) + " heads",
               "fewer than 2^31 heads of all sequences");
  }
  if (causal && in.query_prefix != in.key_prefix) {
    fail_option(function, "key_prefix", "is " + std::to_string(in.key_prefix),
                std::to_string(in.query_prefix) + ", as query_prefix, in a causal form");
  }
  expect_prefix(function, "query_prefix", in.query_prefix, query_blocks);
  expect_prefix(function, "key_prefix", in.key_prefix, key_blocks);
  const Index q_rows = tokens_of(in, in.q, in.query_prefix, query_blocks);
  const Index k_rows = tokens_of(in, in.k, in.key_prefix, key_blocks);
  Problem problem{
      .q = token_tensor<const unsigned char>(function, "q", in.q, {items, q_rows, heads, D}),
      .k = token_tensor<const unsigned char>(function, "k", in.k, {items, k_rows, heads, D}),
      .v = token_tensor<const unsigned char>(function, "v", in.v, {items, k_rows, heads, E}),
      .o = output_tensor(function, out, {items, q_rows, heads, E}),
      .batch = static_cast<std::int32_t>(batch),
      .heads = static_cast<std::int32_t>(heads),
      .query_blocks = query_blocks,
      .key_blocks = key_blocks,
      .op = options,
      .own_query_map = !std::is_same_v<decltype(op.query_map), FeatureMap>,
      .own_key_map = !std::is_same_v<decltype(op.key_map), FeatureMap>,
      .norm = output_norm<E>(function, in, options),
      .causal = causal,
      .queries = selection(function, "query_mask", in.query_mask, in.query_offsets, items, q_rows),
      .keys = selection(function, "key_mask", in.key_mask, in.key_offsets, items, k_rows)};
  problem.query_blocks =
      problem.queries.add_prefix(static_cast<std::int32_t>(in.query_prefix), query_blocks);
  problem.key_blocks =
      problem.keys.add_prefix(static_cast<std::int32_t>(in.key_prefix), key_blocks);
  if (options.denominator == Denominator::kCrossQuery) {
    if (causal) {
      fail_option(function, "op", "has a cross-query denominator",
                  "none or key sums: it reads later queries");
    }
    const TokenBlocks& blocks = problem.query_blocks;
    const bool equal =
        blocks.blocks() == problem.key_blocks.blocks() &&
        blocks.blocks() * std::int64_t{blocks.slots()} == problem.queries.tokens(blocks);
    if (!equal) {
      fail_option(function, "op", "has a cross-query denominator",
                  "as many query blocks as key blocks, all of one size");
    }
  }
  expect_decay_terms(function, options, causal);
  if (causal && key_blocks.columns() != key_blocks.tokens()) {
    fail_option(function, "blocks", "are of a grid", "runs of consecutive tokens: contiguous()");
  }
  // Numbers of thread blocks have 31 bits.
  const auto strips_of = [](const TokenBlocks& blocks) {
    return std::int64_t{blocks.tokens() / 16} + blocks.blocks();
  };
  const std::int64_t strips = strips_of(problem.query_blocks) + strips_of(problem.key_blocks);
  if (batch * heads > kLimit / std::max<std::int64_t>(strips, 1)) {
    fail_shape(function, "q", "has " + std::to_string(batch * heads) + " heads in all",
               "at most " + std::to_string(kLimit / strips) + " of such a length");
  }
  return std::is_same_v<T, float> ? of_floats(problem) : problem;
}

/// \throws option_error for absent data, which only a plan may leave out.
template <DeviceScalar T>
void expect_data(const char* function, const Inputs<T>& in,
                 std::type_identity_t<TensorView<const T>> out, const char* out_name = "out") {
  const auto expect = [function](const char* argument, TensorView<const T> x) {
    const auto& [b, n, h, d] = x.shape;
    if (x.data == nullptr && b * n * h * d > 0) {
      fail_option(function, argument, "is null with shape " + shape_text({b, n, h, d}),
                  "a pointer to data");
    }
  };
  expect("q", in.q);
  expect("k", in.k);
  expect("v", in.v);
  if (!in.gate.absent()) expect("gate", in.gate);
  expect(out_name, out);
  const auto expect_pointer = [function](const char* argument, bool given, const void* data) {
    if (given && data == nullptr) fail_option(function, argument, "is null", "a pointer to data");
  };
  expect_pointer("gain", !in.gain.empty(), in.gain.data());
  expect_pointer("query_mask", in.query_mask.rows * in.query_mask.cols > 0, in.query_mask.keep);
  expect_pointer("key_mask", in.key_mask.rows * in.key_mask.cols > 0, in.key_mask.keep);
  expect_pointer("query_offsets", !in.query_offsets.empty(), in.query_offsets.data());
  expect_pointer("key_offsets", !in.key_offsets.empty(), in.key_offsets.data());
}

}  // namespace mhla::cuda::detail
