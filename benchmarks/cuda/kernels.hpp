#pragma once

/// \file
/// What the benchmarks themselves run on a device: data, poison, cold caches, ceilings.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/forms.hpp"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda_bench {

/// cuda::current_device(), of a program that has kernels for it.
cuda::Device current_device();

/// Element i of tensor number `tensor`, as bench::element draws it, rounded to bfloat16.
void draw(Bits* data, std::int64_t size, std::uint64_t tensor, cudaStream_t stream);

/// Adds to `count` how many numbers are infinite or NaN.
void count_not_finite(const Bits* data, std::int64_t size, unsigned long long* count,
                      cudaStream_t stream);

/// Writes random words: 16 bytes at a time, `bytes` / 16 times.
void write(void* data, std::size_t bytes, std::uint64_t seed, cudaStream_t stream);

/// Copies in the same way.
void copy(const void* from, void* to, std::size_t bytes, cudaStream_t stream);

/// Reads everything `passes` times past the first cache; `sink` takes something of it.
void read(const void* data, std::size_t bytes, int passes, unsigned* sink, cudaStream_t stream);

/// Keeps the stream busy for so many clock ticks without touching memory.
void hold(long long ticks, cudaStream_t stream);

/// A kernel that does nothing, launched `early`: while the one before runs, for whose end it waits.
void nothing(bool early, cudaStream_t stream);

}  // namespace mhla::cuda_bench
