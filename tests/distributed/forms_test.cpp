#include <algorithm>
#include <string>
#include <vector>

#include "contract/ranks.hpp"
#include "mhla/distributed/bidirectional.hpp"
#include "mhla/distributed/causal.hpp"
#include "support/thread_ranks.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Threads, RanksContract, ThreadRanks);

namespace {

/// A rank built with another version of the library.
class OtherVersion : public distributed::ThreadRank {
 public:
  explicit OtherVersion(const ThreadRank& rank) : ThreadRank(rank) {}

  void agree(std::span<const std::byte> record, std::span<std::byte> records) {
    std::vector<std::byte> other(record.begin(), record.end());
    const std::string version = kVersion, later = "9.9.9";
    const auto bytes = std::as_bytes(std::span(version));
    const auto at = std::search(other.begin(), other.end(), bytes.begin(), bytes.end());
    if (at != other.end()) std::ranges::copy(std::as_bytes(std::span(later)), at);
    ThreadRank::agree(other, records);
  }
};

TEST(ThreadRanks, AnotherVersionIsAnErrorOnAll) {
  const auto p = complete_problem<float>(BidirectionalForm());
  distributed::run_ranks(3, [&](distributed::ThreadRank& rank) {
    Matrix<float> out(p.queries(), p.tensors[kV].cols());
    const std::string message = message_of<option_error>([&] {
      if (rank.rank() == 2) {
        OtherVersion other(rank);
        distributed::bidirectional(other, p.inputs(), p.blocks, p.mixing(), p.op, out);
      } else {
        distributed::bidirectional(rank, p.inputs(), p.blocks, p.mixing(), p.op, out);
      }
    });
    EXPECT_EQ(message,
              std::string("mhla::distributed::bidirectional: ranks have version 9.9.9 for ") +
                  kInstructionSet + " on rank 2, expected " + kVersion + " for " + kInstructionSet +
                  " as on rank 0");
  });
}

TEST(ThreadRanks, OutputsOfAStreamWithElementsThatAreOneAreRefusedOnAll) {
  distributed::run_ranks(2, [&](distributed::ThreadRank& rank) {
    const Tensor<float> x({2, 1, 1, 4});
    Tensor<float> memory({2, 1, 2, 4});
    const Tensor<float> before = memory;
    const TensorView<float> out(memory.data().data(), memory.shape(), {0, 8, 4, 1});
    const Streaming<float> stream({.width = 4, .values = 4, .block_length = 4}, locality<float>(2));
    std::vector<StreamingState<float>> states(2, stream.start());
    const std::vector<Index> heads{0, 1, 2};
    const std::string message = message_of<option_error>([&] {
      distributed::append_heads(rank, std::span<const Index>(heads), stream, std::span(states),
                                inputs(x, x, x), out);
    });
    EXPECT_NE(message.find("distributed::append_heads: out has strides [0, 8, 4, 1], and elements "
                           "that overlap"),
              std::string::npos)
        << message;
    EXPECT_EQ(memory.data(), before.data());
  });
}

}  // namespace
}  // namespace mhla::test
