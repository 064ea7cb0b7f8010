#pragma once

/// \file
/// A stand-in for the CUDA runtime (runtime.cpp) with one device. It runs no kernel and counts
/// calls.

#include <iostream>
#include <string>
#include <vector>

namespace stand_in {

/// Most threads per block of the device's code, by which the library recognises the architecture of
/// its kernels (launch/device.cuh).
inline int most_threads = 0;

struct Calls {
  int questions = 0;                 ///< cudaFuncGetAttributes
  int settings = 0;                  ///< cudaFuncSetAttribute
  int launches = 0;                  ///< cudaLaunchKernelEx
  std::vector<const void*> encoded;  ///< the tensors of cuTensorMapEncodeTiled
};
inline Calls calls;

inline int breaches = 0;

inline void expect(bool holds, const std::string& breach) {
  if (holds) return;
  std::cout << "breach: " << breach << "\n";
  ++breaches;
}

}  // namespace stand_in
