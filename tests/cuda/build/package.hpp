#pragma once

/// \file
/// Calls as the package for PyTorch makes them (package.cu).

namespace stand_in {

/// Expects that calls of known layouts query CUDA for nothing.
void check_package();

/// Prints the host time of a call.
void time_package();

}  // namespace stand_in
