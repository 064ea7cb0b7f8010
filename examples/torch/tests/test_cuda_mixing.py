"""Decaying terms, patterns and blocks of keys on a CUDA device, and with fake tensors.

Tests of numbers are skipped without a device.
"""

import pytest
import torch

import mhla_torch
from cuda_calls import call, extras, KINDS, on_device, TAKEN, tensors
from mhla_torch import operators
from mhla_torch import pattern as patterns
from test_cuda_device import expect_right_gradients


def terms_of(*leading, count=4):
    return torch.rand(*leading, 2, count, generator=torch.Generator().manual_seed(4))


def decaying(q, k, v, terms, **options):
    return mhla_torch.causal(q, k, v, terms, block=6, decaying=True, **options)


@on_device
@pytest.mark.parametrize("widths, dtype", TAKEN)
@pytest.mark.parametrize("tokens", (24, 600))
def test_decaying_terms_equal_the_formula(widths, dtype, tokens):
    q, k, v, _ = tensors(widths, (tokens, tokens), dtype)
    more = extras(widths, (tokens, tokens), dtype, device="cuda") | {"normalizer": "none"}
    if widths[0] == 256:
        del more["gain"], more["gate"]
    for leading in ((), (3,), (2, 3)):
        for options in ({"eps": 0.25}, more):
            expect_right_gradients(lambda *t, **o: decaying(*t, **options, **o), q, k, v,
                                   terms_of(*leading))


@on_device
@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
@pytest.mark.parametrize("tokens", (24, 600))
def test_patterns_equal_the_formula(kind, dtype, tokens):
    blocks = tokens // 6
    places = torch.arange(blocks, device="cuda")
    pattern = (places[:, None] - places).abs() < 3
    q, k, v, _ = tensors(tokens=(tokens, tokens), dtype=dtype)
    expect_right_gradients(lambda *t, **o: call(kind, *t, pattern=pattern, eps=0.5, **o), q, k, v,
                           torch.rand(blocks, blocks))


@on_device
@torch.no_grad()
def test_a_pattern_can_be_captured_in_a_graph():
    arguments = [t.cuda() for t in tensors(tokens=(600, 600))]
    pattern = torch.ones(100, 100, dtype=torch.bool, device="cuda").tril(2)
    call("bidirectional", *arguments, pattern=pattern)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call("bidirectional", *arguments, pattern=pattern)
    pattern.copy_(torch.ones_like(pattern).triu(-1))
    graph.replay()
    assert torch.equal(out, call("bidirectional", *arguments, pattern=pattern))


@on_device
@pytest.mark.parametrize("widths, dtype", TAKEN)
@pytest.mark.parametrize("blocks, rows, columns", (
    ({"grid": (24, 30), "block": (12, 15), "key_block": (5,)}, 4, 8),
    ({"grid": (24, 30), "block": (3, 5), "key_grid": (2, 4, 5), "key_block": (1, 4, 5)}, 48, 2)))
def test_keys_of_their_own_blocks_equal_the_formula(widths, dtype, blocks, rows, columns):
    expect_right_gradients(lambda *t, **o: mhla_torch.bidirectional(*t, **blocks, eps=0.5, **o),
                           *tensors(widths, (720, 40), dtype)[:3], torch.rand(rows, columns))


# ---- without a device ---------------------------------------------------------------------------

def calls_of(monkeypatch):
    """Arguments of later calls of operators."""
    calls, run = [], operators._run
    monkeypatch.setattr(operators, "_run", lambda name, named: calls.append(named) or
                        run(name, named))
    return calls


@pytest.mark.parametrize("leading", ((), (3,), (2, 3)))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
def test_kernels_take_up_to_32_terms(with_kernels, leading, dtype):
    for count in (32, 33):
        with torch._subclasses.FakeTensorMode():
            q, k, v, _ = tensors(dtype=dtype, device="cuda")
            took = decaying(q, k, v, torch.empty(*leading, 2, count, device="cuda"), explain=True)
        assert took.reason == ("" if count == 32 else "mixing has 33 decaying terms, expected at "
                               "most 32 on CUDA")


@pytest.mark.parametrize("kind", KINDS[:2])
def test_kernels_get_the_words_of_a_pattern(with_kernels, monkeypatch, kind):
    calls = calls_of(monkeypatch)
    with torch._subclasses.FakeTensorMode():
        q, k, v, _ = tensors(tokens=(600, 600), device="cuda")
        pattern = torch.empty(130, 130, dtype=torch.bool, device="cuda")
        mixing = torch.empty(130, 130, device="cuda")  # of which a call reads [100,100]
        call(kind, q, k, v, mixing, pattern=pattern, backend="kernels")
        with pytest.raises(ValueError, match="pattern is on cpu, expected cuda:0"):
            call(kind, q, k, v, mixing, pattern=torch.empty(130, 130, dtype=torch.bool))
        monkeypatch.setattr(patterns, "_packed", None)  # explaining makes no words
        assert call(kind, q, k, v, mixing, pattern=pattern, explain=True).backend == "kernels"
    named, = calls
    assert named["pattern"].shape == (2 + 2 + 100 * 4,) and named["pattern"].dtype is torch.int32


def test_packed_images_have_keys_of_a_known_length(with_kernels, monkeypatch):
    calls = calls_of(monkeypatch)
    with torch._subclasses.FakeTensorMode():
        q, k, v, mixing = tensors(batch=1, device="cuda")
        ends = [torch.empty(3, dtype=torch.int32, device="cuda") for _ in range(2)]
        options = {"grid": (3, 4), "block": (3, 2), "key_block": (6,), "query_offsets": ends[0],
                   "key_offsets": ends[1]}
        took = mhla_torch.bidirectional(q, k, v, mixing[:2], **options, explain=True)
        assert took.reason == ("max_keys is absent, expected the tokens of the longest sequence on "
                               "CUDA")
        mhla_torch.bidirectional(q, k, v, mixing[:2], **options, max_keys=24, backend="kernels")
    assert calls[0]["key_block"] == [6]
