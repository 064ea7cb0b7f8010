#pragma once

/// \file
/// Owners of device objects: memory, streams, events, captured graphs. Every failed call of CUDA
/// throws cuda_error with the call and CUDA's text.

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "mhla/cuda/launch/error.cuh"

namespace mhla::cuda_bench {

using cuda::expect_success;

/// Numbers in device memory, aligned to 256 bytes.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::int64_t size = 0) : size_(size) {
    if (size > 0) expect_success(cudaMalloc(&data_, bytes()), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& values)
      : DeviceArray(static_cast<std::int64_t>(values.size())) {
    expect_success(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    expect_success(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // streams do not wait for it
  }
  DeviceArray(DeviceArray&& other) noexcept
      : size_(std::exchange(other.size_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::int64_t size() const { return size_; }
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

 private:
  std::int64_t size_;
  T* data_ = nullptr;
};

/// Owns a stream.
class Stream {
 public:
  Stream() {
    expect_success(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                   "cudaStreamCreateWithFlags");
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }

  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)
  void wait() const { expect_success(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Measures seconds of the device between two points of a stream.
class Stopwatch {
 public:
  Stopwatch() {
    expect_success(cudaEventCreate(&begin_), "cudaEventCreate");
    expect_success(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  void start(cudaStream_t stream) {
    expect_success(cudaEventRecord(begin_, stream), "cudaEventRecord");
  }
  /// Waits until the device has reached this point of the stream.
  double stop(cudaStream_t stream) {
    expect_success(cudaEventRecord(end_, stream), "cudaEventRecord");
    expect_success(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    expect_success(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// Graph of the work that a function enqueues. One call enqueues the work again.
class CapturedGraph {
 public:
  template <class Enqueue>
  CapturedGraph(cudaStream_t stream, Enqueue&& enqueue) {
    expect_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                   "cudaStreamBeginCapture");
    enqueue(stream);
    cudaGraph_t graph = nullptr;
    expect_success(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    expect_success(status, "cudaGraphInstantiate");
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  ~CapturedGraph() { cudaGraphExecDestroy(executable_); }

  void replay(cudaStream_t stream) const {
    expect_success(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace mhla::cuda_bench
