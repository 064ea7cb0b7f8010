#include "mhla/distributed/plan.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "mhla/distributed/bidirectional.hpp"
#include "mhla/distributed/causal.hpp"
#include "mhla/distributed/thread_ranks.hpp"
#include "support/counted_rank.hpp"
#include "support/gradient_forms.hpp"
#include "support/gradient_random.hpp"
#include "support/message_of.hpp"
#include "support/rank_problem.hpp"

namespace mhla::test {
namespace {

using distributed::even_split;
using distributed::HeadWidths;
using distributed::Plan;
using distributed::ThreadRank;

static_assert(distributed::Communicator<CountedRank<ThreadRank>>);

template <bool causal>
void expect_planned_bytes() {
  using Form = std::conditional_t<causal, CausalForm, BidirectionalForm>;
  for_problems<float>(Form(), 60, [&](const GradientProblem<float>& p) {
    for (const Index ranks : {1, 2, 5}) {
      const auto [queries, keys] = RankProblem<float>::splits(p, ranks);
      distributed::run_ranks(ranks, [&, queries = queries, keys = keys](ThreadRank& thread) {
        CountedRank comm(thread);
        const RankProblem<float> rank(p, comm.rank(), ranks);
        const auto in = rank.local.inputs();
        Matrix<float> out(rank.local.queries(), p.tensors[kV].cols());
        const auto sizes = detail::head_sizes(in, p.op);
        const HeadWidths head{.features = sizes.features,
                              .values = sizes.values,
                              .sums = sizes.sums,
                              .normalizer_features = sizes.normalizer_features,
                              .block_length = largest_block(p.blocks.queries)};
        Plan plan{};
        if constexpr (causal) {
          distributed::causal(comm, in, rank.local.blocks.queries, p.mixing(), p.op, out);
          plan = distributed::causal_plan<float>(p.pattern, queries, comm.rank(), head);
        } else {
          distributed::bidirectional(comm, in, rank.local.blocks, p.mixing(), p.op, out);
          plan =
              distributed::bidirectional_plan<float>(p.pattern, queries, keys, comm.rank(), head);
        }
        EXPECT_EQ(comm.sent, plan.bytes_sent(1)) << p.text();
        EXPECT_EQ(comm.received, plan.bytes_received(1)) << p.text();
        EXPECT_EQ(comm.gathers, plan.to_all) << p.text();
      });
    }
  });
}

TEST(Plan, TellsTheBytesThatBidirectionalMoves) { expect_planned_bytes<false>(); }
TEST(Plan, TellsTheBytesThatCausalMoves) { expect_planned_bytes<true>(); }

TEST(Plan, ABandMovesWhatTheNeighboursNeed) {
  const auto blocks = even_split(64, 4);
  const HeadWidths head{.features = 8, .values = 8};
  const Pattern band(64, 64, 2, 2), dense(64, 64);
  const auto plan_of = [&](const Pattern& m, Index rank) {
    return distributed::bidirectional_plan<float>(m, blocks, blocks, rank, head);
  };
  EXPECT_EQ(plan_of(band, 0).received, 2);
  EXPECT_EQ(plan_of(band, 1).received, 4);
  EXPECT_EQ(plan_of(band, 1).sent, 4);
  EXPECT_FALSE(plan_of(band, 1).to_all);
  EXPECT_EQ(plan_of(dense, 1).received, 48);
  EXPECT_TRUE(plan_of(dense, 1).to_all);
  EXPECT_EQ(distributed::causal_plan<float>(dense, blocks, 0, head).received, 0);
  EXPECT_EQ(distributed::causal_plan<float>(dense, blocks, 0, head).sent, 48);
  EXPECT_EQ(distributed::causal_plan<float>(dense, blocks, 0, head).gradients_received, 48);
  EXPECT_EQ(distributed::causal_plan<float>(dense, blocks, 3, head).received, 48);
}

TEST(Plan, RefusesSplitsThatDoNotFit) {
  const std::vector<Index> three{0, 1, 2, 4}, two{0, 2, 4};
  const HeadWidths head{.features = 8, .values = 8};
  const auto plan = [&](const Pattern& m, const std::vector<Index>& queries,
                        const std::vector<Index>& keys, Index rank) {
    return message_of<shape_error>(
        [&] { distributed::bidirectional_plan<float>(m, queries, keys, rank, head); });
  };
  const std::string name = "mhla::distributed::bidirectional_plan: ";
  EXPECT_EQ(plan(Pattern(4, 4), three, two, 0),
            name +
                "queries has borders for 3 ranks, and rank is 0, expected as many ranks as keys, "
                "2, and one of them");
  for (const Index rank : {-1, 2}) {
    EXPECT_EQ(plan(Pattern(4, 4), two, two, rank),
              name + "queries has borders for 2 ranks, and rank is " + std::to_string(rank) +
                  ", expected as many ranks as keys, 2, and one of them");
  }
  EXPECT_EQ(plan(Pattern(4, 4), {0}, {0}, 0),
            name +
                "queries has borders for 0 ranks, and rank is 0, expected as many ranks as keys, "
                "0, and one of them");
  EXPECT_EQ(plan(Pattern(4, 4), two, {0, 5, 4}, 0),
            name +
                "queries or keys have borders out of order, expected borders that begin with 0 and "
                "ascend");
  for (const auto& [rows, cols] : {std::pair<Index, Index>{3, 4}, {4, 3}}) {
    EXPECT_EQ(
        plan(Pattern(rows, cols), two, two, 0),
        name + "pattern is " + detail::shape_text({rows, cols}) + ", expected at least [4, 4]");
  }
  EXPECT_EQ(message_of<shape_error>(
                [&] { distributed::causal_plan<float>(Pattern(3, 3), two, 0, head); }),
            "mhla::distributed::causal_plan: pattern is [3, 3], expected at least [4, 4]");
  for (const std::vector<Index>& none :
       {std::vector<Index>{0, 5, 3, 8}, {2, 4, 8, 8}, {0, 20, 8, 8}, {0, 4, 8, 7}}) {
    EXPECT_EQ(message_of<shape_error>(
                  [&] { distributed::causal_plan<float>(Pattern(8, 8), none, 0, head); }),
              "mhla::distributed::causal_plan: queries or keys have borders out of order, expected "
              "borders that begin with 0 and ascend");
  }
  EXPECT_EQ(message_of<option_error>([] { even_split(3, 0); }),
            "mhla::distributed::even_split: blocks is 3 over 0 ranks, expected at least 0 over at "
            "least 1");
  EXPECT_EQ(message_of<option_error>([] { even_split(-1, 3); }),
            "mhla::distributed::even_split: blocks is -1 over 3 ranks, expected at least 0 over at "
            "least 1");
}

}  // namespace
}  // namespace mhla::test
