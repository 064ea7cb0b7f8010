"""Patterns of mixing matrices: the coefficients that a banded or a sparse matrix has."""

import torch
from torch.nn import functional

from mhla_torch.checks import expect_shape, fail


def expect(name, pattern, shape):
    """Checks a pattern of so many rows and columns."""
    if pattern.dtype is not torch.bool:
        fail(name, "pattern", f"has type {pattern.dtype}", "torch.bool")
    expect_shape(name, "pattern", pattern, shape)


def masked(name, mixing, pattern):
    """The matrices with 0, without gradients, outside of a pattern.   # of the shape of mixing"""
    if mixing.dim() not in (2, 3, 4):
        fail(name, "mixing", f"has {mixing.dim()} axes", "2, 3 or 4")
    expect(name, pattern, mixing.shape[-2:])
    return mixing.masked_fill(~pattern, 0)


def words(pattern, empty=False):
    """A pattern [Mq,Mk] as kernels read it, without waiting for the device.   # int32 [n]

    empty: words without values, which cost nothing
    mhla/cuda/kernel/pattern_bits.cuh has the layout: bits of the strips of 64 rows and 32 columns of
    the matrix that have coefficients, the same of its transpose, and a bit per coefficient.
    """
    if empty:
        rows, columns = pattern.shape
        strips = (-(-m // 64) * -(-n // 1024) for m, n in ((rows, columns), (columns, rows)))
        return pattern.new_empty(sum(strips) + rows * -(-columns // 32), dtype=torch.int32)
    strips = [_packed(_strips(t)) for t in (pattern, pattern.mT)]
    return torch.cat([part.flatten() for part in (*strips, _packed(pattern))])


def _strips(pattern):
    """Whether the strips of a pattern [M,N] have coefficients.   # [ceil(M/64),ceil(N/32)]"""
    rows, columns = pattern.shape
    padded = functional.pad(pattern, [0, -columns % 32, 0, -rows % 64])
    return padded.unflatten(1, (-1, 32)).any(2).unflatten(0, (-1, 64)).any(1)


def _packed(bits):
    """Bits [M,N] in words, the lowest first.   # int32 [M,ceil(N/32)]"""
    padded = functional.pad(bits, [0, -bits.shape[1] % 32]).unflatten(1, (-1, 32))
    places = torch.arange(32, dtype=torch.int32, device=bits.device)
    return (padded.to(torch.int32) << places).sum(-1, dtype=torch.int32)
