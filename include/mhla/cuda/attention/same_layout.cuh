#pragma once

/// \file
/// Check that a prepared call gets tensors of the layout of its preparation.

#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda::detail {

/// \throws shape_error, option_error if the problems differ in more than the addresses of their
///         tensors.
inline void expect_same_layout(const char* function, const Problem& problem,
                               const Problem& prepared) {
  const auto same = [](const auto& a, const auto& b) {
    return a.batch_stride == b.batch_stride && a.head_stride == b.head_stride &&
           a.token_stride == b.token_stride;
  };
  if (problem.batch != prepared.batch || problem.heads != prepared.heads) {
    fail_shape(function, "q", "has " + shape_text({problem.batch, problem.heads}) + " heads",
               shape_text({prepared.batch, prepared.heads}) + " as prepared");
  }
  if (!same(problem.q, prepared.q) || !same(problem.k, prepared.k) ||
      !same(problem.v, prepared.v) || !same(problem.o, prepared.o)) {
    fail_option(function, "q, k, v and out", "have other strides",
                "those that it was prepared for");
  }
  if (problem.norm.normed && !prepared.norm.normed) {
    fail_option(function, "gain", "is given", "none, as prepared");
  }
  if (problem.norm.gated && !prepared.norm.gated) {
    fail_option(function, "gate", "is given", "none, as prepared");
  }
  const auto same_kind = [](const Selection& a, const Selection& b) {
    return a.masked == b.masked && a.packed == b.packed && a.prefix == b.prefix;
  };
  if (!same_kind(problem.queries, prepared.queries) || !same_kind(problem.keys, prepared.keys)) {
    fail_option(function, "masks, offsets and prefixes", "are others",
                "those that it was prepared for");
  }
}

}  // namespace mhla::cuda::detail
