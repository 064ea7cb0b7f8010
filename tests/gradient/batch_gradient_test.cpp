#include "mhla/gradient/batch_gradient.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mhla/policy/learned_feature_map.hpp"
#include "support/message_of.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

using detail::PairGroups;
using detail::ParameterSizes;
using detail::ParameterSums;

/// A batch of which only the shape counts: sequences without tokens.
BatchInputs<float> shape_of(Index batch, Index heads) {
  const TensorView<const float> x(nullptr, {batch, 0, heads, 3}, {0, 0, 0, 1});
  return {.q = x, .k = x, .v = x};
}

/// Numbers whose float sums depend on the order; parameter j of a pair.
float number(Index pair, Index j) {
  Random rng(static_cast<std::uint64_t>(pair * 100 + j));
  return static_cast<float>(std::ldexp(rng.uniform(-1, 1), static_cast<int>(rng.integer(0, 12))));
}

/// The definition: consecutive pairs in up to 64 groups, sizes that differ by at most one with the
/// larger groups first, summed in the order of the pairs, then of the groups.
float sum_of_groups(Index pairs, Index j, float before) {
  if (pairs == 1) return before + number(0, j);
  const Index groups = std::min<Index>(pairs, 64);
  for (Index g = 0, pair = 0; g < groups; ++g) {
    float sum = 0;
    for (Index n = pairs / groups + (g < pairs % groups ? 1 : 0); n > 0; --n) {
      sum += number(pair++, j);
    }
    before += sum;
  }
  return before;
}

/// What is wanted of the sums of mixing, query map and key map.
struct Wanted {
  bool mixing = true, query_map = true, key_map = true;
};

constexpr ParameterSizes kSizes{.mixing = 37, .query_map = 5, .key_map = 18};
constexpr std::size_t kBytes = 100;   // of a pair that is one worker's
constexpr std::size_t kShared = 200;  // of a pair that is shared by all

/// Sums over a batch with an executor, on top of 0.5. Every pair is checked to be called once, with
/// memory that no other worker has.
template <class X>
std::vector<float> sums_of_batch(Index batch, Index heads, X& executor, const Wanted& wanted) {
  const BatchInputs<float> in = shape_of(batch, heads);
  const auto bytes = [](const Inputs<float>&, const auto& x) {
    return std::same_as<std::remove_cvref_t<decltype(x)>, Sequential> ? kBytes : kShared;
  };
  detail::Arena counting;
  PairGroups<float>("f", counting, in, kSizes, executor, bytes);
  GuardedWorkspace lent(counting.bytes());
  detail::Arena arena(lent.get().data());
  const PairGroups<float> groups("f", arena, in, kSizes, executor, bytes);

  std::vector<float> sums(static_cast<std::size_t>(kSizes.all()), 0.5f);
  float* const query_map = sums.data() + kSizes.mixing;
  float* const key_map = query_map + kSizes.query_map;
  std::vector<std::atomic<int>> calls(static_cast<std::size_t>(batch * heads));
  const auto run = [&](Index s, Index h, const ParameterSums<float>& own, Workspace share,
                       auto& x) {
    EXPECT_TRUE(s >= 0 && s < batch && h >= 0 && h < heads);
    const Index pair = s * heads + h;
    ++calls[static_cast<std::size_t>(pair)];
    constexpr bool kAlone = std::same_as<std::remove_cvref_t<decltype(x)>, Sequential>;
    EXPECT_EQ(share.size(), kAlone ? kBytes : kShared);
    for (std::byte& b : share) b = static_cast<std::byte>(pair);
    EXPECT_EQ(own.mixing != nullptr, wanted.mixing);
    EXPECT_EQ(own.query_map != nullptr, wanted.query_map);
    EXPECT_EQ(own.key_map != nullptr, wanted.key_map);
    Index j = 0;
    const auto add = [&](float* to, Index count) {
      for (Index i = 0; i < count; ++i, ++j) {
        if (to != nullptr) to[i] += number(pair, j);
      }
    };
    add(own.mixing, kSizes.mixing);
    add(own.query_map, kSizes.query_map);
    add(own.key_map, kSizes.key_map);
    for (const std::byte b : share) EXPECT_EQ(b, static_cast<std::byte>(pair));
  };
  groups.run({wanted.mixing ? sums.data() : nullptr, wanted.query_map ? query_map : nullptr,
              wanted.key_map ? key_map : nullptr},
             executor, run);
  for (const auto& times : calls) EXPECT_EQ(times.load(), 1);
  EXPECT_TRUE(lent.intact());
  return sums;
}

void expect_sums(const std::vector<float>& got, Index pairs, const Wanted& wanted) {
  for (Index j = 0; j < kSizes.all(); ++j) {
    const bool summed = j < kSizes.mixing                      ? wanted.mixing
                        : j < kSizes.mixing + kSizes.query_map ? wanted.query_map
                                                               : wanted.key_map;
    ASSERT_EQ(got[static_cast<std::size_t>(j)], summed ? sum_of_groups(pairs, j, 0.5f) : 0.5f)
        << j << " of " << pairs << " pairs";
  }
}

constexpr std::pair<Index, Index> kBatches[] = {{1, 1}, {1, 2},  {3, 1},  {2, 4}, {5, 3},
                                                {7, 9}, {16, 4}, {13, 5}, {9, 15}};

TEST(PairGroups, SumsAreThoseOfConsecutiveGroupsForAnyExecutor) {
  Sequential sequential;
  ThreadPool two(2), five(5), many(70);  // more workers than groups, than pairs
  for (const auto& [batch, heads] : kBatches) {
    SCOPED_TRACE(std::to_string(batch) + " sequences of " + std::to_string(heads) + " heads");
    expect_sums(sums_of_batch(batch, heads, sequential, {}), batch * heads, {});
    expect_sums(sums_of_batch(batch, heads, two, {}), batch * heads, {});
    expect_sums(sums_of_batch(batch, heads, five, {}), batch * heads, {});
    expect_sums(sums_of_batch(batch, heads, many, {}), batch * heads, {});
  }
}

TEST(PairGroups, WhatIsNotWantedIsNotTouched) {
  Sequential sequential;
  ThreadPool three(3);
  for (int which = 0; which < 8; ++which) {
    const Wanted wanted{(which & 1) != 0, (which & 2) != 0, (which & 4) != 0};
    expect_sums(sums_of_batch(1, 1, three, wanted), 1, wanted);
    expect_sums(sums_of_batch(5, 3, three, wanted), 15, wanted);
    expect_sums(sums_of_batch(10, 9, sequential, wanted), 90, wanted);
  }
}

TEST(PairGroups, ABatchOfNothingAddsNothing) {
  Sequential sequential;
  ThreadPool two(2);
  for (const auto& [batch, heads] : {std::pair<Index, Index>{0, 3}, {3, 0}, {0, 0}}) {
    for (const float sum : sums_of_batch(batch, heads, sequential, {})) EXPECT_EQ(sum, 0.5f);
    for (const float sum : sums_of_batch(batch, heads, two, {})) EXPECT_EQ(sum, 0.5f);
  }
}

/// Counts which pairs run alone and which with the whole pool.
TEST(PairGroups, GroupsAreSpreadWhereThereAreEnoughForAllWorkers) {
  const auto alone = [](Index pairs, Index workers) {
    ThreadPool pool(workers);
    const BatchInputs<float> in = shape_of(1, pairs);
    const auto bytes = [](const Inputs<float>&, const auto&) { return std::size_t{8}; };
    Memory memory(10000);
    const PairGroups<float> groups("f", memory.arena, in, {}, pool, bytes);
    std::atomic<Index> count{0};
    groups.run({}, pool, [&](Index, Index, const auto&, Workspace, auto& x) {
      count += std::same_as<std::remove_cvref_t<decltype(x)>, Sequential> ? 1 : 0;
    });
    return count.load();
  };
  EXPECT_EQ(alone(4, 4), 4);
  EXPECT_EQ(alone(4, 5), 0);
  EXPECT_EQ(alone(100, 64), 100);
  EXPECT_EQ(alone(100, 65), 0);  // 64 groups are not enough for 65 workers
}

TEST(PairGroups, WorkersThatRunTogetherHaveMemoryApart) {
  ThreadPool pool(2);
  const BatchInputs<float> in = shape_of(1, 2);
  const auto bytes = [](const Inputs<float>&, const auto&) { return std::size_t{100}; };
  Memory memory(10000);
  const PairGroups<float> groups("f", memory.arena, in, {}, pool, bytes);
  std::atomic<int> inside{0};
  std::byte* shares[2]{};
  groups.run({}, pool, [&](Index, Index h, const auto&, Workspace share, auto&) {
    shares[h] = share.data();
    for (++inside; inside.load() < 2;) std::this_thread::yield();  // until both workers are here
  });
  EXPECT_GE(std::abs(shares[0] - shares[1]), 100);
}

TEST(PairGroups, ShareIsTheMostThatASequenceNeeds) {
  std::vector<float> data(60);
  const Index offsets[] = {0, 2, 9, 10};
  const TensorView<const float> x = bnhd<const float>(data.data(), 1, 10, 2, 3);
  BatchInputs<float> in{.q = x, .k = x, .v = x};
  in.query_offsets = in.key_offsets = offsets;
  const auto bytes = [](const Inputs<float>& head, const auto&) {
    return static_cast<std::size_t>(100 * head.q.rows);
  };
  Memory memory(10000);
  Sequential executor;
  const PairGroups<float> groups("f", memory.arena, in, {}, executor, bytes);
  std::multiset<std::pair<Index, Index>> pairs;
  groups.run({}, executor, [&](Index s, Index h, const auto&, Workspace share, auto&) {
    EXPECT_EQ(share.size(), 700u);
    pairs.insert({s, h});
  });
  EXPECT_EQ(pairs, (std::multiset<std::pair<Index, Index>>{
                       {0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}}));
}

TEST(ParameterSizes, AreThoseOfTheStorageAndTheMaps) {
  const auto m = MixingMatrix<float>::banded(7, 9, 1, 2);
  Random rng(1);
  const Operator op{T2R<float>(rng.matrix<float>(3, 3)), Relu{}};
  const ParameterSizes sizes = detail::parameter_sizes(m, op);
  EXPECT_EQ(sizes.mixing, std::ssize(m.storage()));
  EXPECT_EQ(sizes.mixing, 7 * 4);
  EXPECT_EQ(sizes.query_map, 9);
  EXPECT_EQ(sizes.key_map, 0);
  EXPECT_EQ(sizes.all(), 7 * 4 + 9);
  const Operator swapped{Relu{}, T2R<float>(rng.matrix<float>(3, 3))};
  EXPECT_EQ(detail::parameter_sizes(m, swapped).query_map, 0);
  EXPECT_EQ(detail::parameter_sizes(m, swapped).key_map, 9);
}

/// A batch of 2 packed sequences with 2 heads: 3 and 2 queries, 1 and 6 keys.
struct Packed {
  std::vector<float> data = std::vector<float>(1000);
  Index query_offsets[3] = {0, 3, 5}, key_offsets[3] = {0, 1, 7};
  BatchInputs<float> in;
  TensorView<const float> dout = tensor(5, 4);
  BatchGradients<float> gradients;

  Packed() {
    in.q = in.normalizer_q = tensor(5, 3);
    in.k = in.normalizer_k = tensor(7, 3);
    in.v = tensor(7, 4);
    in.query_offsets = query_offsets;
    in.key_offsets = key_offsets;
    gradients = {.q = tensor(5, 3),
                 .k = tensor(7, 3),
                 .v = tensor(7, 4),
                 .normalizer_q = tensor(5, 3),
                 .normalizer_k = tensor(7, 3)};
  }
  TensorView<float> tensor(Index tokens, Index width) {
    return bnhd(data.data(), 1, tokens, 2, width);
  }
};

void expect_head(const MatrixView<float>& got, const TensorView<float>& of, Index h, Index begin,
                 Index count) {
  EXPECT_EQ(got.data, of.data + begin * of.strides[1] + h * of.strides[2]);
  EXPECT_EQ(got.rows, count);
  EXPECT_EQ(got.cols, of.width());
  EXPECT_EQ(got.row_stride, of.strides[1]);
  EXPECT_EQ(got.col_stride, of.strides[3]);
}

TEST(HeadGradients, AreTheTokensOfTheSequenceInEveryTensor) {
  Packed x;
  const BatchGradients<float>& g = x.gradients;
  for (Index s = 0; s < 2; ++s) {
    const Index q = x.query_offsets[s], nq = x.query_offsets[s + 1] - q;
    const Index k = x.key_offsets[s], nk = x.key_offsets[s + 1] - k;
    for (Index h = 0; h < 2; ++h) {
      const Gradients<float> head = detail::head_gradients(x.in, g, s, h);
      expect_head(head.q, g.q, h, q, nq);
      expect_head(head.k, g.k, h, k, nk);
      expect_head(head.v, g.v, h, k, nk);
      expect_head(head.normalizer_q, g.normalizer_q, h, q, nq);
      expect_head(head.normalizer_k, g.normalizer_k, h, k, nk);
    }
  }
  const Gradients<float> none = detail::head_gradients(x.in, BatchGradients<float>{}, 1, 1);
  EXPECT_TRUE(none.q.absent() && none.k.absent() && none.v.absent() && none.normalizer_q.absent() &&
              none.normalizer_k.absent());
}

TEST(CheckBatchGradient, NamesWhatDoesNotFit) {
  Packed x;
  const auto check = [&](const TensorView<const float>& dout, const BatchGradients<float>& g) {
    return message_of<shape_error>(
        [&] { detail::check_batch_gradient("f", x.in, dout, g, [](const auto&...) {}); });
  };
  EXPECT_EQ(check(x.dout, x.gradients), "no exception");
  EXPECT_EQ(check(x.dout, {}), "no exception");
  EXPECT_EQ(check(x.tensor(4, 4), x.gradients),
            "mhla::f: dout has shape [1, 4, 2, 4], expected [1, 5, 2, any]");
  const auto wrong = [&](TensorView<float> BatchGradients<float>::*tensor, Index tokens) {
    BatchGradients<float> g = x.gradients;
    g.*tensor = x.tensor(tokens, 3);
    return check(x.dout, g);
  };
  EXPECT_EQ(wrong(&BatchGradients<float>::q, 7),
            "mhla::f: gradients.q has shape [1, 7, 2, 3], expected [1, 5, 2, any]");
  EXPECT_EQ(wrong(&BatchGradients<float>::k, 5),
            "mhla::f: gradients.k has shape [1, 5, 2, 3], expected [1, 7, 2, any]");
  EXPECT_EQ(wrong(&BatchGradients<float>::v, 5),
            "mhla::f: gradients.v has shape [1, 5, 2, 3], expected [1, 7, 2, any]");
  EXPECT_EQ(wrong(&BatchGradients<float>::normalizer_q, 7),
            "mhla::f: gradients.normalizer_q has shape [1, 7, 2, 3], expected [1, 5, 2, any]");
  EXPECT_EQ(wrong(&BatchGradients<float>::normalizer_k, 5),
            "mhla::f: gradients.normalizer_k has shape [1, 5, 2, 3], expected [1, 7, 2, any]");
}

TEST(CheckBatchGradient, EverySequenceIsChecked) {
  Packed x;
  std::vector<std::pair<Index, Index>> rows;  // of queries and keys
  detail::check_batch_gradient("f", x.in, x.dout, x.gradients,
                               [&](const Inputs<float>& head, const MatrixView<const float>& dout,
                                   const Gradients<float>& g) {
                                 rows.emplace_back(head.q.rows, head.k.rows);
                                 EXPECT_EQ(dout.rows, head.q.rows);
                                 EXPECT_EQ(g.q.rows, head.q.rows);
                                 EXPECT_EQ(g.v.rows, head.k.rows);
                               });
  EXPECT_EQ(rows, (std::vector<std::pair<Index, Index>>{{3, 1}, {2, 6}}));
}

}  // namespace
}  // namespace mhla::test
