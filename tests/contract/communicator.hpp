#pragma once

/// \file
/// The laws of a Communicator, for checks of the library's and of users' communicators.
/// Ranks::run(f, timeout) calls f(rank) on all ranks, for several numbers of ranks or for the
/// number of the program. A transport that cannot name the rank of an error sets
/// Ranks::kNamesNobody.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/distributed/communicator.hpp"
#include "support/message_of.hpp"
#include "support/rank_arrays.hpp"

namespace mhla::test {

using distributed::Communicator;
using distributed::PeerRows;

template <class Ranks>
class CommunicatorContract : public testing::Test {};
TYPED_TEST_SUITE_P(CommunicatorContract);

TYPED_TEST_P(CommunicatorContract, RecordsOfAllRanksArrive) {
  TypeParam::run([]<Communicator C>(C& rank) {
    EXPECT_GE(rank.rank(), 0);
    EXPECT_LT(rank.rank(), rank.size());
    const auto ranks = static_cast<std::size_t>(rank.size());
    for (const std::size_t bytes : std::initializer_list<std::size_t>{1, 200, 100'000, 0, 8}) {
      RankArrays records({&bytes, 1}, rank.size(), bytes);
      RankArrays rows({&bytes, 1}, rank.size(), bytes);
      rows.fill(rank.rank(), rank.rank() + 1);
      const std::byte* record =
          rows.shared()[0].data + static_cast<std::size_t>(rank.rank()) * bytes;
      rank.agree({record, bytes}, {records.shared()[0].data, ranks * bytes});
      EXPECT_EQ(records.wrong(0, rank.size()), 0) << bytes << " bytes";
    }
  });
}

TYPED_TEST_P(CommunicatorContract, RowsOfUnevenAndEmptySharesArrive) {
  TypeParam::run([](Communicator auto& rank) {
    const std::size_t row_bytes[] = {24, 1, 0, 4096};
    for (Index round = 0; round < 3; ++round) {
      const auto first = firsts(rank.size(), [&](Index r) { return (r + round) % 3 * (r + 1); });
      RankArrays arrays(row_bytes, first.back(), static_cast<std::size_t>(round));
      const auto r = static_cast<std::size_t>(rank.rank());
      arrays.fill(first[r], first[r + 1]);
      rank.all_gather(arrays.shared(), first).wait();
      EXPECT_EQ(arrays.wrong(0, first.back()), 0);
    }
  });
}

// Two rows per rank: the first goes up, the second down, and each rank receives nothing else.
TYPED_TEST_P(CommunicatorContract, RowsGoToTheRanksThatAreNamedAndToNoOthers) {
  TypeParam::run([](Communicator auto& rank) {
    const std::size_t row_bytes[] = {16, 1000};
    RankArrays arrays(row_bytes, 2 * rank.size());
    const Index r = rank.rank();
    arrays.fill(2 * r, 2 * r + 2);
    std::vector<PeerRows> sends, receives;
    const bool above = r + 1 < rank.size(), below = r > 0;
    if (above) sends.push_back({r + 1, 2 * r, 2 * r + 1});
    if (below) sends.push_back({r - 1, 2 * r + 1, 2 * r + 2});
    if (below) receives.push_back({r - 1, 2 * r - 2, 2 * r - 1});
    if (above) receives.push_back({r + 1, 2 * r + 3, 2 * r + 4});
    rank.exchange(arrays.shared(), sends, receives).wait();
    for (Index row = 0; row < 2 * rank.size(); ++row) {
      const bool here = row == 2 * r - 2 || row == 2 * r + 3 || row / 2 == r;
      EXPECT_EQ(here ? arrays.wrong(row, row + 1) : arrays.written(row, row + 1), 0) << row;
    }
  });
}

// More than one message of any transport, cut in the middle of an array and of a row.
TYPED_TEST_P(CommunicatorContract, LongRowsArriveWhole) {
  TypeParam::run([](Communicator auto& rank) {
    const Index last = rank.size() - 1;
    if (last == 0) return;
    const bool sends = rank.rank() == 0, receives = rank.rank() == last;
    const std::size_t row_bytes[] = {5'000'001, 17, 8'000'000};
    const Index rows = 3;
    for (const std::size_t padding : std::initializer_list<std::size_t>{0, 3}) {
      RankArrays arrays(row_bytes, sends || receives ? rows : 0, 0, padding);
      if (sends) arrays.fill(0, rows);
      const PeerRows to{last, 0, rows}, from{0, 0, rows};
      rank.exchange(arrays.shared(), {&to, sends ? 1U : 0U}, {&from, receives ? 1U : 0U}).wait();
      if (receives) {
        EXPECT_EQ(arrays.wrong(0, rows), 0);
      }
    }
  });
}

TYPED_TEST_P(CommunicatorContract, LaterTransfersMayBeFinishedFirst) {
  TypeParam::run([](Communicator auto& rank) {
    const std::size_t row_bytes[] = {100'000, 3};
    const auto r = static_cast<std::size_t>(rank.rank());
    const auto first = firsts(rank.size(), [](Index) { return 2; });
    std::vector<RankArrays> arrays;
    for (std::size_t t = 0; t < 4; ++t) {
      arrays.emplace_back(row_bytes, first.back(), t).fill(first[r], first[r + 1]);
    }
    auto zeroth = rank.all_gather(arrays[0].shared(), first);
    {
      auto ended_by_its_destructor = rank.all_gather(arrays[1].shared(), first);
      auto moved = std::move(ended_by_its_destructor);
    }
    EXPECT_EQ(arrays[1].wrong(0, first.back()), 0);
    auto second = rank.all_gather(arrays[2].shared(), first);
    auto third = rank.all_gather(arrays[3].shared(), first);
    third.wait();
    EXPECT_EQ(arrays[3].wrong(0, first.back()), 0);
    while (!second.done()) {
    }
    EXPECT_EQ(arrays[2].wrong(0, first.back()), 0);
    zeroth.wait();
    zeroth.wait();
    EXPECT_TRUE(zeroth.done());
    EXPECT_EQ(arrays[0].wrong(0, first.back()), 0);
  });
}

// Shares, arrays, senders, receivers and waits are random but equal on all ranks.
TYPED_TEST_P(CommunicatorContract, RandomRoundsArrive) {
  TypeParam::run([](Communicator auto& rank) {
    struct Flight {
      RankArrays arrays;
      std::vector<std::pair<Index, Index>> come;
      std::optional<decltype(rank.exchange({}, {}, {}))> transfer{};
    };
    std::mt19937 random(5);
    const auto draw = [&](Index below) {
      return static_cast<Index>(random() % static_cast<std::uint32_t>(below));
    };
    const auto r = static_cast<std::size_t>(rank.rank());
    std::vector<Flight> under_way;
    for (std::size_t round = 0; round < 60; ++round) {
      std::vector<std::size_t> row_bytes(static_cast<std::size_t>(draw(4)));
      for (auto& bytes : row_bytes) bytes = static_cast<std::size_t>(draw(5) ? draw(90) : 9000);
      const auto first = firsts(rank.size(), [&](Index) { return draw(3) * draw(4); });
      const auto padding = static_cast<std::size_t>(draw(2) * draw(70));
      Flight flight{{row_bytes, first.back(), round, padding}, {{first[r], first[r + 1]}}};
      flight.arrays.fill(first[r], first[r + 1]);
      if (draw(2)) {
        flight.transfer = rank.all_gather(flight.arrays.shared(), first);
        flight.come = {{0, first.back()}};
      } else {
        std::vector<PeerRows> sends, receives;
        for (Index message = draw(20); message > 0; --message) {
          const Index from = draw(rank.size()), to = draw(rank.size());
          const auto f = static_cast<std::size_t>(from);
          const Index begin = first[f] + draw(first[f + 1] - first[f] + 1);
          const Index end = begin + draw(first[f + 1] - begin + 1);
          if (from == to) continue;
          if (from == rank.rank()) sends.push_back({to, begin, end});
          if (to == rank.rank()) receives.push_back({from, begin, end});
          if (to == rank.rank()) flight.come.push_back({begin, end});
        }
        flight.transfer = rank.exchange(flight.arrays.shared(), sends, receives);
      }
      under_way.push_back(std::move(flight));
      while (std::ssize(under_way) > draw(4)) {
        const auto at = under_way.begin() + draw(std::ssize(under_way));
        at->transfer->wait();
        for (const auto& [begin, end] : at->come) EXPECT_EQ(at->arrays.wrong(begin, end), 0);
        under_way.erase(at);
      }
    }
  });
}

template <class Ranks>
inline constexpr bool kNamesRanks = !requires {
  Ranks::kNamesNobody;
};

/// Expects that a rank refuses all calls immediately.
void expect_refusal(Communicator auto& rank) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::byte> record(1), records(static_cast<std::size_t>(rank.size()));
  EXPECT_THROW(rank.agree(record, records), communication_error);
  const std::vector<Index> first(records.size() + 1);
  EXPECT_THROW(rank.all_gather({}, first), communication_error);
  EXPECT_THROW(rank.exchange({}, {}, {}), communication_error);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), rank.timeout());
}

/// Expects that `call` names the last rank, which does not make it, and that other ranks refuse all
/// calls afterwards.
template <class Ranks>
void expect_missing_rank_is_named(auto&& call) {
  Ranks::run(
      [&](Communicator auto& rank) {
        const Index last = rank.size() - 1;
        std::vector<std::byte> records(static_cast<std::size_t>(rank.size()));
        const std::byte record{1};
        rank.agree({&record, 1}, records);
        if (rank.rank() == last) return;
        const std::string said = message_of<communication_error>([&] {
          call(rank, SharedRows{records.data(), 1});
        });
        const std::string name = kNamesRanks<Ranks> ? " from rank " + std::to_string(last) : "";
        EXPECT_TRUE(said.ends_with(" s" + name)) << said;
        expect_refusal(rank);
      },
      Ranks::kImpatience);
}

TYPED_TEST_P(CommunicatorContract, ARankThatDoesNotAgreeIsNamed) {
  expect_missing_rank_is_named<TypeParam>([](auto& rank, const SharedRows& rows) {
    const std::byte record{1};
    rank.agree({&record, 1}, {rows.data, static_cast<std::size_t>(rank.size())});
  });
}

TYPED_TEST_P(CommunicatorContract, ARankThatDoesNotGatherIsNamed) {
  expect_missing_rank_is_named<TypeParam>([](auto& rank, const SharedRows& rows) {
    rank.all_gather({&rows, 1}, firsts(rank.size(), [](Index) { return 1; })).wait();
  });
}

TYPED_TEST_P(CommunicatorContract, ARankThatDoesNotSendIsNamed) {
  expect_missing_rank_is_named<TypeParam>([](auto& rank, const SharedRows& rows) {
    const PeerRows from{rank.size() - 1, 0, 1};
    rank.exchange({&rows, 1}, {}, {&from, 1}).wait();
  });
}

TYPED_TEST_P(CommunicatorContract, RowsThatAreNotSentAsTheyAreReceivedAreAnError) {
  for (const Index sent : {2, 4, 0}) {
    TypeParam::run(
        [&](Communicator auto& rank) {
          const Index last = rank.size() - 1;
          if (last == 0) return;
          std::vector<std::byte> data(4);
          const SharedRows rows{data.data(), 1};
          const PeerRows to{0, 0, sent}, from{last, 0, 3};
          const bool sends = rank.rank() == last && sent > 0, receives = rank.rank() == 0;
          const std::string said = message_of<communication_error>([&] {
            rank.exchange({&rows, 1}, {&to, sends ? 1U : 0U}, {&from, receives ? 1U : 0U}).wait();
          });
          if (!receives) return;
          EXPECT_TRUE(said.starts_with("mhla::distributed: ")) << said;
          if (kNamesRanks<TypeParam>) {
            EXPECT_NE(said.find("rank " + std::to_string(last)), std::string::npos) << said;
          }
          expect_refusal(rank);
        },
        TypeParam::kImpatience);
  }
}

REGISTER_TYPED_TEST_SUITE_P(CommunicatorContract, RecordsOfAllRanksArrive,
                            RowsOfUnevenAndEmptySharesArrive,
                            RowsGoToTheRanksThatAreNamedAndToNoOthers, LongRowsArriveWhole,
                            LaterTransfersMayBeFinishedFirst, RandomRoundsArrive,
                            ARankThatDoesNotAgreeIsNamed, ARankThatDoesNotGatherIsNamed,
                            ARankThatDoesNotSendIsNamed,
                            RowsThatAreNotSentAsTheyAreReceivedAreAnError);

}  // namespace mhla::test
