#pragma once

/// \file
/// The CPU library, in the order of data flow. Needs Eigen and nothing else.

// Vocabulary.
#include "mhla/core/allocator.hpp"  // Allocator: memory in large pages
#include "mhla/core/call.hpp"       // Call: workspace, executor, kept
#include "mhla/core/error.hpp"      // shape_error, option_error
#include "mhla/core/executor.hpp"   // Sequential, ThreadPool
#include "mhla/core/matrix.hpp"     // Matrix, MatrixView, Mask
#include "mhla/core/scalar.hpp"     // Scalar, accumulator_t
#include "mhla/core/tensor.hpp"     // TensorView over [B, N, H, D]
#include "mhla/core/version.hpp"    // kVersion
#include "mhla/core/workspace.hpp"  // Workspace

// 1. Feature maps of queries and keys.
#include "mhla/policy/by_name.hpp"              // feature_map("relu"), normalizer("key_sum")
#include "mhla/policy/feature_map.hpp"          // Relu, EluPlusOne, Identity, Exp, Elementwise
#include "mhla/policy/learned_feature_map.hpp"  // Hedgehog, T2R, Dpfp, ElementwiseProduct

// 2. Blocks of tokens.
#include "mhla/policy/grid_partition.hpp"  // Grid, suggest_grid
#include "mhla/policy/partition.hpp"       // Contiguous, BlockSizes, suggest_blocks

// 3. Summaries of blocks: stage/summary.hpp, used by the forms.

// 4. Mixing of summaries.
#include "mhla/policy/decay_mixing.hpp"          // DecayMixing: a sum of decaying terms
#include "mhla/policy/distance_derivatives.hpp"  // tangent and gradient of DistanceMixing
#include "mhla/policy/distance_mixing.hpp"       // DistanceMixing: a table over offsets of blocks
#include "mhla/policy/gate.hpp"                  // gate_mixing: factors that depend on the data
#include "mhla/policy/locality.hpp"              // locality: initial coefficients
#include "mhla/policy/mixing_constraints.hpp"    // clamp, normalize_rows: after steps of training
#include "mhla/policy/mixing_matrix.hpp"         // MixingMatrix, per_head

// 5. Read-out.
#include "mhla/policy/normalizer.hpp"  // NoNormalizer, KeySum, CrossQuery

// The forms, for one head or for a batch [B, N, H, D].
#include "mhla/attention/batch.hpp"            // BatchInputs, CrossBlocks
#include "mhla/attention/bidirectional.hpp"    // every query reads every key
#include "mhla/attention/block_causal.hpp"     // a query reads its own step and earlier ones whole
#include "mhla/attention/block_streaming.hpp"  // the same step by step
#include "mhla/attention/causal.hpp"           // every query reads the past
#include "mhla/attention/causal_decay.hpp"     // causal with DecayMixing
#include "mhla/attention/diagnose.hpp"         // rank and entropy of the attention matrix
#include "mhla/attention/linear.hpp"           // the baseline with one block
#include "mhla/attention/naive.hpp"            // the definition
#include "mhla/attention/operator.hpp"         // Operator, Inputs
#include "mhla/attention/softmax.hpp"          // the usual baseline
#include "mhla/attention/streaming.hpp"        // the causal form token by token
#include "mhla/attention/streaming_state.hpp"  // state of a stream

// Their gradients.
#include "mhla/gradient/bidirectional.hpp"  // bidirectional_gradient
#include "mhla/gradient/block_causal.hpp"   // block_causal_gradient
#include "mhla/gradient/causal.hpp"         // causal_gradient
#include "mhla/gradient/causal_decay.hpp"   // causal_gradient with DecayMixing
#include "mhla/gradient/gradients.hpp"      // Gradients, ParameterGradients
#include "mhla/gradient/linear.hpp"         // linear_bidirectional_gradient, linear_causal_gradient
#include "mhla/gradient/softmax.hpp"  // softmax_bidirectional_gradient, softmax_causal_gradient

// Their tangents: derivatives along a direction.
#include "mhla/tangent/bidirectional.hpp"  // bidirectional_tangent
#include "mhla/tangent/block_causal.hpp"   // block_causal_tangent
#include "mhla/tangent/causal.hpp"         // causal_tangent
#include "mhla/tangent/linear.hpp"         // linear_bidirectional_tangent, linear_causal_tangent
#include "mhla/tangent/naive.hpp"          // naive_tangent: the definition
#include "mhla/tangent/softmax.hpp"        // softmax_bidirectional_tangent, softmax_causal_tangent
#include "mhla/tangent/tangents.hpp"       // Tangents, ParameterTangents, WithTangent

// Mixing matrices without training.
#include "mhla/fit/change_bound.hpp"  // mixing_change_bound: how far outputs can move
#include "mhla/fit/fit_decay.hpp"     // fit_decay: DecayMixing to targets or to a matrix
#include "mhla/fit/fit_distance.hpp"  // fit_distance: DistanceMixing to targets or to matrices
#include "mhla/fit/fit_mixing.hpp"    // fit_mixing: to the outputs of another attention
#include "mhla/fit/mixing_fit.hpp"    // MixingFit: from many examples
#include "mhla/fit/nonnegative.hpp"   // nonnegative_least_squares
#include "mhla/fit/resize.hpp"        // resize: for another grid of blocks
#include "mhla/fit/suggest.hpp"       // suggest_from_data: residual by number of blocks
