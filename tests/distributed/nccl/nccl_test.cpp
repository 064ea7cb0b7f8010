// Ranks that are GPUs (distributed/nccl.hpp), with a simulated CUDA and NCCL: the order of streams,
// the waits of the host and its errors. The laws of all communicators are in contract_test.cpp.

#include "mhla/distributed/nccl.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/message_of.hpp"
#include "support/nccl/gpus.hpp"
#include "support/nccl/stand_in.hpp"

namespace mhla::distributed {
namespace {

using std::chrono::milliseconds;
using test::DeviceRows;
using test::Gpu;
using test::message_of;
using test::run_gpus;

void expect_no_breach() {
  for (const std::string& breach : stand_in::breaches()) ADD_FAILURE() << breach;
}

constexpr bool kBlocking[] = {false, true};

/// Kernels write the shares and read all rows. The host waits for none of these kernels.
void gather(Gpu& gpu, const std::vector<Index>& first, int round) {
  const auto r = static_cast<std::size_t>(gpu.rank.rank());
  const DeviceRows wide(first.back(), 5), narrow(first.back(), 1);
  const SharedRows arrays[] = {wide.shared(), narrow.shared()};
  const Index begin = first[r], end = first[r + 1];
  gpu.launch([&] {
    std::this_thread::sleep_for(milliseconds(3));
    wide.fill(begin, end, round);
    narrow.fill(begin, end, round);
  });
  auto transfer = gpu.rank.all_gather(arrays, first);
  transfer.wait();
  bool come = false;
  gpu.launch([&] {
    come =
        wide.filled(first[0], first.back(), round) && narrow.filled(first[0], first.back(), round);
  });
  gpu.rank.synchronize();
  EXPECT_TRUE(come) << "round " << round;
  EXPECT_TRUE(transfer.done());
}

TEST(NcclRanks, SharesOfAnySizeAreGathered) {
  for (const bool blocking : kBlocking) {
    for (const int ranks : {1, 2, 3, 7}) {
      run_gpus(
          ranks,
          [&](Gpu& gpu) {
            std::mt19937 random(1);  // the same on all ranks
            for (int round = 0; round < 6; ++round) {
              std::vector<Index> first{static_cast<Index>(round)};  // also from later rows on
              for (int r = 0; r < ranks; ++r) {
                const bool equal = round % 2 == 0;
                first.push_back(first.back() + (equal ? round : static_cast<Index>(random() % 4)));
              }
              gather(gpu, first, round);
            }
          },
          20, blocking);
    }
  }
  expect_no_breach();
}

/// While the kernel of rank 1 is blocked, nothing arrives on rank 0, and its host continues.
TEST(NcclRanks, TransfersWaitForKernelsAndKernelsForTransfersAndTheHostForNothing) {
  std::atomic<bool> released = false;
  run_gpus(2, [&](Gpu& gpu) {
    gpu.meet();
    const Index r = gpu.rank.rank();
    const DeviceRows x(2, 4), y(2, 4);
    const Index first[] = {0, 1, 2};
    const SharedRows arrays[] = {x.shared(), y.shared()};
    gpu.launch([&, r] {
      if (r == 1) released.wait(false);
      x.fill(r, r + 1, 0);
      y.fill(r, r + 1, 0);
    });
    auto early = gpu.rank.all_gather({arrays, 1}, first);
    auto late = gpu.rank.all_gather({arrays + 1, 1}, first);
    std::this_thread::sleep_for(milliseconds(30));
    EXPECT_FALSE(early.done());
    EXPECT_FALSE(late.done());
    late.wait();
    bool come = false;
    gpu.launch([&] { come = y.filled(0, 2, 0); });
    std::this_thread::sleep_for(milliseconds(30));
    if (r == 0) {
      EXPECT_EQ(x.numbers()[4], 0);
      released = true;
      released.notify_all();
    }
    early.wait();
    gpu.rank.synchronize();
    EXPECT_TRUE(come);
    EXPECT_TRUE(x.filled(0, 2, 0));
  });
  expect_no_breach();
}

TEST(NcclRanks, TransfersRunBesideKernelsThatComeLater) {
  std::atomic<bool> released = false;
  run_gpus(2, [&](Gpu& gpu) {
    gpu.meet();
    const Index r = gpu.rank.rank();
    const DeviceRows x(2, 4);
    const Index first[] = {0, 1, 2};
    const SharedRows rows = x.shared();
    std::atomic<bool> ran = false;
    gpu.launch([&, r] {
      if (r == 1) released.wait(false);
      x.fill(r, r + 1, 0);
    });
    auto transfer = gpu.rank.all_gather({&rows, 1}, first);
    gpu.launch([&] { ran = true; });
    if (r == 0) {  // its transfer waits for rank 1
      for (int wait = 0; wait < 500 && !ran; ++wait) {
        std::this_thread::sleep_for(milliseconds(10));
      }
      EXPECT_TRUE(ran);
      EXPECT_FALSE(transfer.done());
      released = true;
      released.notify_all();
    }
    transfer.wait();
    gpu.rank.synchronize();
    EXPECT_TRUE(x.filled(0, 2, 0));
  });
  expect_no_breach();
}

constexpr double kSoon = 0.2;  // seconds

/// Expects that a rank refuses every call with the same message.
void expect_refusal(Gpu& gpu, const std::string& said) {
  std::vector<std::byte> records(static_cast<std::size_t>(gpu.rank.size()));
  const std::vector<Index> first(records.size() + 1);
  EXPECT_EQ(message_of<communication_error>([&] {
              gpu.rank.agree({records.data(), 1}, records);
            }),
            said);
  EXPECT_EQ(message_of<communication_error>([&] { gpu.rank.all_gather({}, first); }), said);
  EXPECT_EQ(message_of<communication_error>([&] { gpu.rank.exchange({}, {}, {}); }), said);
  EXPECT_EQ(message_of<communication_error>([&] { gpu.rank.synchronize(); }), said);
}

TEST(NcclRanks, ARankThatIsNeverMetIsAnError) {
  run_gpus(
      3,
      [](Gpu& gpu) {
        if (gpu.rank.rank() == 2) return;
        std::vector<std::byte> records(3);
        const std::string said = message_of<communication_error>([&] {
          gpu.rank.agree({records.data(), 1}, records);
        });
        EXPECT_EQ(said, "mhla::distributed: rank " + std::to_string(gpu.rank.rank()) +
                            ": ncclGroupEnd did not end within 0.200000 s");
        expect_refusal(gpu, said);
      },
      kSoon);
  expect_no_breach();
}

TEST(NcclRanks, ARankThatDoesNotComeIsAnErrorOfWhatWaitsForIt) {
  for (const bool agrees : {false, true}) {
    run_gpus(
        3,
        [&](Gpu& gpu) {
          gpu.meet();
          if (gpu.rank.rank() == 2) return;
          const DeviceRows rows(3, 1);
          const SharedRows arrays[] = {rows.shared()};
          const Index first[] = {0, 1, 2, 3};
          auto transfer = gpu.rank.all_gather(arrays, first);
          transfer.wait();  // blocks the stream, not the host
          std::vector<std::byte> records(3);
          const std::string said = message_of<communication_error>([&] {
            agrees ? gpu.rank.agree({records.data(), 1}, records) : gpu.rank.synchronize();
          });
          EXPECT_EQ(said, "mhla::distributed: rank " + std::to_string(gpu.rank.rank()) +
                              ": not all ranks have come within 0.200000 s");
          expect_refusal(gpu, said);
        },
        kSoon);
  }
  expect_no_breach();
}

TEST(NcclRanks, ARankEndsThoughWhatItAwaitsNeverComes) {
  stand_in::take_arrays_of_the_host(true);  // freeing device memory may wait, too
  std::vector<std::byte> numbers(4);
  run_gpus(
      2,
      [&](Gpu& gpu) {
        std::vector<std::byte> records(2);
        gpu.rank.agree({records.data(), 1}, records);
        if (gpu.rank.rank() == 1) return;
        const SharedRows arrays[] = {{numbers.data(), 2}};
        const Index first[] = {0, 1, 2};
        gpu.rank.all_gather(arrays, first).wait();
      },
      kSoon);
  stand_in::take_arrays_of_the_host(false);
  expect_no_breach();
}

/// The time of a rank's kernels does not count as the delay of other ranks, although these wait as
/// long.
TEST(NcclRanks, TheTimeOfOwnKernelsDoesNotCount) {
  run_gpus(
      2,
      [](Gpu& gpu) {
        gpu.meet();
        const DeviceRows rows(2, 1);
        const SharedRows arrays[] = {rows.shared()};
        gpu.launch([] { std::this_thread::sleep_for(std::chrono::duration<double>(3 * kSoon)); });
        gpu.rank.all_gather(arrays, std::vector<Index>{0, 1, 2}).wait();
        gpu.rank.synchronize();
      },
      kSoon);
  expect_no_breach();
}

TEST(NcclRanks, ErrorsOfNcclAreSaidByWhateverAsks) {
  for (const int asks : {0, 1, 2}) {
    run_gpus(
        2,
        [&](Gpu& gpu) {
          gpu.meet();
          if (gpu.rank.rank() == 1) return;
          const DeviceRows rows(2, 1);
          const SharedRows arrays[] = {rows.shared()};
          auto transfer = gpu.rank.all_gather(arrays, std::vector<Index>{0, 1, 2});
          stand_in::fail(gpu.comm, ncclRemoteError);
          std::vector<std::byte> records(2);
          const std::string said = message_of<communication_error>([&] {
            if (asks == 0) transfer.done();
            if (asks == 1) gpu.rank.synchronize();
            if (asks == 2) gpu.rank.agree({records.data(), 1}, records);
          });
          EXPECT_TRUE(said.ends_with("failed: remote process exited or there was a network error"))
              << said;
          EXPECT_EQ(message_of<communication_error>([&] { transfer.wait(); }), said);
          expect_refusal(gpu, said);
        },
        kSoon);
  }
  expect_no_breach();
}

/// A refused group does not stay open for later calls of the thread.
TEST(NcclRanks, ARefusedCallEndsItsGroup) {
  run_gpus(1, [](Gpu& gpu) {
    int host[2] = {};
    const SharedRows arrays[] = {{reinterpret_cast<std::byte*>(host), 4}};
    const PeerRows rows{0, 0, 1};
    EXPECT_EQ(message_of<communication_error>([&] {
                gpu.rank.exchange(arrays, {&rows, 1}, {&rows, 1});
              }),
              "mhla::distributed: rank 0: ncclSend failed: invalid usage");
    Gpu other(stand_in::communicators(1, false)[0], kSoon);
    other.meet();
  });
  EXPECT_EQ(stand_in::breaches(), std::vector<std::string>(2, "not in device memory"));
}

TEST(NcclRanks, ErrorsOfCudaAreErrorsOfCommunication) {
  run_gpus(1, [](Gpu& gpu) {
    std::vector<std::byte> record(8), records(8);
    gpu.rank.agree(record, records);
    stand_in::fail_next_allocation();
    record.resize(16);
    records.resize(16);
    EXPECT_EQ(message_of<communication_error>([&] { gpu.rank.agree(record, records); }),
              "mhla::distributed: rank 0: cudaMalloc failed: cudaErrorMemoryAllocation (out of "
              "memory)");
  });
  expect_no_breach();
}

}  // namespace
}  // namespace mhla::distributed
