"""Rotary angles of float32 tensors around emulated kernels for CUDA, as on a device."""

import copy

import pytest
import torch

import mhla_torch
from cuda_calls import call, extras, KINDS, tensors
from mhla_torch import kernels
from test_emulated import expect_equal, expect_near, TOLERANCE

MOST = TOLERANCE[torch.float32]


@pytest.fixture(autouse=True)
def on_cuda(emulated, monkeypatch):
    """Tensors on the CPU take the operations that are around kernels for CUDA."""
    monkeypatch.setattr(kernels, "on_cuda", lambda tensor: True)


def run(*arguments, **options):
    return call(*arguments, **options, backend="kernels")


def expect_formula(kind, **options):
    expect_equal(run, kind, tensors(dtype=torch.float32, heads=1), options, MOST,
                 lambda out, leaves: torch.autograd.grad(out.sin().sum(), leaves))


KEEP = torch.arange(48).view(2, 24) % 4 < 3
OPTIONS = {"sums": {"eps": 0.5}, "masks": {"query_mask": KEEP, "key_mask": KEEP, "eps": 0.5},
           "elu": {"feature_map": "elu_plus_one", "scale": 0.5},
           "none": {"normalizer": "none"}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIONS)
def test_rotates_and_divides_around_the_kernels(kind, name):
    more = {argument: t.float() for argument, t in extras(heads=1).items()}
    expect_formula(kind, **more, **OPTIONS[name], norm_eps=1e-3)


def test_denominators_may_be_sums_over_queries():
    angles = {argument: extras(heads=1)[argument] for argument in ("query_angles", "key_angles")}
    expect_formula("bidirectional", **angles, normalizer="cross_query", eps=0.5)


def test_kernels_compute_the_numerators(monkeypatch):
    """The formula would pass the other tests."""
    asked, operator = [], torch.ops.mhla.bidirectional.default
    monkeypatch.setattr(torch.ops.mhla.bidirectional, "default",
                        lambda **named: asked.append(named) or operator(**named))
    angles = {argument: extras(heads=1)[argument] for argument in ("query_angles", "key_angles")}
    run("bidirectional", *tensors(dtype=torch.float32, heads=1), **angles)
    named, = asked
    assert named["normalizer"] == "none" and named["feature_map"] == "identity"
    assert "query_angles" not in named


@pytest.mark.parametrize("kind", KINDS)
def test_normalises_wide_values_around_the_kernels(kind):
    arguments = tensors((128, 256), dtype=torch.float32, heads=1)
    more = extras((128, 256), dtype=torch.float32, heads=1) | {"norm_eps": 0.5, "eps": 0.5}
    for options in ({}, {"query_mask": KEEP, "key_mask": KEEP}):
        expect_equal(run, kind, arguments, options | more, MOST,
                     lambda out, leaves: torch.autograd.grad(out.sin().sum(), leaves))


@pytest.mark.parametrize("make, channels", (
    (lambda: mhla_torch.Video(64, 1, (2, 4, 4), (1, 2, 2)), 64),
    (lambda: mhla_torch.Video(64, 1, (2, 4, 4), (1, 2, 2), normalize=True), 64),
    (lambda: mhla_torch.Language(256, 1, 8, 4), 256)))
def test_a_layer_equals_the_formula(make, channels):
    torch.manual_seed(0)
    layer = make()
    layer.backend = "kernels"
    exact = copy.deepcopy(layer).double()
    exact.backend, results = "formula", []
    x = torch.randn(2, 32, channels)
    for model in (layer, exact):
        out = model(x.to(next(model.parameters())))
        out.square().sum().backward()
        results.append([t.detach() for t in (out, *(p.grad for p in model.parameters()))])
    for ours, right in zip(*results):
        expect_near(ours, right.double(), MOST)
