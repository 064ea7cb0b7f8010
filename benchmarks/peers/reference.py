"""Sampled output rows by the definitions, in float64, and bounds of float32 errors.

The bounds equal those of the C++ benchmarks (support/definition.hpp). A sum whose longest chain has
m roundings to u has an error of at most g = min(m, 8 sqrt(m)) u, relative to the sum of absolute
values.
"""

import numpy as np

U = 2.0**-24
SAMPLES = 8


def rounding_bound(m):
    chain = np.minimum(m, 8 * np.sqrt(m)) * U
    return chain / (1 - chain)


def _relu(x):
    return np.maximum(x, 0) + np.float64(np.float32(1e-6))


def _weigh(weights, errors, v):
    """The output row of weights [N] and values [N,E], and its bound, from relative errors [N]."""
    size, den = np.abs(weights), weights.sum()
    value = weights @ v / den
    den_error = (errors * size).sum()
    return value, ((errors * size) @ np.abs(v) + np.abs(value) * den_error) / (den - den_error)


def mhla_row(shape, mixing, q, k, v):
    """Row of the query q [D] with mixing coefficients `mixing` [N]: Relu{1e-6} and KeySum."""
    weights = mixing * (_relu(k) @ _relu(q))
    m = shape.block_length + shape.blocks + shape.width + 6
    return _weigh(weights, np.full(len(weights), rounding_bound(m)), v)


def softmax_row(shape, q, k, v):
    """Row of the query q [D], scale 1 / sqrt(D)."""
    scale = np.float64(np.float32(shape.width**-0.5))
    scores = scale * (k @ q)
    below = scores.max() - scores
    of_score = rounding_bound(shape.width + 1) * scale * (np.abs(k) @ np.abs(q))
    sums = rounding_bound(shape.tokens + 4 * (shape.tokens / 64 + 1) + 6)
    return _weigh(np.exp(-below), np.expm1(of_score + U * below + sums), v)


def worst_of_samples(shape, inputs, out, row):
    """Largest error over bound of some rows of out [B,N,H,E]; row(q, k, v, t) is the definition."""
    q, k, v = inputs
    draw = np.random.default_rng(7)
    worst = 0.0
    for _ in range(SAMPLES):
        b, h, t = (draw.integers(size) for size in (shape.batch, shape.heads, shape.tokens))
        exact, bound = row(*(x[b, :, h].astype(np.float64) for x in (q, k, v)), t)
        ratio = np.max(np.abs(out[b, t, h].astype(np.float64) - exact) / bound)
        worst = max(worst, ratio if np.isfinite(ratio) else np.inf)
    return worst
