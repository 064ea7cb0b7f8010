// Tests of streams that mix by decaying terms, in the emulator: outputs against the causal form in
// double, whose blocks have no limit, and states of any position. The bound: streaming_run.hpp.
// Other types and widths: endless_widths_test.cpp.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "mhla/attention/streaming.hpp"
#include "mhla/cuda/kernel/decay_mixing_sm80.cuh"
#include "mhla/cuda/kernel/earlier_terms.cuh"
#include "mhla/cuda/kernel/streaming_mixture.cuh"
#include "mhla/cuda/kernel/summary_piece.cuh"
#include "mhla/cuda/launch/prefill.cuh"
#include "mhla/policy/decay_mixing.hpp"
#include "support/cuda/endless_run.hpp"
#include "support/cuda/prefill_run.hpp"

namespace cuda_test {
namespace {

using mhla::cuda::Arch, mhla::cuda::bfloat16, mhla::cuda::Denominator, mhla::cuda::Precision;

constexpr auto kSingle = Precision::kSingle;

// Streams have many times the four blocks that counters tell apart.
TEST(EndlessStream, StepsAreWithinTheBound) {
  check_steps<bfloat16, 64, 64, kSingle>(endless(3, 1, 40));
  check_steps<bfloat16, 64, 64, kSingle>(endless(3, 3, 50, Denominator::kNone));
}

TEST(EndlessStream, MayHaveAnyNumberOfTerms) {
  for (const int terms : {7, 8, 9, mhla::cuda::DecayArray::kMost}) {
    check_steps<bfloat16, 64, 64, kSingle>(endless(terms, 2, 16, Denominator::kKeySum, 3));
  }
}

TEST(EndlessStream, BlocksMayHaveSeveralChunks) {
  check_steps<bfloat16, 64, 64, kSingle>(endless(2, 70, 150));
}

// The last prefill begins after a wrap of the counters, and one has a partial block alone.
TEST(EndlessStream, PrefillsGoOn) {
  const std::vector<std::vector<int>> all = {
      {13}, {3, 17}, {12, 15, 18, 40}, {-1, 31}, {30, 32, 48}};
  for (const std::vector<int>& ends : all) {
    StreamCase c = endless(3, 6, 50);
    c.batch = 2;
    check_prefills<bfloat16, 64, 64, kSingle>(c, ends, Arch::kSm80);
  }
}

TEST(EndlessStream, PrefillsTakeSeveralSequencesAtOnce) {
  StreamCase c = endless(3, 4, 34);
  c.batch = 3;
  check_prefills<bfloat16, 64, 64, kSingle>(c, {3, 11, -1, 26}, Arch::kSm80);
}

TEST(EndlessStream, HeadsMayHaveTermsOfTheirOwn) {
  StreamCase c = endless(3, 4, 34);
  c.batch = 2;
  c.per_head = true;
  check_prefills<bfloat16, 64, 64, kSingle>(c, {9, 26}, Arch::kSm80);
}

/// Copies sequence `from` of a state to sequence `to` of another one.
template <class T, int D, int E>
void copy_sequence(const Streams<T, D, E, kSingle>& x, int from, Streams<T, D, E, kSingle>& y,
                   int to) {
  const std::int64_t heads = x.c.heads, matrix = heads * D * E, kept = x.kept();
  const StreamingStateLayout& l = x.layout;
  const std::pair<std::int64_t, std::int64_t> parts[] = {
      {0, heads * 8 * (E / streaming_slice(E))},   {l.mixture_high, 4 * matrix},
      {l.mixture_key_sum, heads * 8 * D},          {l.summary_high, 2 * kept * matrix},
      {l.summary_key_sum, heads * kept * 4 * D},   {l.keys, heads * x.c.length * 2 * D},
      {l.values, heads * x.c.length * 2 * E},      {l.terms, 4 * x.c.terms * matrix},
      {l.term_key_sums, heads * x.c.terms * 4 * D}};
  for (const auto& [begin, bytes] : parts) {
    std::memcpy(y.state.data() + begin + to * bytes, x.state.data() + begin + from * bytes,
                static_cast<std::size_t>(bytes));
  }
}

TEST(EndlessStream, SequencesStandWhereTheyWillAndMayBeSaved) {
  StreamCase c = endless(3, 4, 44);
  c.batch = 3;
  Streams<bfloat16, 64, 64, kSingle> together(c, 1), x(c, 1), y(c, 1);
  for (int t = 0; t < c.tokens; ++t) together.step(t);
  for (int t = 0; t < 9; ++t) x.step({1, t}, {0, t, false});
  for (int t = 0; t < 30; ++t) x.step({0, t}, {2, t});
  x.start(1);
  for (int t = 0; t < 19; ++t) x.step({1, t}, {0, t, false});
  const auto expect_equal = [&](int sequence, int token, int of) {
    for (int h = 0; h < c.heads; ++h) {
      for (int e = 0; e < 64; ++e) {
        ASSERT_EQ(y.o.value(sequence, token, h, e), together.o.value(of, token, h, e)) << token;
      }
    }
  };
  // Sequences change places between two states, and go on with their own tokens.
  for (int b = 0; b < 3; ++b) copy_sequence(x, b, y, (b + 1) % 3);
  for (Tensor<bfloat16>* tensors : {&y.q, &y.k, &y.v}) {
    const Tensor<bfloat16>& from = tensors == &y.q ? x.q : tensors == &y.k ? x.k : x.v;
    tensors->each([&](int b, int t, int h, int d) {
      tensors->at((b + 1) % 3, t, h, d) = from.at(b, t, h, d);
    });
  }
  for (int t = 30; t < 44; ++t) {
    y.step({1, t}, {0, t});  // sequences 0 and 2 of x
    expect_equal(1, t, 0);
    expect_equal(0, t, 2);
  }
  for (int t = 19; t < 44; ++t) {
    y.step({2, t}, {0, t, false});
    expect_equal(2, t, 1);
  }
}

TEST(EndlessStream, SchedulesChangeNoBit) {
  const StreamCase c = endless(9, 3, 20);
  Streams<bfloat16, 64, 64, kSingle> first(c, 0);
  for (int t = 0; t < c.tokens; ++t) first.step(t);
  for (unsigned schedule = 1; schedule < 4; ++schedule) {
    Streams<bfloat16, 64, 64, kSingle> again(c, schedule);
    for (int t = 0; t < c.tokens; ++t) again.step(t);
    EXPECT_EQ(std::memcmp(first.o.raw(), again.o.raw(), first.o.bytes()), 0);
    EXPECT_EQ(std::memcmp(first.state.data(), again.state.data(), first.state.bytes()), 0);
  }
}

// The bound is about the definition. The CPU's stream has the same one.
TEST(EndlessStream, AreTheStreamsOfTheCpu) {
  StreamCase c = endless(3, 5, 60, Denominator::kKeySum, 7);
  c.map = mhla::cuda::FeatureMap::elu_plus_one();
  Streams<bfloat16, 64, 64, kSingle> x(c, 1);
  std::vector<double> weights, decays;
  for (int r = 0; r < c.terms; ++r) {
    weights.push_back(x.mixing.value(0, r));
    decays.push_back(x.mixing.value(1, r));
  }
  const double eps = static_cast<double>(c.eps) / 0.75;
  using Op = mhla::Operator<mhla::EluPlusOne, mhla::EluPlusOne, mhla::KeySum>;
  using Mixing = mhla::DecayMixing<double>;
  const mhla::Streaming<double, Op, Mixing> stream({.width = 64, .values = 64, .block_length = 5},
                                                   Mixing(weights, decays), {.normalizer = {eps}});
  for (int h = 0; h < c.heads; ++h) {
    auto state = stream.start();
    for (int t = 0; t < c.tokens; ++t) {
      mhla::Matrix<double> q(1, 64), k(1, 64), v(1, 64), o(1, 64);
      for (int d = 0; d < 64; ++d) {
        q(0, d) = x.q.value(0, t, h, d);
        k(0, d) = x.k.value(0, t, h, d);
        v(0, d) = x.v.value(0, t, h, d);
      }
      stream.append(state, {.q = q, .k = k, .v = v}, o);
      for (int d = 0; d < 64; ++d) x.o.at(0, t, h, d) = from_double<bfloat16>(o(0, d));
    }
  }
  expect_within_the_bound(x, "the CPU's stream");
}

/// Bytes that the second prefill of two moves, of the state and of summaries in the workspace.
void check_bytes(const StreamCase& c) {
  constexpr int D = 64, E = 64;
  Prefilled<bfloat16, D, E, kSingle> x(c, 0, Arch::kSm80);
  x.prefill(0, 2 * c.length);
  const mhla::cuda::Problem problem = problem_of(x, 0, 2 * c.length, c.tokens);
  const mhla::cuda::Device device{Arch::kSm80, 2};
  const mhla::cuda::Plan plan =
      mhla::cuda::prefill_plan<D, E>(problem, 2 * c.length, c.length, device);
  StreamingStepParameters tokens = x.parameters([](auto tensor) { return tensor; });
  tokens.q = problem.q, tokens.k = problem.k, tokens.v = problem.v, tokens.o = problem.o;
  const EmulatedStream stream(x.device);
  mhla::cuda::run_prefill<bfloat16, D, E>(plan, problem, tokens, 2 * c.length, x.workspace.data(),
                                          device, stream);
  ASSERT_EQ(stream.reports().size(), 5u);  // intra weights, three stages, rest
  std::uint64_t state = 0;
  for (const char* part : {"terms", "term key sums", "summaries", "key sums"}) {
    const auto& traffic = stream.reports()[2].traffic;
    if (traffic.count(part) > 0) state += traffic.at(part).read;
  }
  EXPECT_EQ(state, (mhla::cuda::detail::continued_bytes<D, E>(problem)));
  const mhla::cuda::Plan first = mhla::cuda::prefill_plan<D, E>(problem, 0, c.length, device);
  EXPECT_EQ(plan.traffic.total() - first.traffic.total(), state);
  EXPECT_EQ(plan.workspace_bytes, first.workspace_bytes);
}

TEST(EndlessStream, PrefillsReadTheStateThatThePlanCounts) {
  check_bytes(endless(3, 6, 42));
  check_bytes(endless(2, 6, 42, Denominator::kNone));
}

TEST(EndlessStream, StatesHaveNoRoomForBlocks) {
  const auto bytes = [](std::int64_t terms) {
    return streaming_state_layout(2, 2, 16, 64, 64, kSingle, terms).bytes;
  };
  EXPECT_EQ(bytes(3) - bytes(0), 2 * 3 * 4 * (64 * 64 + 64));
}

}  // namespace
}  // namespace cuda_test
