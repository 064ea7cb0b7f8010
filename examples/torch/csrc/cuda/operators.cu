/// \file
/// CUDA implementations of mhla::bidirectional, mhla::causal and mhla::linear, of their gradients,
/// and of streams.
///
/// A call checks its arguments, allocates its outputs and workspace from PyTorch's allocator, and
/// enqueues its kernels into the current stream of the tensors' device. It waits for nothing.

#include "decoding.hpp"
#include "launch.hpp"
#include "problem.hpp"

namespace mhla_torch {

STABLE_TORCH_LIBRARY_IMPL(mhla, CUDA, library) {
  implement<Bidirectional, CudaPlace, true>(library);
  implement<Causal, CudaPlace, true>(library);
  implement<Linear, CudaPlace, false>(library);
  implement_streams<CudaPlace>(library);
}

}  // namespace mhla_torch
