#pragma once

/// \file
/// ldmatrix and mma.sync, which a warp executes together. Counted by warp: "matrix loads", "mma".
///
/// A product adds to each element of C the exact products of its 16-bit factors one by one, k
/// ascending, each sum rounded to float. A GPU may round differently: results agree up to rounding.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulator/banks.hpp"
#include "emulator/block.hpp"
#include "emulator/group.hpp"

namespace emulator {

inline const Counter kMatrixLoads{"matrix loads"};
inline const Counter kProducts{"mma"};

/// Loads a word of each matrix for each thread. The word of matrix i holds elements 2(l % 4) and
/// 2(l % 4) + 1 of row l / 4, or transposed of column l / 4. The thread that passes a row's address
/// reads the row.
template <class Words>
Words load_matrices(std::uint32_t row, bool transposed) {
  constexpr int kMatrices = std::extent_v<decltype(Words::x)>;
  Words words;
  struct Arguments {
    Actor who;
    std::uint32_t row;
    std::uint32_t* words;
  } mine{current().who(), row, words.x};
  const auto together = [transposed](Arguments* const(&all)[32]) {
    Block& block = current();
    block.add(kMatrixLoads);
    std::uint16_t matrix[8][8];
    std::uint32_t addresses[8];
    for (int i = 0; i < kMatrices; ++i) {
      for (int r = 0; r < 8; ++r) {
        const Arguments& a = *all[8 * i + r];
        block.shared.check(a.who, a.row, 16, 16, "ldmatrix");
        block.shared.read(a.who, a.row, 16, matrix[r], "ldmatrix");
        addresses[r] = a.row;
      }
      block.conflicts += phase_conflicts(addresses, 8, 16);
      for (int l = 0; l < 32; ++l) {
        const int r = l / 4, c = 2 * (l % 4);
        const std::uint32_t low = transposed ? matrix[c][r] : matrix[r][c];
        const std::uint32_t high = transposed ? matrix[c + 1][r] : matrix[r][c + 1];
        all[l]->words[i] = low | high << 16;
      }
    }
  };
  call_together<32>("ldmatrix", 2 * kMatrices + (transposed ? 1 : 0), mine, together);
  return words;
}

/// Computes C[16,8] += A[16,kK] B[kK,8]. Fragments are those of ptx/mma.cuh, with kK / 4 words of A
/// and kK / 8 of B. kNumber converts 16 bits to float. `type` distinguishes products of different
/// types.
template <int kK, float (*kNumber)(std::uint16_t)>
void multiply_add(float (&c)[4], const std::uint32_t (&a)[kK / 4], const std::uint32_t (&b)[kK / 8],
                  std::uint64_t type) {
  struct Arguments {
    float* c;
    const std::uint32_t *a, *b;
  } mine{c, a, b};
  const auto together = [](Arguments* const(&all)[32]) {
    current().add(kProducts);
    float left[16][kK], right[kK][8], sums[16][8];
    const auto part = [](std::uint32_t word, int i) {
      return kNumber(static_cast<std::uint16_t>(word >> 16 * i));
    };
    for (int l = 0; l < 32; ++l) {
      const int g = l / 4, p = 2 * (l % 4);
      for (int i = 0; i < 2; ++i) {
        for (int w = 0; w < kK / 4; ++w)
          left[g + w % 2 * 8][p + w / 2 * 8 + i] = part(all[l]->a[w], i);
        for (int w = 0; w < kK / 8; ++w) right[p + w * 8 + i][g] = part(all[l]->b[w], i);
        for (int h = 0; h < 2; ++h) sums[g + 8 * h][p + i] = all[l]->c[2 * h + i];
      }
    }
    for (int r = 0; r < 16; ++r) {
      for (int k = 0; k < kK; ++k) {
        for (int n = 0; n < 8; ++n) sums[r][n] += left[r][k] * right[k][n];
      }
    }
    for (int l = 0; l < 32; ++l) {
      for (int i = 0; i < 4; ++i) all[l]->c[i] = sums[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2];
    }
  };
  call_together<32>("mma", 256 * type + kK, mine, together);
}

}  // namespace emulator
