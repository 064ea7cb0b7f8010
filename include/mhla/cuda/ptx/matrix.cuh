#pragma once

/// \file
/// Loads 8 x 8 matrices of 16-bit numbers from shared memory into the registers of a warp. PTX ISA:
/// ldmatrix.
///
/// Each thread passes the address of a row of 16 bytes: threads 8i..8i+7 pass the rows of matrix i.
/// In word i, thread l gets elements 2(l % 4) and 2(l % 4) + 1 of row l / 4 of matrix i. With a
/// transposed load it gets these elements of column l / 4. All threads of the warp call together.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/words.cuh"

namespace mhla::cuda::ptx {

MHLA_DEVICE Words4 ldmatrix_x4(std::uint32_t row) {
  Words4 w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x[0]), "=r"(w.x[1]), "=r"(w.x[2]), "=r"(w.x[3])
               : "r"(row)
               : "memory");
  return w;
}

MHLA_DEVICE Words4 ldmatrix_x4_trans(std::uint32_t row) {
  Words4 w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x[0]), "=r"(w.x[1]), "=r"(w.x[2]), "=r"(w.x[3])
               : "r"(row)
               : "memory");
  return w;
}

/// Loads two matrices. Threads 16..31 pass valid addresses, which are not used.
MHLA_DEVICE Words2 ldmatrix_x2(std::uint32_t row) {
  Words2 w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(w.x[0]), "=r"(w.x[1])
               : "r"(row)
               : "memory");
  return w;
}

MHLA_DEVICE Words2 ldmatrix_x2_trans(std::uint32_t row) {
  Words2 w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(w.x[0]), "=r"(w.x[1])
               : "r"(row)
               : "memory");
  return w;
}

}  // namespace mhla::cuda::ptx
