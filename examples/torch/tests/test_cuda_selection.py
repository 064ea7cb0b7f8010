"""Masks and packed sequences on a CUDA device. All tests are skipped without a device."""

import pytest
import torch

from cuda_calls import call, extras, KINDS, on_device, tensors, WIDTHS
from test_cuda_device import expect_right_gradients, with_gradients


def masks_of(batch, tokens):
    """Masks of single tokens and of all queries of the last sequence, as options of a call."""
    keep = torch.arange(batch * tokens, device="cuda").view(batch, tokens) % 4 < 3
    queries = keep.flip(1)
    queries[1:] = False
    return {"query_mask": queries, "key_mask": keep}


def packed_as(*ends):
    ends = torch.tensor(ends, dtype=torch.int32, device="cuda")
    return {"query_offsets": ends, "key_offsets": ends, "max_queries": int(ends.diff().max())}


@on_device
@pytest.mark.parametrize("kind", ("bidirectional", "causal"))
@pytest.mark.parametrize("widths", WIDTHS)
@torch.no_grad()
def test_packed_sequences_have_the_bits_that_they_have_alone(kind, widths):
    """Sequences of up to 256 tokens take one form, whatever is packed with them."""
    q, k, v, mixing = tensors(widths, (300, 300), batch=1, device="cuda")
    options = packed_as(0, 100, 100, 240, 290)
    out = call(kind, q, k, v, mixing, **options, backend="kernels")
    ends = options["query_offsets"].tolist()
    for begin, end in zip(ends, ends[1:]):
        if begin < end:
            alone = call(kind, *(t[:, begin:end] for t in (q, k, v)), mixing)
            assert torch.equal(out[:, begin:end], alone)
    assert not out[:, 290:].any()


@on_device
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_other_masks_and_offsets_replay_in_a_graph(kind):
    arguments = tensors(tokens=(600, 600), batch=1, device="cuda")
    options = packed_as(0, 200, 600) | {"key_mask": masks_of(1, 600)["key_mask"]}
    call(kind, *arguments, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(kind, *arguments, **options)
    options["query_offsets"].copy_(torch.tensor([0, 350, 500]))
    options["key_mask"].logical_not_()
    graph.replay()
    assert torch.equal(out, call(kind, *arguments, **options))


@on_device
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("tokens", (24, 600))
def test_masks_and_packed_sequences_equal_the_formula(kind, widths, tokens):
    """Outputs and gradients, also with a gain and a gate."""
    for batch, chosen in ((2, masks_of(2, tokens)),
                          (1, packed_as(0, tokens // 3, tokens // 3, tokens))):
        inputs = tensors(widths, (tokens, tokens), batch=batch)
        more = extras(widths, (tokens, tokens), batch=batch)
        for options in ({"eps": 0.5}, {"normalizer": "none", "feature_map": "elu_plus_one"}):
            expect_right_gradients(lambda *t, **o: call(kind, *t, **chosen, **options, **o),
                                   *inputs)
        expect_right_gradients(lambda q, k, v, mixing, gain, gate, **o: call(
            kind, q, k, v, mixing, gain=gain, gate=gate, normalizer="none", norm_eps=1e-3,
            **chosen, **o), *inputs, more["gain"], more["gate"])


@on_device
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_compile_whole(kind):
    torch.compiler.reset()
    inputs, options = tensors(batch=1, device="cuda"), packed_as(0, 10, 24)
    dout = torch.randn_like(inputs[2])
    compiled = torch.compile(lambda *t: call(kind, *t, **options), fullgraph=True)
    for a, b in zip(*(with_gradients(run, inputs, dout)
                      for run in (compiled, lambda *t: call(kind, *t, **options)))):
        torch.testing.assert_close(a, b)
