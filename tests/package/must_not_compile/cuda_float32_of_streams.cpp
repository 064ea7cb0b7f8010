// expect: streams have kernels for bfloat16 and half, not float32
#include "mhla/cuda/attention/streaming_inputs.cuh"

#if defined(MHLA_CONTROL)
using Number = Eigen::half;
#else
using Number = float;
#endif

int main() { return mhla::cuda::detail::has_stream_kernels<Number>() ? 0 : 1; }
