#pragma once

/// \file
/// The self-attention layer of the authors' video models (Wan2.1). For B videos of N tokens in
/// raster order and C channels in H heads of D:
///
///     q, k, v = x Wq^T + bq, ...,   q, k = rms_norm(q), rms_norm(k)                 [B*N, C] each
///     f(.)    = relu(.) + eps
///     a       = MHLA(rotary(f(q)), rotary(f(k)), v), its denominators of f(q), f(k) [B*N, C]
///     m       = rms_norm(a) of every head * silu(x Wg^T + bg) + convolution(v)      [B*N, C]
///     y       = m Wo^T + bo                                                         [B*N, C]
///
/// The gate, the convolution (LePE, depthwise 3 x 3 x 3) and the normaliser are options; released
/// models have no normaliser. With VideoOptions::softmax, a is softmax attention of rotary(q),
/// rotary(k) and v. Cost: 8*N*C^2 flops for the projections, 10*N*C^2 with a gate, and
/// 4*N*C*D + 2*M^2*C*D for MHLA; about 8*N*C numbers are kept. Source: arXiv:2601.07832, section
/// 4.1, and the released layers.

#include "mhla/core/arch.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/video_backward.hpp"
#include "mhla/layer/video_body.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The layer: layer.hpp documents it.
template <Accumulator A>
using VideoLayer = Layer<detail::VideoBody<A>>;

}  // namespace MHLA_TARGET
}  // namespace mhla
