/// \file
/// mhla::bidirectional: every query reads every key.

#include <mhla/gradient/bidirectional.hpp>

#include "blocks.hpp"
#include "kernel.hpp"

namespace mhla_torch {
namespace {

struct Bidirectional {
  static constexpr const char* kName = "bidirectional";
  static constexpr const char* kSchema =
      "Tensor mixing, int[] grid, int[] block, int prefix=0, int[] key_grid=[], "
      "int[] key_block=[], int key_prefix=0, Tensor? pattern=None";

  explicit Bidirectional(Arguments& from) : mixing(from.take<Tensor>()), blocks(from) {
    refuse_pattern(kName, from.take<std::optional<Tensor>>());
  }

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
  Index key_blocks(Index keys) const { return checked().keys(keys).blocks(); }

  std::optional<Tensor> mixing;  // [Mq,Mk] or [H,Mq,Mk]; larger is allowed for sequences
  BlocksOfCall blocks;

 private:
  mhla::CrossBlocks<BlocksOfLength, BlocksOfLength> checked() const {
    blocks.check(kName);
    const Index axes = mixing->dim();
    if (axes == 2 || axes == 3) {  // otherwise mixing_view refuses it
      const Index has_rows = mixing->size(axes - 2), has_columns = mixing->size(axes - 1);
      const auto wanted = [](const BlocksOfLength& side, Index has) {
        return side.grid.empty() ? has : side(0).blocks();
      };
      const Index rows = wanted(blocks.queries, has_rows);
      const Index columns = wanted(blocks.keys, has_columns);
      const auto text = [](Index m, Index n) {
        return "[" + std::to_string(m) + ", " + std::to_string(n) + "]";
      };
      if (has_rows != rows || has_columns != columns) {
        fail<mhla::shape_error>(kName, "mixing", "has shape " + text(has_rows, has_columns),
                                text(rows, columns));
      }
    }
    return {blocks.queries, blocks.keys};
  }
};

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mhla, library) { define<Bidirectional>(library); }
STABLE_TORCH_LIBRARY_IMPL(mhla, CPU, library) { implement<Bidirectional>(library); }

}  // namespace mhla_torch
