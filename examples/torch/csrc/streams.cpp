/// \file
/// Schemas of the operators that decode on CUDA (cuda/decoding.hpp).

#include <torch/csrc/stable/library.h>

#include <string>

namespace mhla_torch {

STABLE_TORCH_LIBRARY_FRAGMENT(mhla, library) {
  const std::string tokens =
      "(Tensor(a!) state, Tensor q, Tensor k, Tensor v, Tensor mixing, int block, int sequences";
  const std::string options =
      "str feature_map='relu', str normalizer='key_sum', float eps=0., float scale=1., "
      "float relu_eps=1e-6, bool decaying=False) -> Tensor";
  library.def(
      "stream_parts(Tensor like, int sequences, int heads, int features, int values, int blocks, "
      "int block, int terms=0) -> int[]");
  library.def(("stream_prefill" + tokens + ", int first, int seen, " + options).c_str());
  library.def(("stream_step" + tokens + ", Tensor? sequence_of=None, " + options).c_str());
}

}  // namespace mhla_torch
