// Ranks that are simulated GPUs keep the laws of communicators.

#include <gtest/gtest.h>

#include <barrier>
#include <cstddef>
#include <span>
#include <utility>

#include "contract/communicator.hpp"
#include "mhla/distributed/nccl.hpp"
#include "support/nccl/gpus.hpp"
#include "support/nccl/stand_in.hpp"

namespace mhla::test {
namespace {

using distributed::NcclRank;

/// A transfer that makes the host wait for its stream, as a reader of its rows on the host does.
class AwaitedTransfer {
 public:
  AwaitedTransfer(NcclRank& rank, distributed::detail::NcclTransfer transfer)
      : rank_(&rank), transfer_(std::move(transfer)) {}
  AwaitedTransfer(AwaitedTransfer&& other) noexcept
      : rank_(std::exchange(other.rank_, nullptr)), transfer_(std::move(other.transfer_)) {}
  AwaitedTransfer& operator=(AwaitedTransfer&& other) noexcept {
    std::swap(rank_, other.rank_);
    std::swap(transfer_, other.transfer_);
    return *this;
  }
  ~AwaitedTransfer() {
    try {
      if (rank_ != nullptr) wait();
    } catch (const communication_error&) {
    }
  }

  bool done() { return transfer_.done(); }
  void wait() {
    transfer_.wait();
    rank_->synchronize();
  }

 private:
  NcclRank* rank_;
  distributed::detail::NcclTransfer transfer_;
};

class AwaitedRank {
 public:
  explicit AwaitedRank(NcclRank& rank) : rank_(&rank) {}

  Index rank() const { return rank_->rank(); }
  Index size() const { return rank_->size(); }
  double timeout() const { return rank_->timeout(); }
  void agree(std::span<const std::byte> record, std::span<std::byte> records) {
    rank_->agree(record, records);
  }
  AwaitedTransfer all_gather(std::span<const SharedRows> arrays, std::span<const Index> first) {
    return {*rank_, rank_->all_gather(arrays, first)};
  }
  AwaitedTransfer exchange(std::span<const SharedRows> arrays, std::span<const PeerRows> sends,
                           std::span<const PeerRows> receives) {
    return {*rank_, rank_->exchange(arrays, sends, receives)};
  }

 private:
  NcclRank* rank_;
};

struct NcclRanks {
  static constexpr bool kNamesNobody = true;
  static constexpr double kImpatience = 0.5;

  static void run(auto&& f, double timeout = 60) {
    stand_in::take_arrays_of_the_host(true);
    for (const int ranks : {1, 2, 3, 7}) {
      std::barrier made(ranks);  // a breach ends all ranks, even while they are created
      run_gpus(
          ranks,
          [&](Gpu& gpu) {
            made.arrive_and_wait();
            AwaitedRank rank(gpu.rank);
            f(rank);
          },
          timeout);
      const auto breaches = stand_in::breaches();
      if (timeout > kImpatience) {
        EXPECT_EQ(breaches, decltype(breaches)());
      }
      if (testing::Test::HasFailure()) FAIL() << "with " << ranks << " ranks";
    }
    stand_in::take_arrays_of_the_host(false);
  }
};

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Nccl, CommunicatorContract, NcclRanks);

}  // namespace mhla::test
