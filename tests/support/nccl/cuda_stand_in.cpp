// The CUDA runtime of stand_in.hpp: streams are threads that run their work in order.

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "support/nccl/stand_in.hpp"

namespace {

std::mutex mutex;
std::vector<std::string> broken;
std::map<const std::byte*, std::size_t> arrays;  // bytes per array
thread_local std::vector<cudaStream_t> streams;  // streams of the thread's device
std::atomic<int> objects = 0;
std::atomic<bool> out_of_memory = false;
std::atomic<bool> any_memory = false;

}  // namespace

struct CUstream_st {
  CUstream_st() : worker([this] { work(); }) {}
  ~CUstream_st() {
    put(nullptr);
    worker.join();
  }

  void put(std::function<void()> what) {
    const std::lock_guard lock(queue_mutex);
    waiting.push_back(std::move(what));
    changed.notify_all();
  }
  void work() {
    for (;;) {
      std::unique_lock lock(queue_mutex);
      changed.wait(lock, [this] { return !waiting.empty(); });
      const std::function<void()> next = std::move(waiting.front());
      waiting.pop_front();
      lock.unlock();
      if (!next) return;
      next();
    }
  }

  std::mutex queue_mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  std::thread worker;
};

struct CUevent_st {
  std::shared_ptr<std::atomic<bool>> passed;  // of the last record; null: never recorded
};

namespace stand_in {

void launch(cudaStream_t stream, std::function<void()> work) { stream->put(std::move(work)); }

void add_breach(const std::string& what) {
  const std::lock_guard lock(mutex);
  broken.push_back(what);
}

std::vector<std::string> breaches() {
  const std::lock_guard lock(mutex);
  return std::exchange(broken, {});
}

void fail_next_allocation() { out_of_memory = true; }

int live() { return objects; }
void count(int change) { objects += change; }

void take_arrays_of_the_host(bool take) { any_memory = take; }

bool in_device(const void* begin, std::size_t bytes) {
  if (any_memory) return true;
  const std::lock_guard lock(mutex);
  const auto* const first = static_cast<const std::byte*>(begin);
  const auto after = arrays.upper_bound(first);
  if (after == arrays.begin()) return false;
  const auto& [array, size] = *std::prev(after);
  return first + bytes <= array + size;
}

}  // namespace stand_in

namespace {

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  if (flags != cudaStreamNonBlocking) stand_in::add_breach("a stream that waits for stream 0");
  streams.push_back(*stream = new CUstream_st);
  stand_in::count(1);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::erase(streams, stream);
  delete stream;
  stand_in::count(-1);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::atomic<bool> passed = false;
  stream->put([&] {
    passed = true;
    passed.notify_all();
  });
  passed.wait(false);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  if (event->passed) stream->put([passed = event->passed] { passed->wait(false); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (flags != cudaEventDisableTiming) stand_in::add_breach("an event with times");
  *event = new CUevent_st;
  stand_in::count(1);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  stand_in::count(-1);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->passed = std::make_shared<std::atomic<bool>>(false);
  stream->put([passed = event->passed] {
    *passed = true;
    passed->notify_all();
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return remember(!event->passed || *event->passed ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (out_of_memory.exchange(false)) return remember(cudaErrorMemoryAllocation);
  *memory = std::malloc(bytes);
  const std::lock_guard lock(mutex);
  arrays[static_cast<const std::byte*>(*memory)] = bytes;
  stand_in::count(1);
  return cudaSuccess;
}

/// Waits for all work of the device.
cudaError_t cudaFree(void* memory) {
  for (const cudaStream_t stream : streams) cudaStreamSynchronize(stream);
  {
    const std::lock_guard lock(mutex);
    if (arrays.erase(static_cast<const std::byte*>(memory)) == 0) return cudaErrorInvalidValue;
  }
  std::free(memory);
  stand_in::count(-1);
  return cudaSuccess;
}

/// Copies pageable host memory, for which CUDA may wait for the stream.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const bool to_device = kind == cudaMemcpyHostToDevice;
  if (!stand_in::in_device(to_device ? to : from, bytes)) return cudaErrorInvalidValue;
  stream->put([=] { stand_in::copy(to, from, bytes); });
  return cudaStreamSynchronize(stream);
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "error";
}
}
