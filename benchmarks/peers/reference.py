"""Sampled output rows and gradients by the definitions, in float64, and bounds of float32 errors.

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


def _gradient(mixing, q, k, v, y, sign):
    """Gradients of features q, k [M,W,D], of v [M,W,E] and mixing [M,M], given y = do [M,W,E].

    sign is -1. With sign 1 and absolute values, the sums of absolute values of the terms.
    """
    ones = np.ones((*v.shape[:2], 1))
    summaries = k.transpose(0, 2, 1) @ np.concatenate((v, ones), 2)  # S_b and z_b [M,D,E+1]
    mixed = np.tensordot(mixing, summaries, 1)
    out = q @ mixed
    den = out[..., -1:]
    delta = (out[..., :-1] * y).sum(-1, keepdims=True) / den
    dn = np.concatenate((y, sign * delta), 2) / den  # [M,W,E+1]
    dmixed = q.transpose(0, 2, 1) @ dn
    dsummaries = np.tensordot(mixing.T, dmixed, 1)
    flat = (len(mixing), -1)
    return (dn @ mixed.transpose(0, 2, 1),
            np.concatenate((v, ones), 2) @ dsummaries.transpose(0, 2, 1),
            k @ dsummaries[..., :-1], dmixed.reshape(flat) @ summaries.reshape(flat).T)


def worst_of_gradients(shape, mixing, inputs, dout, computed):
    """Largest error over bound of dq, dk, dv [B,N,H,.] and dmixing [M,M] of MHLA, all elements.

    A term of the sums has at most 2 (W + M) + D + E + 16 roundings and two divisions by a
    denominator with a smaller error. Terms of dmixing have D E more, and one per head.
    """
    order = np.argsort(shape.block_of(), kind="stable").reshape(shape.blocks, -1)  # [M,W]
    roundings = 2 * (shape.block_length + shape.blocks) + shape.width + shape.values + 16
    bound = 3 * rounding_bound(roundings)
    worst, total, size = 0.0, np.zeros(mixing.shape), np.zeros(mixing.shape)
    mixing = mixing.astype(np.float64)
    for b in range(shape.batch):
        for h in range(shape.heads):
            q, k, v, y = (x[b, :, h][order].astype(np.float64) for x in (*inputs, dout))
            features = (_relu(q), _relu(k))
            exact = _gradient(mixing, *features, v, y, -1)
            sizes = _gradient(mixing, *features, np.abs(v), np.abs(y), 1)
            slopes = (q > 0, k > 0, 1)
            for x, e, s, slope in zip(computed, exact, sizes, slopes):
                error = np.abs(x[b, :, h][order] - slope * e) / (bound * s)
                worst = max(worst, np.max(error) if np.isfinite(error).all() else np.inf)
            total += exact[3]
            size += sizes[3]
    bound = 3 * rounding_bound(roundings + shape.width * shape.values + shape.batch * shape.heads)
    error = np.abs(computed[3] - total) / (bound * size)
    return max(worst, np.max(error) if np.isfinite(error).all() else np.inf)


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
