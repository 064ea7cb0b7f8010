#pragma once

/// \file
/// A program of two units (unit.cu), with a CUDA runtime that stands in (runtime.hpp).

#include <string>

namespace two_units {

/// Functions of mhla::cuda, as a unit has them.
struct Unit {
  const void* current_device;
  const void* compiled_arch;
  std::string stream;                 ///< the name of Stream
  std::string (*launch)(bool sm90a);  ///< a kernel of a plan for sm_90a or sm_80; what was thrown
};

template <int kNumber>
Unit unit();

}  // namespace two_units
