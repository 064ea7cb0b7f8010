"""Patterns of mixing matrices on the CPU, and the words that kernels on CUDA read."""

import pytest
import torch

import mhla_torch
from mhla_torch import pattern as patterns
from test_operators import BLOCK, GRID, TOKENS, tensors

BAND = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]]).bool()


def call(kind, q, k, v, mixing, **options):
    if kind == "causal":
        return mhla_torch.causal(q, k, v, mixing, block=6, **options)
    return mhla_torch.bidirectional(q, k, v, mixing, grid=GRID, block=BLOCK, **options)


@pytest.mark.parametrize("kind", ("bidirectional", "causal"))
@pytest.mark.parametrize("backend", ("kernels", "formula"))
@pytest.mark.parametrize("leading", ((), (3,)))
def test_coefficients_outside_are_zeros_without_gradients(kind, backend, leading):
    q, k, v, _ = tensors()
    mixing = torch.rand(*leading, 4, 4, dtype=torch.float64, requires_grad=True)
    options = {"normalizer": "none", "backend": backend}
    out = call(kind, q, k, v, mixing, pattern=BAND, **options)
    assert torch.equal(out, call(kind, q, k, v, mixing * BAND, **options))
    gradient, = torch.autograd.grad(out.square().sum(), mixing)
    inside = BAND if kind == "bidirectional" else BAND.tril()
    assert ((gradient != 0) == inside).all()


@pytest.mark.parametrize("rows, columns", ((1, 1), (64, 32), (65, 33), (130, 1030), (1100, 40)))
def test_words_have_bits_of_strips_and_of_coefficients(rows, columns):
    pattern = torch.rand(rows, columns, generator=torch.Generator().manual_seed(1)) < 0.002
    pattern[-1, -1] = True
    bits = []

    def add(rows):
        """Adds rows of bits, each of whole words."""
        for row in rows:
            bits.extend(row + [False] * (-len(row) % 32))

    for m in (pattern, pattern.T):
        add([[bool(strip.any()) for strip in tile.split(32, 1)] for tile in m.split(64)])
    add(pattern.tolist())
    exact = [sum(bit << i for i, bit in enumerate(bits[at:at + 32]))
             for at in range(0, len(bits), 32)]
    words = patterns.words(pattern)
    assert words.dtype is torch.int32 and [word % 2**32 for word in words.tolist()] == exact


@pytest.mark.parametrize("pattern, sentence", (
    (BAND.int(), "pattern has type torch.int32, expected torch.bool"),
    (BAND[:3], r"pattern has shape \[3, 4\], expected \[4, 4\]"),
))
def test_errors_say_what_was_expected(pattern, sentence):
    with pytest.raises(ValueError, match="mhla::causal: " + sentence):
        call("causal", *tensors(), pattern=pattern)


def test_words_are_of_the_blocks_of_a_call():
    """A sequence reads the leading part of a larger matrix, and the pattern's part is as large."""
    from mhla_torch.registration import block_counts
    q, k, *_ = tensors()
    named = {"q": q, "k": k[:, :7]}
    assert block_counts(named | {"block": 5}) == [5, 2]
    sequence = {"grid": [], "block": [5], "prefix": 4}
    assert block_counts(named | sequence) == [5, 2]
    assert block_counts(named | sequence | {"max_queries": 9, "max_keys": 4}) == [2, 1]
    image = {"key_grid": [3, 2], "key_block": [2, 1], "key_prefix": 1}
    assert block_counts(named | sequence | image) == [5, 5]
    first = {name: t.transpose(1, 2) for name, t in named.items()}
    assert block_counts(first | {"block": 5, "layout": "bhnd"}) == [5, 2]
    assert TOKENS == q.shape[1]
