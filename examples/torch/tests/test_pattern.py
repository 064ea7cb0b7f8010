"""Patterns of mixing matrices on the CPU, and the words that kernels on CUDA read."""

import copy

import pytest
import torch

import mhla_torch
from mhla_torch import pattern as patterns
from test_operators import BLOCK, GRID, TOKENS, close, tensors

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
    assert patterns.words(pattern, empty=True).shape == words.shape
    assert words.dtype is torch.int32 and [word % 2**32 for word in words.tolist()] == exact


@pytest.mark.parametrize("pattern, sentence", (
    (BAND.int(), "pattern has type torch.int32, expected torch.bool"),
    (BAND[:3], r"pattern has shape \[3, 4\], expected \[4, 4\]"),
))
def test_errors_say_what_was_expected(pattern, sentence):
    with pytest.raises(ValueError, match="mhla::causal: " + sentence):
        call("causal", *tensors(), pattern=pattern)
    with pytest.raises(ValueError, match="mhla::causal: mixing has 1 axes, expected 2, 3 or 4"):
        call("causal", *tensors()[:3], torch.ones(4), pattern=pattern)
    for option in ("pattern", "save"):
        with pytest.raises(ValueError, match=f"mhla::linear: {option} is given, expected none"):
            mhla_torch.linear(*tensors()[:3], **{option: pattern})


MODULES = {"causal": (24, 6, {"causal": True}), "image": (GRID, BLOCK, {}),
           "prefix": (GRID, BLOCK, {"prefix": 2}), "offsets": (24, 6, {"offsets": (3,)}),
           "causal offsets": (24, 6, {"offsets": (3,), "causal": True}),
           "image offsets": (GRID, BLOCK, {"offsets": (3, 3), "prefix": 1})}


@pytest.mark.parametrize("name", MODULES)
def test_modules_keep_to_their_pattern(name):
    tokens, block, options = MODULES[name]
    prefix = options.get("prefix", 0)
    pattern = torch.nn.functional.pad(BAND, [int(prefix > 0), 0] * 2, value=True)
    module = mhla_torch.MHLA(tokens, block, pattern=pattern, layout="bnhd", **options).double()
    assert list(module.state_dict()) == ["mixing"] and module.to("cpu").pattern.equal(pattern)
    assert module.pattern.data_ptr() != pattern.data_ptr()
    empty = copy.deepcopy(module).to("meta")
    assert empty.pattern.is_meta and empty.to_empty(device="cpu").pattern.equal(pattern)
    empty = copy.deepcopy(module).to("meta")
    empty.load_state_dict(module.state_dict(), assign=True)
    assert empty.pattern.equal(pattern)
    for count in (TOKENS + prefix, 12)[:1 if name in ("image", "prefix", "image offsets") else 2]:
        q, k, v, _ = tensors(tokens=count)
        blocks = len(pattern) if count > 12 else 2
        matrix = module.matrix(count)[:blocks, :blocks]
        assert not matrix[~pattern[:blocks, :blocks]].any()
        if "offsets" in name or count > 12:
            close(matrix.sum(1), torch.ones_like(matrix[0]), 1e-6)
        out = mhla_torch.causal(q, k, v, matrix, block=6) if "causal" in name else (
            mhla_torch.bidirectional(q, k, v, matrix, grid=() if tokens == 24 else GRID,
                                     block=(6,) if tokens == 24 else BLOCK, prefix=prefix))
        close(module(q, k, v), out)
        module(q, k, v).sum().backward()
        assert module.mixing.grad.any() and torch.isfinite(module.mixing.grad).all()


def test_modules_that_were_pickled_before_have_no_pattern():
    module = mhla_torch.MHLA(24, 6, causal=True, layout="bnhd").double()
    state = {name: value for name, value in module.__dict__.items()
             if name not in ("decays", "offsets")} | {"_buffers": {}}
    old = mhla_torch.MHLA.__new__(mhla_torch.MHLA)
    old.__setstate__(state)
    assert torch.equal(old(*tensors()[:3]), module(*tensors()[:3]))
    assert old.matrix() is module.mixing and old.cpu().pattern is None


@pytest.mark.parametrize("options, sentence", (
    ({"pattern": BAND[:3]}, r"pattern has shape \[3, 4\], expected \[4, 4\]"),
    ({"pattern": BAND.int()}, "pattern has type torch.int32, expected torch.bool"),
    ({"pattern": BAND, "decays": 2, "causal": True}, "pattern is given with decays"),
    ({"key_block": (8,)}, "key_block is given, expected none: keys have the blocks of the queries"),
    ({"key_grid": (8,), "offsets": (3,)}, "key_grid is given, expected none"),
))
def test_modules_refuse_other_patterns_and_blocks(options, sentence):
    with pytest.raises(ValueError, match="MHLA: " + sentence):
        mhla_torch.MHLA(24, 6, **options)


def test_modules_refuse_calls_beyond_their_pattern():
    module = mhla_torch.MHLA(24, 6, offsets=(3,), pattern=BAND, layout="bnhd").double()
    with pytest.raises(ValueError, match=r"MHLA: pattern has shape \[4, 4\], expected \[5, 5\]"):
        module(*tensors(tokens=30)[:3])
    for option in ({"pattern": BAND}, {"key_prefix": 2}):
        with pytest.raises(ValueError, match=f"MHLA: {next(iter(option))} is given, expected"):
            module(*tensors()[:3], **option)
    image = mhla_torch.MHLA(GRID, BLOCK, pattern=BAND)
    image.resize_((8, 12), (4, 6))
    with pytest.raises(ValueError, match=r"pattern of \[2, 2\] blocks, got \[4, 2\], expected"):
        image.resize_((16, 12))


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
