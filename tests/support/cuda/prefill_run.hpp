#pragma once

/// \file
/// Prefills of streams as launched, in the emulator. Outputs are within the bound of streams
/// (streaming_run.hpp). Outputs of the causal part have the bits of the causal form of the whole
/// sequence. All other outputs have the bits of steps, if kernels of sm_80 made the summaries.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "mhla/cuda/launch/prefill.cuh"
#include "support/cuda/emulated_call.hpp"
#include "support/cuda/streaming_run.hpp"

namespace cuda_test {

/// Tokens from `begin` up to `end` of the sequences from `first` on.
template <class T, int D, int E, Precision P, class Map>
mhla::cuda::Problem problem_of(Streams<T, D, E, P, Map>& x, int first, int begin, int end) {
  const auto from = [&](auto tensor) {
    tensor.data += first * tensor.batch_stride + begin * tensor.token_stride;
    return tensor;
  };
  const int tokens = end - begin;
  const mhla::cuda::TokenBlocks blocks(1, 1, tokens, 1, 1, std::min(tokens, x.c.length));
  const mhla::cuda::Normalization n = x.c.normalization();
  mhla::cuda::Operator op{x.c.map, x.c.map, n.denominator, n.eps, n.scale, P};
  if (x.c.per_head) op.matrices = mhla::cuda::Matrices::kPerHead;
  op.decay_terms = x.c.terms;
  return {.q = from(x.q.input()),
          .k = from(x.k.input()),
          .v = from(x.v.input()),
          .o = from(x.o.output()),
          .batch = x.c.batch - first,
          .heads = x.c.heads,
          .query_blocks = blocks,
          .key_blocks = blocks,
          .op = op,
          .own_query_map = x.kOwnMap,
          .own_key_map = x.kOwnMap,
          .causal = true};
}

/// The maps of streams, for the library.
template <class T, int D, int E, Precision P, class Map>
auto maps_of(const Streams<T, D, E, P, Map>& x) {
  if constexpr (Streams<T, D, E, P, Map>::kOwnMap) {
    return mhla::cuda::MappedOperator(mhla::cuda::Operator{}, Map{});
  } else {
    return mhla::cuda::Operator{.query_map = x.c.map, .key_map = x.c.map};
  }
}

/// Streams in which several tokens are prefilled in the sequences from `first` on.
template <class T, int D, int E, Precision P, class Map = mhla::cuda::FeatureMap>
struct Prefilled : Streams<T, D, E, P, Map> {
  int first;
  mhla::cuda::Arch arch;
  Array<unsigned char> workspace;

  Prefilled(const StreamCase& which, int from, mhla::cuda::Arch of)
      : Streams<T, D, E, P, Map>(which, 1), first(from), arch(of), workspace(40 << 20) {
    this->device.track("workspace", workspace.data(), workspace.bytes(),
                       emulator::Access::kReadWrite);
  }

  /// Runs a prefill and returns the first token of the causal part.
  int prefill(int begin, int end) {
    const mhla::cuda::Problem problem = problem_of(*this, first, begin, end);
    const mhla::cuda::Device target{arch, 2};
    const int seen = this->c.terms > 0 ? mhla::cuda::endless_counter(begin, this->c.length) : begin;
    const mhla::cuda::Plan plan =
        mhla::cuda::prefill_plan<D, E>(problem, seen, this->c.length, target);
    const int causal =
        std::min((begin + this->c.length - 1) / this->c.length * this->c.length, end);
    EXPECT_EQ(plan.workspace_bytes > 0, causal < end || this->kOwnMap);
    EXPECT_LE(plan.workspace_bytes, workspace.bytes());
    constexpr bool kTensorCopies = mhla::cuda::Widths<D, E>::kTensorCopies;
    EXPECT_EQ(plan.summary, kTensorCopies ? arch : mhla::cuda::Arch::kSm80);
    StreamingStepParameters tokens = this->parameters([](auto tensor) { return tensor; });
    tokens.q = problem.q;
    tokens.k = problem.k;
    tokens.v = problem.v;
    tokens.o = problem.o;
    tokens.first = first;
    const EmulatedStream stream(this->device);
    mhla::cuda::run_prefill<T, D, E>(plan, problem, tokens, seen, workspace.data(), target, stream,
                                     maps_of(*this));
    // Threads copy pieces of the same tokens' keys and values, which conflict if rows of values are
    // longer and not panels.
    if (E > D && !mhla::cuda::Width<E>::kPanels) return causal;
    for (const auto& each : stream.reports()) EXPECT_EQ(each.bank_conflicts, 0u);
    return causal;
  }
};

/// Computes the first tokens of the prefilled sequences by the causal form in three stages.
template <class T, int D, int E, Precision P, class Map>
void run_causal(Prefilled<T, D, E, P, Map>& x, int tokens) {
  const mhla::cuda::Problem problem = problem_of(x, x.first, 0, tokens);
  const mhla::cuda::Device target{x.arch, 2};
  const mhla::cuda::Staging<D, E> staging(problem, nullptr);
  mhla::cuda::Plan plan =
      mhla::cuda::detail::planned<D, E>(staging.inner(), target, mhla::cuda::Form::kThreeStage, "");
  plan.workspace_bytes += staging.bytes();
  ASSERT_LE(plan.workspace_bytes, x.workspace.bytes());
  mhla::cuda::run<T, D, E, true>(plan, problem, x.mixing.array(), x.workspace.data(), target,
                                 EmulatedStream(x.device), maps_of(x));
}

/// Compares a token of the prefilled sequences.
template <class T, int D, int E, Precision P, class Map>
void expect_same(const Streams<T, D, E, P, Map>& x, const Streams<T, D, E, P, Map>& y, int token) {
  for (int b = 1; b < x.c.batch; ++b) {
    for (int h = 0; h < x.c.heads; ++h) {
      for (int e = 0; e < E; ++e) {
        ASSERT_EQ(x.o.value(b, token, h, e), y.o.value(b, token, h, e)) << b << ' ' << token;
      }
    }
  }
}

/// Checks two or three sequences. All but the first have prefills together, up to each of `ends`, a
/// step for each "-1", and steps at their end. The first has only steps.
template <class T, int D, int E, Precision P, class Map = mhla::cuda::FeatureMap>
void check_prefills(const StreamCase& c, const std::vector<int>& ends, mhla::cuda::Arch arch) {
  std::string text = arch == mhla::cuda::Arch::kSm80 ? "sm_80" : "sm_90a";
  text += " D " + std::to_string(D) + " E " + std::to_string(E);
  for (const int end : ends) text.append(" ").append(std::to_string(end));
  SCOPED_TRACE(text);
  Streams<T, D, E, P, Map> steps(c, 1);
  Prefilled<T, D, E, P, Map> x(c, 1, arch), whole(c, 1, arch);
  std::vector<bool> is_causal(static_cast<std::size_t>(c.tokens));
  int seen = 0;
  for (const int end : ends) {
    if (end < 0) {
      c.batch > 2 ? x.step({2, seen}, {1, seen}) : x.step({0, 0, false}, {1, seen});
      ++seen;
      continue;
    }
    std::fill(is_causal.begin() + x.prefill(seen, end), is_causal.begin() + end, true);
    seen = end;
  }
  for (int t = 0; t < c.tokens; ++t) steps.step(t);
  for (int t = 0; t + seen < c.tokens; ++t) {
    x.step({0, t}, {1, t + seen});
    if (c.batch > 2) x.step({2, t + seen}, {0, 0, false});
  }
  Comparison comparison("with prefills");
  for (int b = 1; b < c.batch; ++b) {
    for (int h = 0; h < c.heads; ++h) compare(comparison, x, b, h, 3);
  }
  EXPECT_GT(comparison.worst(), 0);
  // The causal form and steps make summaries in the same order, unless wgmma does.
  const bool same = arch == mhla::cuda::Arch::kSm80 || !mhla::cuda::Widths<D, E>::kWgmma;
  if (seen >= c.length) run_causal(whole, seen);
  for (int t = 0; same && t < c.tokens; ++t) {
    if (!is_causal[static_cast<std::size_t>(t)]) {
      expect_same(x, steps, t);
    } else if (seen >= c.length) {
      expect_same(x, whole, t);
    }
  }
  // On sm_90a, summaries have the bits of the causal form only if that form made all of them.
  if (!same && ends.size() == 1) {
    for (int t = 0; t < seen; ++t) expect_same(x, whole, t);
  }
}

}  // namespace cuda_test
