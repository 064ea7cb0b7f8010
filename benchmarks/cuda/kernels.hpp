#pragma once

/// \file
/// Kernels of the benchmarks themselves: data, poison, cold caches, ceilings.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/forms.hpp"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda_bench {

/// Returns cuda::current_device() of a program that has kernels for it.
cuda::Device current_device();

/// Draws element i of tensor number `tensor` as bench::element does, rounded to bfloat16.
void draw(Bits* data, std::int64_t size, std::uint64_t tensor, cudaStream_t stream);

/// Adds the number of infinities and NaN to `count`.
void count_not_finite(const Bits* data, std::int64_t size, unsigned long long* count,
                      cudaStream_t stream);

/// Writes random words: 16 bytes at a time, `bytes` / 16 times.
void write(void* data, std::size_t bytes, std::uint64_t seed, cudaStream_t stream);

/// Copies 16 bytes at a time, `bytes` / 16 times.
void copy(const void* from, void* to, std::size_t bytes, cudaStream_t stream);

/// Reads everything `passes` times, not from L1. `sink` keeps the compiler from removing the loads.
void read(const void* data, std::size_t bytes, int passes, unsigned* sink, cudaStream_t stream);

/// Keeps the stream busy for `ticks` clock ticks without touching memory.
void hold(long long ticks, cudaStream_t stream);

/// Launches an empty kernel. If `early`, it may start while the previous kernel runs, and waits for
/// that kernel's end.
void nothing(bool early, cudaStream_t stream);

}  // namespace mhla::cuda_bench
