/// \file
/// mhla::linear: plain linear attention, which is MHLA with one block.

#include <mhla/gradient/linear.hpp>

#include "kernel.hpp"

namespace mhla_torch {
namespace {

struct Linear {
  static constexpr const char* kName = "linear";
  static constexpr const char* kSchema = "bool causal=False";

  explicit Linear(Arguments& from) : causal(from.take<bool>()) {}

  template <class T, class Op>
  void forward(const mhla::BatchInputs<T>& in, const Op& op, const mhla::TensorView<T>& out,
               const mhla::Call& call) const {
    if (causal) {
      mhla::linear_causal(in, op, out, call);
    } else {
      mhla::linear_bidirectional(in, op, out, call);
    }
  }
  template <class T, class Op, class Parameters>
  void backward(const mhla::BatchInputs<T>& in, const Op& op, const mhla::TensorView<const T>& dout,
                const mhla::BatchGradients<T>& gradients, const Parameters& parameters,
                const mhla::Call& call) const {
    if (causal) {
      mhla::linear_causal_gradient(in, op, dout, gradients, parameters, call);
    } else {
      mhla::linear_bidirectional_gradient(in, op, dout, gradients, parameters, call);
    }
  }

  std::optional<Tensor> mixing;  // none
  bool causal;
};

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mhla, library) { define<Linear>(library); }
STABLE_TORCH_LIBRARY_IMPL(mhla, CPU, library) { implement<Linear>(library); }

}  // namespace mhla_torch
