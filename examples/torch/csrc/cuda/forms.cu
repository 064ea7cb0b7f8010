// Forms of tensors of MHLA_TYPE with (D, E) = (MHLA_WIDTH, MHLA_VALUE_WIDTH).

#include <algorithm>
#include <deque>
#include <mhla/cuda/attention/bidirectional.cuh>
#include <mhla/cuda/attention/causal.cuh>
#include <mhla/cuda/attention/gradient.cuh>
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

/// Returns true if two calls differ only in the addresses of their tensors.
bool same_layout(const Call& a, const Call& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.shape == y.shape && x.strides == y.strides;
  };
  return same(a.q, b.q) && same(a.k, b.k) && same(a.v, b.v) && same(a.out, b.out) &&
         a.query_blocks == b.query_blocks && a.key_blocks == b.key_blocks && a.causal == b.causal &&
         a.op == b.op;
}

/// A prepared call on a device, for repeated use.
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

bool same_layout(const GradientCall& a, const GradientCall& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.shape == y.shape && x.strides == y.strides;
  };
  return same_layout(a.forward, b.forward) && same(a.dout, b.dout) && same(a.out, b.out) &&
         same(a.dq, b.dq) && same(a.dk, b.dk) && same(a.dv, b.dv) &&
         a.dmixing.rows == b.dmixing.rows && a.dmixing.cols == b.dmixing.cols &&
         a.dmixing.row_stride == b.dmixing.row_stride;
}

template <class T>
mhla::cuda::Gradients<T> gradients(const GradientCall& call) {
  return {.q = of_type<T>(call.dq),
          .k = of_type<T>(call.dk),
          .v = of_type<T>(call.dv),
          .mixing = call.dmixing};
}

/// A prepared gradient on a device, for repeated use.
template <class T, int D, int E>
struct PreparedGradient {
  using Bidirectional = mhla::cuda::PreparedGradient<D, E, false, T>;
  using Causal = mhla::cuda::PreparedGradient<D, E, true, T>;

  GradientCall call;
  int device;
  std::variant<Bidirectional, Causal> form;

  PreparedGradient(const GradientCall& of, int which)
      : call(of), device(which), form(prepare(of, mhla::cuda::current_device())) {}

  static std::variant<Bidirectional, Causal> prepare(const GradientCall& of,
                                                     const mhla::cuda::Device& device) {
    const Call& forward = of.forward;
    const auto in = inputs<T>(forward);
    const auto dout = of_type<const T>(of.dout);
    const mhla::cuda::Kept<T> kept{of_type<const T>(of.out)};
    if (forward.causal) {
      return mhla::cuda::prepare_causal_gradient<D, E>(in, forward.query_blocks, forward.op, dout,
                                                       gradients<T>(of), device,
                                                       mhla::cuda::NoRotary{}, kept);
    }
    return mhla::cuda::prepare_bidirectional_gradient<D, E>(
        in, forward.query_blocks, forward.key_blocks, forward.op, dout, gradients<T>(of), device,
        mhla::cuda::NoRotary{}, kept);
  }
};

/// Prepared calls of the thread, the latest first.
template <class Entry>
std::deque<Entry>& latest() {
  thread_local std::deque<Entry> calls;
  return calls;
}

/// Returns the prepared call of a layout and device, from the cache or newly prepared.
template <class Entry, class Any>
Entry& prepared(const Any& call, int device) {
  constexpr std::size_t kMost = 16;
  auto& calls = latest<Entry>();
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

/// Throws what planning throws, which depends on no device.
template <class Entry, class Any>
void check_plan(const Any& call) {
  const auto& calls = latest<Entry>();
  const bool known = std::any_of(calls.begin(), calls.end(),
                                 [&](const auto& x) { return same_layout(x.call, call); });
  if (!known) (void)Entry::prepare(call, {});
}

}  // namespace

template <class T, int D, int E>
void Forms<T, D, E>::check(const Call& call) {
  check_plan<Prepared<T, D, E>>(call);
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
      prepared<Prepared<T, D, E>>(call, device).form);
}

template <class T, int D, int E>
const char* Forms<T, D, E>::form(const Call& call, int device) {
  return std::visit([](const auto& form) { return name(form.plan().form); },
                    prepared<Prepared<T, D, E>>(call, device).form);
}

template <class T, int D, int E>
void Forms<T, D, E>::check(const GradientCall& call) {
  check_plan<PreparedGradient<T, D, E>>(call);
}

template <class T, int D, int E>
void Forms<T, D, E>::run(const GradientCall& call, int device,
                         const std::function<mhla::Workspace(std::size_t)>& workspace,
                         cudaStream_t stream) {
  std::visit(
      [&](auto& form) {
        const mhla::Workspace lent = workspace(form.plan().workspace_bytes);
        form.run(inputs<T>(call.forward), call.forward.mixing, of_type<const T>(call.dout),
                 gradients<T>(call), lent, stream, mhla::cuda::NoRotary{},
                 {of_type<const T>(call.out)});
      },
      prepared<PreparedGradient<T, D, E>>(call, device).form);
}

template struct Forms<Eigen::MHLA_TYPE, MHLA_WIDTH, MHLA_VALUE_WIDTH>;

}  // namespace mhla_torch
