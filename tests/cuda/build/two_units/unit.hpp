#pragma once

/// \file
/// A program of two units (unit.cu) with a stand-in for the CUDA runtime (runtime.hpp).

#include <string>

namespace two_units {

/// Functions of mhla::cuda in one unit.
struct Unit {
  const void* current_device;
  const void* compiled_arch;
  std::string stream;                 ///< name of the type Stream
  std::string (*launch)(bool sm90a);  ///< launches a kernel of a plan; returns the error
};

template <int kNumber>
Unit unit();

}  // namespace two_units
