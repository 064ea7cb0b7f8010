#pragma once

/// \file
/// Arrays in the workspace of a gradient, besides the workspaces of its products.

#include "mhla/cuda/launch/workspace_cursor.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// Arrays in the workspace of a gradient. Arrays that the call does not need are null.
struct GradientArrays {
  TokenTensor out, query_features, key_features, dn;
  TokenTensor dquery_features[2], dkey_features[2];
  float *strict, *transposed;            // all mixing matrices
  float *key_sums, *mixed_key_sums;      // z, z~
  float *intra_sums;                     // of denominators
  float *scores, *mixed_scores;          // of the cross-query denominator
  float *weights;                        // c
  float *query_sums, *mixed_query_sums;  // sum of c phi(q), and its mixture
  float *mixed_weights;                  // mixture of c, for the cross-query denominator
  float *inverse_norms, *gain_parts;
  float *mixing_parts, *intra_parts;
  unsigned char *kept;   // S of each thread block of plan.fused
  float *intra_weights;  // m_ii of decaying terms
};

}  // namespace mhla::cuda
