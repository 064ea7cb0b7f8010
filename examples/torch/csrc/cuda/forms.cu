// The forms of tensors of MHLA_TYPE with (D, E) = (MHLA_WIDTH, MHLA_VALUE_WIDTH).

#include <mhla/cuda/attention/bidirectional.cuh>
#include <mhla/cuda/attention/causal.cuh>

#include "forms.hpp"

namespace mhla_torch {
namespace {

template <class T, class Byte>
mhla::TensorView<T> of_type(const mhla::TensorView<Byte>& x) {
  return {reinterpret_cast<T*>(x.data), x.shape, x.strides};
}

template <class T>
mhla::cuda::Inputs<T> inputs(const Call& call) {
  return {of_type<const T>(call.q), of_type<const T>(call.k), of_type<const T>(call.v)};
}

template <class T, int D, int E>
mhla::cuda::Plan plan(const Call& call, const mhla::cuda::Device& device) {
  const auto in = inputs<T>(call);
  const auto out = of_type<T>(call.out);
  if (call.causal) {
    return mhla::cuda::causal_plan<D, E>(in, call.query_blocks, call.op, out, device);
  }
  return mhla::cuda::bidirectional_plan<D, E>(in, call.query_blocks, call.key_blocks, call.op, out,
                                              device);
}

}  // namespace

template <class T, int D, int E>
void Forms<T, D, E>::check(const Call& call) {
  (void)plan<T, D, E>(call, mhla::cuda::Device{});  // what a plan refuses depends on no device
}

template <class T, int D, int E>
void Forms<T, D, E>::run(const Call& call,
                         const std::function<mhla::Workspace(std::size_t)>& workspace,
                         cudaStream_t stream) {
  const auto device = mhla::cuda::current_device();
  const auto in = inputs<T>(call);
  const auto out = of_type<T>(call.out);
  const mhla::Workspace lent = workspace(plan<T, D, E>(call, device).workspace_bytes);
  if (call.causal) {
    mhla::cuda::causal<D, E>(in, call.query_blocks, call.mixing, call.op, out, lent, device,
                             stream);
  } else {
    mhla::cuda::bidirectional<D, E>(in, call.query_blocks, call.key_blocks, call.mixing, call.op,
                                    out, lent, device, stream);
  }
}

template struct Forms<Eigen::MHLA_TYPE, MHLA_WIDTH, MHLA_VALUE_WIDTH>;

}  // namespace mhla_torch
