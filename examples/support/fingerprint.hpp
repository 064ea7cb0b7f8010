#pragma once

/// \file
/// What tells data from other data.

#include <cstdint>
#include <span>

namespace examples {

/// FNV-1a of some bytes, behind others of the given hash.
inline std::uint64_t fnv1a(std::span<const std::uint8_t> bytes,
                           std::uint64_t hash = 0xcbf29ce484222325u) {
  for (const std::uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

}  // namespace examples
