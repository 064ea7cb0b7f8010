"""Decaying terms on a CUDA device, and with fake tensors.

Tests of numbers are skipped without a device.
"""

import pytest
import torch

import mhla_torch
from cuda_calls import extras, on_device, TAKEN, tensors
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


# ---- without a device ---------------------------------------------------------------------------

@pytest.mark.parametrize("leading", ((), (3,), (2, 3)))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
def test_kernels_take_up_to_32_terms(with_kernels, leading, dtype):
    for count in (32, 33):
        with torch._subclasses.FakeTensorMode():
            q, k, v, _ = tensors(dtype=dtype, device="cuda")
            took = decaying(q, k, v, torch.empty(*leading, 2, count, device="cuda"), explain=True)
        assert took.reason == ("" if count == 32 else "mixing has 33 decaying terms, expected at "
                               "most 32 on CUDA")
