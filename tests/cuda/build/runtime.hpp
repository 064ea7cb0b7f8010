#pragma once

/// \file
/// A CUDA runtime that stands in for the real one (runtime.cpp): one device, no kernel ever runs,
/// and what is asked of it is counted.

#include <iostream>
#include <string>
#include <vector>

namespace stand_in {

/// The code for the device has blocks of up to so many threads: how the library knows which of its
/// kernels it has (launch/device.cuh).
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
