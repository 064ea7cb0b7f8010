/// \file
/// mhla::causal: a token reads itself and earlier tokens.

#include <mhla/gradient/causal.hpp>
#include <mhla/gradient/causal_decay.hpp>

#include "kernel.hpp"

namespace mhla_torch {
namespace {

struct Causal {
  static constexpr const char* kName = "causal";
  static constexpr const char* kSchema =
      "Tensor mixing, int block, bool decaying=False, Tensor? pattern=None";

  explicit Causal(Arguments& from)
      : mixing(from.take<Tensor>()),
        blocks{from.take<std::int64_t>()},
        decaying(from.take<bool>()) {
    refuse_pattern(kName, from.take<std::optional<Tensor>>());
  }

  template <class T, class Op>
  void forward(const mhla::BatchInputs<T>& in, const Op& op, const mhla::TensorView<T>& out,
               const mhla::Call& call) const {
    with_mixing<T>([&](const auto& view) { mhla::causal(in, blocks, view, op, out, call); });
  }
  template <class T, class Op, class Parameters>
  void backward(const mhla::BatchInputs<T>& in, const Op& op, const mhla::TensorView<const T>& dout,
                const mhla::BatchGradients<T>& gradients, const Parameters& parameters,
                const mhla::Call& call) const {
    with_mixing<T>([&](const auto& view) {
      mhla::causal_gradient(in, blocks, view, op, dout, gradients, parameters, call);
    });
  }
  Index key_blocks(Index keys) const { return blocks(keys).blocks(); }

  std::optional<Tensor> mixing;  // at least [M,M] or [H,M,M]; only the lower triangle is read
  mhla::ContiguousBlocks blocks;
  bool decaying;  // mixing has terms [2,R], weights and decays

 private:
  /// Calls work with a view of the mixing matrix or of its terms.
  template <class T, class Work>
  void with_mixing(const Work& work) const {
    using A = mhla::accumulator_t<T>;
    if (!decaying) return work(mixing_view<const A>(kName, *mixing));
    expect_tensor(kName, "mixing", *mixing, scalar_type_of<A>(), 2);
    const Index rows = mixing->size(0), terms = mixing->size(1);
    if (rows != 2) {
      fail<mhla::shape_error>(
          kName, "mixing",
          "has shape [" + std::to_string(rows) + ", " + std::to_string(terms) + "]",
          "[2, R]: weights and decays");
    }
    work(mhla::DecayView<const A>(static_cast<const A*>(mixing->const_data_ptr()), terms));
  }
};

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mhla, library) { define<Causal>(library); }
STABLE_TORCH_LIBRARY_IMPL(mhla, CPU, library) { implement<Causal>(library); }

}  // namespace mhla_torch
