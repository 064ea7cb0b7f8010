#pragma once

/// \file
/// Memory of a device between two guard zones. All bytes start as 0xFF, which is NaN in every type.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "mhla/cuda/launch/error.cuh"

namespace device_test {

using mhla::cuda::expect_success;

class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes) : bytes_(bytes) {
    expect_success(cudaMalloc(&begin_, bytes + 2 * kGuard), "cudaMalloc");
    expect_success(cudaMemset(begin_, 0xFF, bytes + 2 * kGuard), "cudaMemset");
    expect_success(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  /// Copies host memory.
  DeviceBytes(const void* host, std::size_t bytes) : DeviceBytes(bytes) { upload(host); }
  DeviceBytes(DeviceBytes&& other) noexcept
      : bytes_(other.bytes_), begin_(std::exchange(other.begin_, nullptr)) {}
  DeviceBytes& operator=(DeviceBytes&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(begin_, other.begin_);
    return *this;
  }
  ~DeviceBytes() { cudaFree(begin_); }

  unsigned char* data() { return begin_ + kGuard; }
  std::size_t size() const { return bytes_; }

  /// upload() and download() wait for the device.
  void upload(const void* host) {
    expect_success(cudaMemcpy(data(), host, bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
    expect_success(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void download(void* host) {
    expect_success(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    expect_success(cudaMemcpy(host, data(), bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }
  std::vector<unsigned char> contents() {
    std::vector<unsigned char> bytes(bytes_);
    download(bytes.data());
    return bytes;
  }
  void poison() {
    expect_success(cudaMemset(data(), 0xFF, bytes_), "cudaMemset");
    expect_success(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  bool guards_are_untouched() {
    std::vector<unsigned char> guard(2 * kGuard);
    expect_success(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    expect_success(cudaMemcpy(guard.data(), begin_, kGuard, cudaMemcpyDeviceToHost), "cudaMemcpy");
    expect_success(
        cudaMemcpy(guard.data() + kGuard, data() + bytes_, kGuard, cudaMemcpyDeviceToHost),
        "cudaMemcpy");
    return std::all_of(guard.begin(), guard.end(), [](unsigned char x) { return x == 0xFF; });
  }

 private:
  static constexpr std::size_t kGuard = 4096;  // a multiple of 256: alignment stays
  std::size_t bytes_;
  unsigned char* begin_ = nullptr;
};

/// A new CUDA stream.
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

}  // namespace device_test
