"""Calls of the operators on CUDA, and the marks of tests that need kernels or a device."""

import pytest
import torch

import mhla_torch
from mhla_torch import kernels

KINDS = ("bidirectional", "causal", "linear", "linear_causal")
WIDTHS = ((32, 32), (48, 48), (48, 96), (64, 64), (72, 72), (96, 48), (96, 96), (128, 128),
          (128, 256), (256, 256))
TAKEN = [(widths, dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32)
         for widths in WIDTHS if widths[0] <= 128 or dtype is not torch.float32]
LAYERS = (  # layers that the kernels take, and their channels
    (lambda: mhla_torch.Vision(128, 2, (8, 8), (4, 4), "blocks", qk_norm=True), 128),
    (lambda: mhla_torch.Vision(144, 2, (8, 8), (4, 4), "raster"), 144),
    (lambda: mhla_torch.Video(128, 2, (4, 4, 4), (2, 2, 2), lepe=True), 128),
    (lambda: mhla_torch.Video(256, 2, (4, 4, 4), (2, 2, 2), normalize=True), 256),
    (lambda: mhla_torch.Language(512, 2, 16, 4), 512),
    (lambda: mhla_torch.Language(512, 2, 16, decays=2), 512),
    (lambda: mhla_torch.Language(512, 2, 16, 4, "elu", convolution=4), 512))
built_for_cuda = pytest.mark.skipif(not mhla_torch.cuda_built(), reason=kernels.WITHOUT_CUDA)
on_device = pytest.mark.skipif(not (mhla_torch.cuda_built() and torch.cuda.is_available()),
                               reason=kernels.WITHOUT_CUDA or "no CUDA device is there")


def tensors(widths=(64, 64), tokens=(24, 24), dtype=torch.bfloat16, device="cpu", batch=2, heads=3):
    """Random q, k, v [B,N,H,.] and a mixing matrix of blocks of 6 tokens, at least four blocks."""
    torch.manual_seed(0)
    d, e = widths
    queries, keys = tokens
    q, k, v = (torch.randn(batch, n, heads, width).to(dtype)
               for n, width in ((queries, d), (keys, d), (keys, e)))
    mixing = torch.rand(max(4, -(-queries // 6)), max(4, -(-keys // 6)))
    return [t.to(device) for t in (q, k, v, mixing)]


def extras(widths=(64, 64), tokens=(24, 24), dtype=torch.bfloat16, device="cpu", batch=2, heads=3):
    """Angles, a gain and a gate for tensors(), without angles that kernels do not take."""
    torch.manual_seed(1)
    d, e = widths
    made = {"gain": torch.randn(e), "gate": torch.randn(batch, tokens[0], heads, e).to(dtype)}
    if d != 72 and dtype is not torch.float32:
        for argument, n in zip(("query_angles", "key_angles"), tokens):
            angles = torch.randn(n, d // 2)
            made[argument] = torch.stack([angles.cos(), angles.sin()], -1).flatten(-2)
    return {argument: t.to(device) for argument, t in made.items()}


def call(kind, q, k, v, mixing, **options):
    if kind == "bidirectional":
        return mhla_torch.bidirectional(q, k, v, mixing, block=(6,), **options)
    if kind == "causal":
        return mhla_torch.causal(q, k, v, mixing, block=6, **options)
    return mhla_torch.linear(q, k, v, causal=kind == "linear_causal", **options)
