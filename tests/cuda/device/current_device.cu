#include "cuda/device/forms.hpp"
#include "mhla/cuda/launch/device.cuh"

namespace device_test {

mhla::cuda::Device current_device() { return mhla::cuda::current_device(); }

}  // namespace device_test
