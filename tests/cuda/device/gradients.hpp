#pragma once

/// \file
/// Plain functions that call the library's gradients on device memory. nvcc compiles gradients.cu,
/// once per (D, E) and type.

#include "cuda/device/forms.hpp"

namespace device_test {

/// A call of a gradient; tensors with strides in bytes.
struct GradientFormCall {
  FormCall forward;  ///< `o` is not used
  mhla::cuda::ConstTokenTensor dout;
  mhla::cuda::ConstTokenTensor out;  ///< or null
  mhla::cuda::TokenTensor dq, dk, dv, dgate;
  float* dmixing;  ///< [Mq, Mk]
  float* dgain;    ///< [E]
  bool rotary;
};

template <class T, int D, int E>
struct GradientForms {
  static std::size_t workspace_bytes(const GradientFormCall& call);
  static void run(const GradientFormCall& call, cudaStream_t stream);
};

}  // namespace device_test
