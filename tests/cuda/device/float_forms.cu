// The forms of float32 tensors of one (D, E): MHLA_WIDTH, MHLA_VALUE_WIDTH. They have no streams.

#include "cuda/device/form_views.cuh"
#include "cuda/device/forms.hpp"

namespace device_test {

template <class T, int D, int E>
FormPlan Forms<T, D, E>::plan(const FormCall& c) {
  return plan_form<T, D, E>(c, mhla::cuda::NoRotary{});
}

template <class T, int D, int E>
void Forms<T, D, E>::run(const FormCall& c, cudaStream_t stream) {
  run_form<T, D, E>(c, mhla::cuda::NoRotary{}, stream);
}

template FormPlan Forms<float, MHLA_WIDTH, MHLA_VALUE_WIDTH>::plan(const FormCall&);
template void Forms<float, MHLA_WIDTH, MHLA_VALUE_WIDTH>::run(const FormCall&, cudaStream_t);

}  // namespace device_test
