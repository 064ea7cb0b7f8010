#pragma once

/// \file
/// Operands of wgmma: the 64-bit descriptor of a factor B in shared memory, and the fragments of A
/// and C in registers. PTX ISA, "Matrix Descriptor Format", "Register Fragments"; CUTLASS,
/// mma_traits_sm90_gmma.hpp. It covers what ptx/wgmma.cuh offers: 16-bit numbers, the swizzle of
/// 128 bytes, atoms that begin at multiples of 1024.
///
/// Let T = 8 numbers be a piece of 16 bytes. Before the swizzle, the two layouts of B[16,n] are
///
///     [n][16]   ((8, n/8), (T, 2))    : ((128, stride), (2, 16))          bytes
///     [16][n]   ((T, 8, n/64), (8, 2)) : ((2, 16, leading), (128, stride))

#include <cstdint>
#include <string>

namespace emulator {

/// Applies the swizzle of 128 bytes to an address: bits 4 to 6 (the piece in the row) are XORed
/// with bits 7 to 9 (the row).
constexpr std::uint32_t swizzled(std::uint32_t address) {
  return address ^ (((address >> 7) & 7) << 4);
}

/// Fields of a descriptor, in bytes.
struct Descriptor {
  explicit constexpr Descriptor(std::uint64_t word)
      : bits(word),
        start(static_cast<std::uint32_t>(word & 0x3fff) << 4),
        leading(static_cast<std::uint32_t>((word >> 16) & 0x3fff) << 4),
        stride(static_cast<std::uint32_t>((word >> 32) & 0x3fff) << 4) {}

  /// Address of the two bytes of B[k, n].
  constexpr std::uint32_t address(bool transposed, std::uint32_t k, std::uint32_t n) const {
    if (transposed) {
      return swizzled(start + n / 64 * leading + k / 8 * stride + k % 8 * 128 + n % 64 * 2);
    }
    return swizzled(start + n / 8 * stride + n % 8 * 128 + k * 2);
  }

  /// Calls visit(address, k, n) for the 16-byte pieces of B[16,n], each with eight k from k on, or
  /// if transposed eight n from n on.
  template <class Visit>
  void for_each_piece(bool transposed, std::uint32_t columns, Visit visit) const {
    for (std::uint32_t k = 0; k < 16; k += transposed ? 1 : 8) {
      for (std::uint32_t n = 0; n < columns; n += transposed ? 8 : 1) {
        visit(address(transposed, k, n), k, n);
      }
    }
  }

  std::uint64_t bits;
  std::uint32_t start;
  std::uint32_t leading;
  std::uint32_t stride;
};

/// Returns why the descriptor of a factor of n columns is invalid; empty if it is valid.
inline std::string complaint(const Descriptor& d, bool transposed, int n);

/// Returns the row of C[64,n] that register i of thread t of the warpgroup holds, t = 0 to 127. For
/// A[64,16] i is the word.
constexpr int accumulator_row(int t, int i) {
  return t / 32 * 16 + t % 32 / 4 + (i % 4 >= 2 ? 8 : 0);
}
constexpr int factor_row(int t, int i) { return t / 32 * 16 + t % 32 / 4 + (i % 2 == 1 ? 8 : 0); }

/// Returns the column that this register holds; for A the first of two columns.
constexpr int accumulator_column(int t, int i) { return i / 4 * 8 + t % 4 * 2 + i % 2; }
constexpr int factor_column(int t, int i) { return t % 4 * 2 + (i >= 2 ? 8 : 0); }

// -------------------------------------------------------------------------------------------------

inline std::string complaint(const Descriptor& d, bool transposed, int n) {
  constexpr std::uint64_t kFields = 0xc00e3fff3fff3fffU;
  const auto number = [](std::uint64_t x) { return std::to_string(x); };
  if ((d.bits & ~kFields) != 0) return "bits that have no meaning are set";
  if (d.bits >> 62 != 1) return "swizzle mode " + number(d.bits >> 62) + ", not 1 (128 bytes)";
  if (((d.bits >> 49) & 7) != 0) return "base offset " + number((d.bits >> 49) & 7) + ", not 0";
  if (d.stride % 1024 != 0) return "stride offset " + number(d.stride) + ", no multiple of 1024";
  if (transposed && n > 64 && d.leading % 1024 != 0) {
    return "leading offset " + number(d.leading) + ", no multiple of 1024";
  }
  // Inside an atom, only the columns of the first row are documented as starts.
  const std::uint32_t inside = d.start % 1024;
  if (transposed ? inside != 0 : inside % 32 != 0 || inside > 96) {
    return "start " + number(d.start) + " is " + number(inside) + " bytes into the swizzled atom";
  }
  return {};
}

}  // namespace emulator
