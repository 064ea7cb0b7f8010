#pragma once

/// \file
/// Calls as the package for PyTorch makes them (package.cu).

namespace stand_in {

/// Expects that calls of layouts that were made before ask CUDA nothing.
void check_package();

/// Prints what a call costs the host.
void time_package();

}  // namespace stand_in
