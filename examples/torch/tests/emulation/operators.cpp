/// \file
/// The operators of csrc/cuda for tensors on the CPU, under the dispatch key PrivateUse1.

#include <torch/csrc/stable/library.h>

#include "cuda/decoding.hpp"
#include "cuda/problem.hpp"
#include "host_place.hpp"

namespace mhla_torch {

STABLE_TORCH_LIBRARY_IMPL(mhla, PrivateUse1, library) {
  implement<Bidirectional, HostPlace, true>(library);
  implement<Causal, HostPlace, true>(library);
  implement<Linear, HostPlace, false>(library);
  implement_streams<HostPlace>(library);
}

}  // namespace mhla_torch
