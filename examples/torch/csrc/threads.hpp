#pragma once

/// \file
/// PyTorch's threads as an executor of the library.

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mhla/core/executor.hpp>
#include <mutex>

namespace mhla_torch {

using mhla::Index;

/// Executor with torch.get_num_threads() workers of at::parallel_for. For little work it uses the
/// calling thread alone, because waking another takes about 20 us. Inside a parallel region of
/// PyTorch it also runs on the calling thread, so that regions never wait for each other.
class TorchThreads {
 public:
  /// \param multiply_adds  approximate number of multiply-adds of the work
  explicit TorchThreads(Index multiply_adds)
      : workers_(multiply_adds < (Index{1} << 20) ? 1 : torch::stable::get_num_threads()) {}

  Index workers() const { return workers_; }

  template <class F>
  void for_each(Index count, F&& f) const {
    std::atomic<Index> next{0};
    std::mutex mutex;  // guards failure
    std::exception_ptr failure;
    const auto serve = [&](Index begin, Index end) {
      for (Index worker = begin; worker < end; ++worker) {
        for (Index i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
          try {
            f(i, worker);
          } catch (...) {
            const std::lock_guard lock(mutex);
            if (!failure) failure = std::current_exception();
          }
        }
      }
    };
    torch::stable::parallel_for(0, std::min(workers_, count), 1, serve);
    if (failure) std::rethrow_exception(failure);
  }

 private:
  Index workers_;
};
static_assert(mhla::Executor<TorchThreads>);

}  // namespace mhla_torch
