#pragma once

/// \file
/// Causal attention and its gradient over ranks of MPI, for tests of ranks that fail.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "mhla/distributed/causal.hpp"
#include "mhla/distributed/mpi.hpp"
#include "mhla/policy/locality.hpp"

namespace mhla::test {

/// A rank's tokens and results, in blocks of four tokens.
struct RankShare {
  Index blocks;  // of all ranks
  Matrix<float> q, k, v, out, dq, dk, dv;
  MixingMatrix<float> mixing = uniform_causal<float>(blocks), dmixing = mixing;

  /// \param width  of features and values
  RankShare(int rank, int ranks, Index width) : blocks(4 * ranks - 1) {
    const Index rows = rank == 0 ? 12 : 16;
    Index number = 11 * rank;
    for (Matrix<float>* m : {&q, &k, &v}) {
      m->resize(rows, width);
      for (Index i = 0; i < m->size(); ++i) {
        number = (number * 37 + 5) % 64;
        m->data()[i] = static_cast<float>(number) / 64;
      }
    }
    out = dq = dk = dv = q;
  }

  void run(distributed::MpiRank& rank, const Call& call) {
    for (Matrix<float>* m : {&out, &dq, &dk, &dv}) m->setZero();
    std::fill(dmixing.storage().begin(), dmixing.storage().end(), 0.0f);
    const ContiguousBlocks four{4};
    distributed::causal(rank, inputs(q, k, v), four, mixing, Operator<>(), out, call);
    distributed::causal_gradient(rank, inputs(q, k, v), four, mixing, Operator<>(), v,
                                 {.q = dq, .k = dk, .v = dv}, {.mixing = dmixing}, call);
  }

  /// Adds the bits of all results to a hash (FNV-1a).
  std::uint64_t hash(std::uint64_t h = 0xcbf29ce484222325u) const {
    const auto add = [&h](const float* numbers, std::size_t count) {
      const auto* const bytes = reinterpret_cast<const unsigned char*>(numbers);
      for (std::size_t i = 0; i < count * sizeof(float); ++i) h = (h ^ bytes[i]) * 0x100000001b3u;
    };
    for (const Matrix<float>* m : {&out, &dq, &dk, &dv}) {
      add(m->data(), static_cast<std::size_t>(m->size()));
    }
    add(dmixing.storage().data(), dmixing.storage().size());
    return h;
  }
};

}  // namespace mhla::test
