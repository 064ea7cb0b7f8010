// Order of work while the summaries of a head are sent.

#include "mhla/distributed/rank_steps.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/distributed/bidirectional.hpp"
#include "mhla/distributed/causal.hpp"
#include "mhla/distributed/thread_ranks.hpp"
#include "mhla/policy/locality.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

using distributed::PeerRows;
using distributed::SharedRows;
using distributed::ThreadRank;

/// Actions of a rank, one letter each: s a transfer starts, w a wait, p a poll, e the end of a
/// piece of work, k mapped keys, q mapped queries.
thread_local std::string noted;

/// Rows arrive only in wait(), so that a read before it misses them.
struct Logged {
  distributed::detail::ThreadTransfer transfer;

  bool done() {
    noted += 'p';
    return false;
  }
  void wait() {
    noted += 'w';
    transfer.wait();
  }
};

class LoggedRank : public ThreadRank {
 public:
  explicit LoggedRank(const ThreadRank& rank) : ThreadRank(rank) {}

  Logged all_gather(std::span<const SharedRows> arrays, std::span<const Index> first) {
    noted += 's';
    return {ThreadRank::all_gather(arrays, first)};
  }
  Logged exchange(std::span<const SharedRows> arrays, std::span<const PeerRows> sends,
                  std::span<const PeerRows> receives) {
    noted += 's';
    return {ThreadRank::exchange(arrays, sends, receives)};
  }
};
static_assert(distributed::Communicator<LoggedRank>);

struct LoggedExecutor {
  Index workers() const { return 1; }
  template <class F>
  void for_each(Index count, F&& f) const {
    Sequential().for_each(count, [&](Index i, Index w) {
      f(i, w);
      noted += 'e';
    });
  }
};

template <char letter>
struct LoggedMap : Relu {
  template <class T>
  void operator()(const T* x, T* y, Index width) const {
    noted += letter;
    Relu::operator()(x, y, width);
  }
};
using LoggedOperator = Operator<LoggedMap<'q'>, LoggedMap<'k'>>;

constexpr Index kBlocks = 300, kWidth = 36, kValues = 24, kHeads = 2;

/// Log of rank `rank` of two, for a call of `form` with this number of heads of kBlocks blocks.
template <class Form>
std::string log_of(Index rank, Index heads, const Form& form) {
  std::string result;
  const MixingMatrix<float> mixing = locality<float>(kBlocks);
  distributed::run_ranks(2, [&](ThreadRank& thread) {
    LoggedRank logged(thread);
    Tensor<float> q({1, kBlocks / 2, heads, kWidth}), v({1, kBlocks / 2, heads, kValues}), out = v;
    Random rng(3);
    for (Tensor<float>* t : {&q, &v, &out}) {  // out is the gradient of backward forms
      for (float& x : t->data()) x = static_cast<float>(rng.uniform());
    }
    noted.clear();
    form(logged, inputs(q, q, v), mixing, out.view());
    if (logged.rank() == rank) result = noted;
  });
  return result;
}
/// Outputs of two ranks where rows arrive late, equal to the outputs of one rank.
template <class Form>
std::vector<float> outputs_of(Index ranks, const Form& form) {
  std::vector<float> result(static_cast<std::size_t>(kBlocks * kValues));
  const MixingMatrix<float> mixing = locality<float>(kBlocks);
  distributed::run_ranks(ranks, [&](ThreadRank& thread) {
    LoggedRank logged(thread);
    const Index count = kBlocks / ranks, first = logged.rank() * count;
    Tensor<float> q({1, count, 1, kWidth}), v({1, count, 1, kValues}), out = v;
    const auto fill = [&](Tensor<float>& t, Index width) {
      for (Index i = 0; i < count * width; ++i) {
        t.data()[static_cast<std::size_t>(i)] = static_cast<float>((first * width + i) % 97) / 97;
      }
    };
    fill(q, kWidth);
    fill(v, kValues);
    form(logged, inputs(q, q, v), mixing, out.view());
    std::ranges::copy(out.data(), result.begin() + first * kValues);
  });
  return result;
}
const auto both = [](auto& rank, const auto& in, const auto& mixing, auto out) {
  LoggedExecutor executor;
  distributed::bidirectional(rank, in, ContiguousBlocks{1}, mixing, LoggedOperator{}, out,
                             {.executor = executor});
};
const auto causal_form = [](auto& rank, const auto& in, const auto& mixing, auto out) {
  LoggedExecutor executor;
  distributed::causal(rank, in, ContiguousBlocks{1}, mixing, LoggedOperator{}, out,
                      {.executor = executor});
};

const auto causal_gradient_form = [](auto& rank, const auto& in, const auto& mixing, auto out) {
  LoggedExecutor executor;
  Tensor<float> dv(out.shape);
  distributed::causal_gradient(rank, in, ContiguousBlocks{1}, mixing, LoggedOperator{}, out,
                               {.v = dv.view()}, {}, {.executor = executor});
};
const auto both_gradient = [](auto& rank, const auto& in, const auto& mixing, auto out) {
  LoggedExecutor executor;
  Tensor<float> dv(out.shape);
  distributed::bidirectional_gradient(rank, in, ContiguousBlocks{1}, mixing, LoggedOperator{}, out,
                                      {.v = dv.view()}, {}, {.executor = executor});
};

/// Removes the letters `of` from `text`, and reduces each run of a letter to one.
std::string condensed(const std::string& text, const std::string& of) {
  std::string result;
  for (const char c : text) {
    if (of.find(c) == std::string::npos && !result.ends_with(c)) result += c;
  }
  return result;
}

TEST(RankSteps, PartsOfAHeadAreSentWhileTheNextAreSummarised) {
  for (const auto& log : {log_of(0, 1, both), log_of(1, 1, both), log_of(0, 1, causal_form)}) {
    EXPECT_TRUE(condensed(log, "peq").starts_with("ksks")) << condensed(log, "pe");
    // All blocks of the first of two parts are complete before it starts; ranks compare the map of
    // one more row.
    EXPECT_EQ(
        std::count(log.begin(), log.begin() + static_cast<std::ptrdiff_t>(log.find('s')), 'k'),
        1 + kBlocks / 4);
  }
}

TEST(RankSteps, PartsOfGradientsAreSentWhileTheNextQueriesAreRead) {
  for (const auto& log : {log_of(0, 1, both_gradient), log_of(1, 1, both_gradient),
                          log_of(1, 1, causal_gradient_form)}) {
    const std::string read = condensed(log, "pewk");
    // Ranks compare the map; summaries; two parts of gradients.
    EXPECT_TRUE(read.starts_with("qsqsqs")) << read;
  }
}

TEST(RankSteps, SlabsOfAHeadAreMixedWhileTheNextArrive) {
  for (const auto& log : {log_of(0, 1, both), log_of(1, 1, both), log_of(1, 1, causal_form)}) {
    std::string read = log.substr(log.rfind('s') + 1);
    read = read.substr(0, read.find('q'));  // before the first block is read out
    std::erase_if(read, [](char c) { return c != 'w' && c != 'e'; });
    // Expected order: the first part and a slab of the second; the other slab; all, with the key
    // sums.
    const std::regex slabs("e?wwewwew+");
    EXPECT_TRUE(std::regex_match(read, slabs)) << read;
  }
}

TEST(RankSteps, NothingIsReadBeforeItIsThere) {
  EXPECT_EQ(outputs_of(2, both), outputs_of(1, both));
  EXPECT_EQ(outputs_of(2, causal_form), outputs_of(1, causal_form));
}

TEST(RankSteps, ARankThatReceivesNothingReadsAtOnce) {
  const std::string log = log_of(0, 1, causal_form);
  const std::string read = condensed(log.substr(log.rfind('s')), "pek");
  EXPECT_EQ(read, "sqw");
}

// Two heads, so that summaries of the second are sent while the first is read.
TEST(RankSteps, TransfersGoOnBetweenTheBlocksOfAGroup) {
  const std::string log = log_of(1, kHeads, both);
  const std::string read = condensed(log.substr(log.find('q'), log.rfind('q')), "sewk");
  EXPECT_GE(std::ranges::count(read, 'q'), kHeads * kBlocks / 2 - 1) << read;
}

}  // namespace
}  // namespace mhla::test
