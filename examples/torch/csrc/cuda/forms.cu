// The forms of tensors of MHLA_TYPE with (D, E) = (MHLA_WIDTH, MHLA_VALUE_WIDTH).

#include <algorithm>
#include <deque>
#include <mhla/cuda/attention/bidirectional.cuh>
#include <mhla/cuda/attention/causal.cuh>
#include <mhla/cuda/attention/prepared.cuh>
#include <variant>

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

/// Whether two calls differ in where their tensors begin alone.
bool same_layout(const Call& a, const Call& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.shape == y.shape && x.strides == y.strides;
  };
  return same(a.q, b.q) && same(a.k, b.k) && same(a.v, b.v) && same(a.out, b.out) &&
         a.query_blocks == b.query_blocks && a.key_blocks == b.key_blocks && a.causal == b.causal &&
         a.op == b.op;
}

/// A call as it is made again and again on a device.
template <class T, int D, int E>
struct Prepared {
  using Bidirectional = mhla::cuda::Prepared<D, E, false, T>;
  using Causal = mhla::cuda::Prepared<D, E, true, T>;

  Call call;
  int device;
  std::variant<Bidirectional, Causal> form;

  Prepared(const Call& of, int which)
      : call(of), device(which), form(prepare(of, mhla::cuda::current_device())) {}

  static std::variant<Bidirectional, Causal> prepare(const Call& of,
                                                     const mhla::cuda::Device& device) {
    const auto in = inputs<T>(of);
    const auto out = of_type<T>(of.out);
    if (of.causal) {
      return mhla::cuda::prepare_causal<D, E>(in, of.query_blocks, of.op, out, device);
    }
    return mhla::cuda::prepare_bidirectional<D, E>(in, of.query_blocks, of.key_blocks, of.op, out,
                                                   device);
  }
};

/// Those of the thread, the latest one first.
template <class T, int D, int E>
std::deque<Prepared<T, D, E>>& latest() {
  thread_local std::deque<Prepared<T, D, E>> calls;
  return calls;
}

/// The one of a layout and device, one of the latest or made now.
template <class T, int D, int E>
Prepared<T, D, E>& prepared(const Call& call, int device) {
  constexpr std::size_t kMost = 16;
  auto& calls = latest<T, D, E>();
  const auto found = std::find_if(calls.begin(), calls.end(), [&](const auto& x) {
    return x.device == device && same_layout(x.call, call);
  });
  if (found != calls.end()) {
    std::rotate(calls.begin(), found, found + 1);
  } else {
    calls.emplace_front(call, device);
    if (calls.size() > kMost) calls.pop_back();
  }
  return calls.front();
}

}  // namespace

template <class T, int D, int E>
void Forms<T, D, E>::check(const Call& call) {
  const auto& calls = latest<T, D, E>();
  const bool known = std::any_of(calls.begin(), calls.end(),
                                 [&](const auto& x) { return same_layout(x.call, call); });
  // What a plan refuses depends on no device.
  if (!known) (void)Prepared<T, D, E>::prepare(call, {});
}

template <class T, int D, int E>
void Forms<T, D, E>::run(const Call& call, int device,
                         const std::function<mhla::Workspace(std::size_t)>& workspace,
                         cudaStream_t stream) {
  std::visit(
      [&](auto& form) {
        const mhla::Workspace lent = workspace(form.plan().workspace_bytes);
        form.run(inputs<T>(call), call.mixing, of_type<T>(call.out), lent, stream);
      },
      prepared<T, D, E>(call, device).form);
}

template struct Forms<Eigen::MHLA_TYPE, MHLA_WIDTH, MHLA_VALUE_WIDTH>;

}  // namespace mhla_torch
