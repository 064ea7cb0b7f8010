#pragma once

/// \file
/// A hash that identifies data.

#include <cstdint>
#include <span>

namespace examples {

/// FNV-1a of bytes, continued from the hash of earlier bytes.
inline std::uint64_t fnv1a(std::span<const std::uint8_t> bytes,
                           std::uint64_t hash = 0xcbf29ce484222325u) {
  for (const std::uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

}  // namespace examples
