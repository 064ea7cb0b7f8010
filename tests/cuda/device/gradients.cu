// The gradients of one (D, E) and type: MHLA_WIDTH, MHLA_VALUE_WIDTH, MHLA_TYPE.

#include "cuda/device/form_views.cuh"
#include "cuda/device/gradients.hpp"
#include "mhla/cuda/attention/gradient.cuh"

namespace device_test {
namespace {

/// Calls work(in, dout, gradients, kept, rotary).
template <class T, int D, int E, class Work>
auto with_arguments(const GradientFormCall& c, const Work& work) {
  using Number = number_t<T>;
  const FormCall& f = c.forward;
  const Index queries = f.query_rows(), keys = f.key_rows();
  const auto [rows, columns] = mixing_shape(f);
  mhla::cuda::Gradients<Number> gradients{
      .q = view<Number>(c.dq, f.items(), queries, f.heads, D),
      .k = view<Number>(c.dk, f.items(), keys, f.heads, D),
      .v = view<Number>(c.dv, f.items(), keys, f.heads, E),
      .mixing = {{c.dmixing, rows, columns, columns}, f.head_stride, f.item_stride}};
  if (f.gain != nullptr) gradients.gain = {c.dgain, E};
  if (f.gate.data != nullptr) gradients.gate = output_view<Number, E>(f, c.dgate);
  mhla::cuda::Kept<Number> kept;
  if (c.out.data != nullptr) kept.out = output_view<const Number, E>(f, c.out);
  const auto in = inputs<T, D, E>(f);
  const auto dout = output_view<const Number, E>(f, c.dout);
  if constexpr (D != 72 && !std::is_same_v<T, float>) {
    if (c.rotary) {
      const mhla::cuda::Rotary rotary{{f.query_angles, queries, D, D}, {f.key_angles, keys, D, D}};
      return work(in, dout, gradients, kept, rotary);
    }
  }
  return work(in, dout, gradients, kept, mhla::cuda::NoRotary{});
}

}  // namespace

template <class T, int D, int E>
std::size_t GradientForms<T, D, E>::workspace_bytes(const GradientFormCall& c) {
  const FormCall& f = c.forward;
  return with_arguments<T, D, E>(c, [&](const auto& in, const auto& dout, const auto& gradients,
                                        const auto& kept, const auto& rotary) {
    return with_operator(f, [&](const auto& op) {
      if (f.causal) {
        return mhla::cuda::prepare_causal_gradient<D, E>(in, f.query_blocks, op, dout, gradients,
                                                         f.device, rotary, kept)
            .plan()
            .workspace_bytes;
      }
      return mhla::cuda::prepare_bidirectional_gradient<D, E>(
                 in, f.query_blocks, f.key_blocks, op, dout, gradients, f.device, rotary, kept)
          .plan()
          .workspace_bytes;
    });
  });
}

template <class T, int D, int E>
void GradientForms<T, D, E>::run(const GradientFormCall& c, cudaStream_t stream) {
  const FormCall& f = c.forward;
  const mhla::cuda::MixingMatrices<const float> mixing = mixing_of(f);
  const mhla::Workspace workspace = memory(f.workspace, f.workspace_bytes);
  with_arguments<T, D, E>(c, [&](const auto& in, const auto& dout, const auto& gradients,
                                 const auto& kept, const auto& rotary) {
    with_operator(f, [&](const auto& op) {
      if (f.causal) {
        mhla::cuda::causal_gradient<D, E>(in, f.query_blocks, mixing, op, dout, gradients,
                                          workspace, f.device, stream, rotary, kept);
      } else {
        mhla::cuda::bidirectional_gradient<D, E>(in, f.query_blocks, f.key_blocks, mixing, op, dout,
                                                 gradients, workspace, f.device, stream, rotary,
                                                 kept);
      }
    });
  });
}

template struct GradientForms<MHLA_TYPE, MHLA_WIDTH, MHLA_VALUE_WIDTH>;

}  // namespace device_test
