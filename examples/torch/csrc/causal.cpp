/// \file
/// mhla::causal: a token reads itself and earlier tokens.

#include <mhla/gradient/causal.hpp>

#include "kernel.hpp"

namespace mhla_torch {
namespace {

struct Causal {
  static constexpr const char* kName = "causal";
  static constexpr const char* kSchema = "Tensor mixing, int block";

  explicit Causal(Arguments& from)
      : mixing(from.take<Tensor>()), blocks{from.take<std::int64_t>()} {}

  template <class T, class Op>
  void forward(const mhla::BatchInputs<T>& in, const Op& op, const mhla::TensorView<T>& out,
               const mhla::Call& call) const {
    mhla::causal(in, blocks, mixing_view<const mhla::accumulator_t<T>>(kName, *mixing), op, out,
                 call);
  }
  template <class T, class Op, class Parameters>
  void backward(const mhla::BatchInputs<T>& in, const Op& op, const mhla::TensorView<const T>& dout,
                const mhla::BatchGradients<T>& gradients, const Parameters& parameters,
                const mhla::Call& call) const {
    const auto view = mixing_view<const mhla::accumulator_t<T>>(kName, *mixing);
    mhla::causal_gradient(in, blocks, view, op, dout, gradients, parameters, call);
  }
  Index key_blocks(Index keys) const { return blocks(keys).blocks(); }

  std::optional<Tensor> mixing;  // at least [M,M] or [H,M,M]; only the lower triangle is read
  mhla::ContiguousBlocks blocks;
};

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mhla, library) { define<Causal>(library); }
STABLE_TORCH_LIBRARY_IMPL(mhla, CPU, library) { implement<Causal>(library); }

}  // namespace mhla_torch
