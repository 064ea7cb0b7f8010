#pragma once

/// \file
/// The version of the library; CMakeLists.txt reads it from here.
///
/// Semantic versioning: while the major version is 0, a new minor version may change the interface
/// or the last bits of results; .github/CHANGELOG.md lists them.

/// The version in names of functions and types: core/arch.hpp.
#define MHLA_VERSION v0_2_0

namespace mhla {
inline namespace MHLA_VERSION {

inline constexpr char kVersion[] = "0.2.0";

}  // namespace MHLA_VERSION
}  // namespace mhla
