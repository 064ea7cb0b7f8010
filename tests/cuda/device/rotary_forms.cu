// The forms with a rotary embedding of one (D, E) and type: MHLA_WIDTH, MHLA_VALUE_WIDTH,
// MHLA_TYPE.

#include "cuda/device/form_views.cuh"
#include "cuda/device/forms.hpp"
#include "mhla/cuda/attention/rotary_inputs.cuh"

namespace device_test {
namespace {

template <int D>
mhla::cuda::Rotary rotary(const FormCall& c) {
  return {{c.query_angles, c.queries(), D, D}, {c.key_angles, c.keys(), D, D}};
}

}  // namespace

template <class T, int D, int E>
FormPlan RotaryForms<T, D, E>::plan(const FormCall& c) {
  return plan_form<T, D, E>(c, rotary<D>(c));
}

template <class T, int D, int E>
void RotaryForms<T, D, E>::run(const FormCall& c, cudaStream_t stream) {
  run_form<T, D, E>(c, rotary<D>(c), stream);
}

template struct RotaryForms<mhla::cuda::MHLA_TYPE, MHLA_WIDTH, MHLA_VALUE_WIDTH>;

}  // namespace device_test
