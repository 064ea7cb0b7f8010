// Two units in a program: whether each has what launches kernels for itself (DIFFERENT=1) or both
// share it (0), and that a plan for other instructions than the program has is refused.

#include <cuda_runtime.h>

#include <iostream>
#include <string>

#include "cuda/build/two_units/unit.hpp"

// ---- the runtime: one device, whose code has blocks of up to `most_threads` threads
// --------------

static int most_threads = 0;
static int launches = 0;

extern "C" {
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  attributes->maxThreadsPerBlock = most_threads;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  ++launches;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = 1 << 20, cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "error"; }
const char* cudaGetErrorString(cudaError_t) { return "error"; }
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult*) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGetDriverEntryPoint(const char*, void**, unsigned long long,
                                    cudaDriverEntryPointQueryResult*) {
  return cudaErrorNotSupported;
}
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return cudaErrorNotSupported;
}
cudaError_t __cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return cudaErrorNotSupported;
}
cudaError_t __cudaGetKernel(void**, const void*) { return cudaErrorNotSupported; }
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, cudaStream_t) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) {
  return cudaErrorNotSupported;
}
void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {}
char __cudaInitModule(void**) { return 0; }
}

// ---- the program
// ---------------------------------------------------------------------------------

static int breaches = 0;

static void expect(bool holds, const std::string& breach) {
  if (holds) return;
  std::cout << "breach: " << breach << "\n";
  ++breaches;
}

int main() {
  const two_units::Unit first = two_units::unit<1>(), second = two_units::unit<2>();
  const bool different = DIFFERENT != 0;
  expect((first.current_device != second.current_device) == different, "current_device");
  expect((first.compiled_arch != second.compiled_arch) == different, "compiled_arch");
  expect((first.stream != second.stream) == different, first.stream + " and " + second.stream);

  most_threads = 32;  // code of sm_80
  const std::string said = first.launch(true);
  expect(said.find("the program has code of sm_80") != std::string::npos, "said: " + said);
  expect(launches == 0, "launched all the same");
  expect(first.launch(false).empty() && launches == 1, "refuses a plan for sm_80");
  most_threads = 64;  // code of sm_90a
  expect(first.launch(true).empty() && launches == 2, "refuses a plan for sm_90a");
  return breaches == 0 ? 0 : 1;
}
