#pragma once

/// \file
/// Threads that are ranks of distributed/nccl.hpp, each with a simulated GPU, and their arrays.

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "mhla/distributed/nccl.hpp"
#include "support/nccl/stand_in.hpp"

namespace mhla::test {

/// An array of all ranks' rows of `width` numbers in device memory, initially 0.
class DeviceRows {
 public:
  DeviceRows(Index rows, Index width) : width_(width), count_(rows * width) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, static_cast<std::size_t>(count_) * sizeof(int)), cudaSuccess);
    memory_.reset(static_cast<std::byte*>(memory));
    for (int& x : numbers()) x = 0;
  }
  std::span<int> numbers() const {
    return {static_cast<int*>(static_cast<void*>(memory_.get())), static_cast<std::size_t>(count_)};
  }
  distributed::SharedRows shared() const {
    return {memory_.get(), static_cast<std::size_t>(width_) * sizeof(int)};
  }
  /// Final contents of rows [begin, end): numbers of the array and the position.
  std::span<int> rows(Index begin, Index end) const {
    return numbers().subspan(static_cast<std::size_t>(begin * width_),
                             static_cast<std::size_t>((end - begin) * width_));
  }
  void fill(Index begin, Index end, int round) const {
    for (int& x : rows(begin, end)) x = expected(&x, round);
  }
  bool filled(Index begin, Index end, int round) const {
    bool all = true;
    for (int& x : rows(begin, end)) all = all && x == expected(&x, round);
    return all;
  }

 private:
  int expected(const int* at, int round) const {
    return 1 + round + 7 * static_cast<int>(width_) + 100 * static_cast<int>(at - numbers().data());
  }
  Index width_, count_;
  distributed::detail::DeviceBytes memory_;
};

/// A GPU and its stream of kernels.
struct Gpu {
  Gpu(ncclComm_t communicator, double timeout)
      : stream([] {
          cudaStream_t made = nullptr;
          cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
          return made;
        }()),
        comm(communicator),
        rank(communicator, stream.get(), timeout) {}

  void launch(std::function<void()> work) { stand_in::launch(stream.get(), std::move(work)); }
  /// Calls agree() on all ranks, so that NCCL connects them.
  void meet() {
    std::vector<std::byte> records(static_cast<std::size_t>(rank.size()));
    rank.agree({records.data(), 1}, records);
    rank.all_gather({}, std::vector<Index>(records.size() + 1));
    rank.synchronize();
  }

  distributed::detail::CudaStream stream;
  ncclComm_t comm;  // owned by the rank
  distributed::NcclRank rank;
};

/// Calls f(gpu) on a thread per GPU, for `ranks` GPUs; frees everything at the end.
inline void run_gpus(int ranks, const std::function<void(Gpu&)>& f, double timeout = 20,
                     bool blocking = false) {
  const std::vector<ncclComm_t> all = stand_in::communicators(ranks, blocking);
  {
    std::vector<std::jthread> threads;
    for (const ncclComm_t comm : all) {
      threads.emplace_back([&f, comm, timeout] {
        try {
          Gpu gpu(comm, timeout);
          f(gpu);
          EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an error that others would be told";
        } catch (const communication_error& error) {
          ADD_FAILURE() << error.what();
        }
      });
    }
  }
  EXPECT_EQ(stand_in::live(), 0);
}

}  // namespace mhla::test
