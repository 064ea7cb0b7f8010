// Forms of tensors of MHLA_TYPE with (D, E) = (MHLA_WIDTH, MHLA_VALUE_WIDTH).

#include <algorithm>
#include <deque>
#include <mhla/cuda/attention/bidirectional.cuh>
#include <mhla/cuda/attention/causal.cuh>
#include <mhla/cuda/attention/gradient.cuh>
#include <mhla/cuda/attention/prepared.cuh>
#include <variant>

#include "forms.hpp"
#include "views.hpp"

namespace mhla_torch {
namespace {

/// A prepared form of any kind, of the template Form<kCausal, R>.
template <bool kRotates, template <bool, class> class Form>
struct AnyForm {
  using type = std::variant<Form<false, mhla::cuda::NoRotary>, Form<true, mhla::cuda::NoRotary>,
                            Form<false, mhla::cuda::Rotary>, Form<true, mhla::cuda::Rotary>>;
};
template <template <bool, class> class Form>
struct AnyForm<false, Form> {
  using type = std::variant<Form<false, mhla::cuda::NoRotary>, Form<true, mhla::cuda::NoRotary>>;
};

/// A prepared call on a device, for repeated use.
template <class T, int D, int E>
struct Prepared {
  template <bool kCausal, class R>
  using Form = mhla::cuda::Prepared<D, E, kCausal, T, R>;
  using Any = typename AnyForm<kRotates<T, D>, Form>::type;

  Call call;
  int device;
  Any form;

  Prepared(const Call& of, int which)
      : call(of), device(which), form(prepare(of, mhla::cuda::current_device())) {}

  static Any prepare(const Call& of, const mhla::cuda::Device& device) {
    return with_rotary<T, D>(of, [&]<class R>() -> Any {
      const auto in = inputs<T>(of);
      const auto out = of_type<T>(of.out);
      if (of.causal) {
        return Form<true, R>(in, of.query_blocks, of.key_blocks, of.op, out, device, rotary<R>(of));
      }
      return Form<false, R>(in, of.query_blocks, of.key_blocks, of.op, out, device, rotary<R>(of));
    });
  }
};

/// A prepared gradient on a device, for repeated use.
template <class T, int D, int E>
struct PreparedGradient {
  template <bool kCausal, class R>
  using Form = mhla::cuda::PreparedGradient<D, E, kCausal, T, R>;
  using Any = typename AnyForm<kRotates<T, D>, Form>::type;

  GradientCall call;
  int device;
  Any form;

  PreparedGradient(const GradientCall& of, int which)
      : call(of), device(which), form(prepare(of, mhla::cuda::current_device())) {}

  static Any prepare(const GradientCall& of, const mhla::cuda::Device& device) {
    const Call& forward = of.forward;
    return with_rotary<T, D>(forward, [&]<class R>() -> Any {
      const auto make = [&]<bool kCausal>() {
        return Form<kCausal, R>(inputs<T>(forward), forward.query_blocks, forward.key_blocks,
                                forward.op, of_type<const T>(of.dout), gradients<T>(of), device,
                                rotary<R>(forward), {of_type<const T>(of.out)});
      };
      if (forward.causal) return make.template operator()<true>();
      return make.template operator()<false>();
    });
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
                         void* stream) {
  std::visit(
      [&]<bool kCausal, class R>(mhla::cuda::Prepared<D, E, kCausal, T, R>& form) {
        const mhla::Workspace lent = workspace(form.plan().workspace_bytes);
        form.run(inputs<T>(call), call.mixing, of_type<T>(call.out), lent,
                 static_cast<cudaStream_t>(stream), rotary<R>(call));
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
                         void* stream) {
  std::visit(
      [&]<bool kCausal, class R>(mhla::cuda::PreparedGradient<D, E, kCausal, T, R>& form) {
        const mhla::Workspace lent = workspace(form.plan().workspace_bytes);
        form.run(inputs<T>(call.forward), call.forward.mixing, of_type<const T>(call.dout),
                 gradients<T>(call), lent, static_cast<cudaStream_t>(stream),
                 rotary<R>(call.forward), {of_type<const T>(call.out)});
      },
      prepared<PreparedGradient<T, D, E>>(call, device).form);
}

template struct Forms<MHLA_TYPE, MHLA_WIDTH, MHLA_VALUE_WIDTH>;

}  // namespace mhla_torch
