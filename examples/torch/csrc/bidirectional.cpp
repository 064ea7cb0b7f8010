/// \file
/// mhla::bidirectional: every query reads every key.

#include <mhla/gradient/bidirectional.hpp>

#include "blocks.hpp"
#include "kernel.hpp"

namespace mhla_torch {
namespace {

struct Bidirectional {
  static constexpr const char* kName = "bidirectional";
  static constexpr const char* kSchema = "Tensor mixing, int[] grid, int[] block, int prefix=0";

  explicit Bidirectional(Arguments& from)
      : mixing(from.take<Tensor>()),
        blocks{from.take<std::vector<std::int64_t>>(), from.take<std::vector<std::int64_t>>(),
               from.take<std::int64_t>()} {}

  template <class T, class Op>
  void forward(const mhla::BatchInputs<T>& in, const Op& op, const mhla::TensorView<T>& out,
               const mhla::Call& call) const {
    mhla::bidirectional(in, checked(), mixing_view<const mhla::accumulator_t<T>>(kName, *mixing),
                        op, out, call);
  }
  template <class T, class Op, class Parameters>
  void backward(const mhla::BatchInputs<T>& in, const Op& op, const mhla::TensorView<const T>& dout,
                const mhla::BatchGradients<T>& gradients, const Parameters& parameters,
                const mhla::Call& call) const {
    const auto view = mixing_view<const mhla::accumulator_t<T>>(kName, *mixing);
    mhla::bidirectional_gradient(in, checked(), view, op, dout, gradients, parameters, call);
  }
  Index key_blocks(Index keys) const { return checked()(keys).blocks(); }

  std::optional<Tensor> mixing;  // [M,M] or [H,M,M]; larger is allowed for a sequence
  BlocksOfLength blocks;

 private:
  const BlocksOfLength& checked() const {
    blocks.check(kName);
    const Index m = blocks.grid.empty() ? 0 : blocks(0).blocks();
    const Index axes = mixing->dim();
    const bool matrix = axes == 2 || axes == 3;  // otherwise mixing_view refuses it
    if (m > 0 && matrix && (mixing->size(axes - 2) != m || mixing->size(axes - 1) != m)) {
      fail<mhla::shape_error>(kName, "mixing",
                              "has shape [" + std::to_string(mixing->size(axes - 2)) + ", " +
                                  std::to_string(mixing->size(axes - 1)) + "]",
                              "[" + std::to_string(m) + ", " + std::to_string(m) + "]");
    }
    return blocks;
  }
};

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mhla, library) { define<Bidirectional>(library); }
STABLE_TORCH_LIBRARY_IMPL(mhla, CPU, library) { implement<Bidirectional>(library); }

}  // namespace mhla_torch
