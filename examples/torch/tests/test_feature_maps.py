"""Feature maps with weights, against their definition before an operator without a map."""

import pytest
import torch

from mhla_torch import MHLA
from test_operators import KINDS, OPERATORS, call, tensors

WIDTH = 5
LAYERS = {"hedgehog": 1, "t2r": 1, "elementwise_product": 2}
MAPS = [(name, bias) for name in LAYERS for bias in (False, True) if not (name == "t2r" and bias)]


def weights_of(name, bias, dtype=torch.float64):
    """Random weights, query_map and key_map."""
    torch.manual_seed(1)
    count = LAYERS[name] * (WIDTH * WIDTH + bias * WIDTH)
    return {argument: torch.randn(count, dtype=torch.float64).to(dtype)
            for argument in ("query_map", "key_map")}


def features(name, x, weights):
    """Features phi(x) of x [..,D]."""
    layers = []
    for layer in weights.chunk(LAYERS[name]):
        weight, bias = layer[:WIDTH * WIDTH].view(WIDTH, WIDTH), layer[WIDTH * WIDTH:]
        layers.append(x @ weight.T + (bias if len(bias) else 0))
    if name == "hedgehog":
        return torch.cat([2 * layers[0], -2 * layers[0]], -1).softmax(-1)
    return layers[0].relu() if name == "t2r" else layers[0] * layers[1]


def expected(kind, name, q, k, v, mixing, query_map, key_map, **options):
    for side, weights in (("normalizer_q", query_map), ("normalizer_k", key_map)):
        if side in options:
            options[side] = features(name, options[side], weights)
    return call(kind, features(name, q, query_map), features(name, k, key_map), v, mixing,
                feature_map="identity", **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name, bias", MAPS)
def test_equals_its_definition_with_all_gradients(kind, name, bias):
    maps = weights_of(name, bias)
    separate = dict(zip(("normalizer_q", "normalizer_k"), tensors(seed=2)))
    for more in ({}, separate) if kind == "bidirectional" else ({},):
        leaves = [t.requires_grad_() for t in (*tensors(), *maps.values(), *more.values())]
        signed = name == "elementwise_product"  # its sums may be 0
        options = more | {"normalizer": "none" if signed else "key_sum", "eps": 0.5}
        results = []
        for run in (lambda *t, **o: call(kind, *t, feature_map=name, **o),
                    lambda *t, **o: expected(kind, name, *t, **o)):
            out = run(*leaves[:4], **maps, **options)
            used = leaves[:3] + leaves[4:] if kind.startswith("linear") else leaves
            dout = torch.arange(out.numel()).double().cos().view(out.shape)
            results.append((out, *torch.autograd.grad(out, used, dout)))
        for ours, theirs in zip(*results):
            assert (ours - theirs).abs().max() <= 1e-12 * theirs.abs().max()


@pytest.mark.parametrize("name, bias", MAPS)
def test_gradients_by_differences(name, bias):
    q, k, v, mixing = tensors(batch=1, heads=1, values=2)
    maps = [t.requires_grad_() for t in weights_of(name, bias).values()]
    assert torch.autograd.gradcheck(
        lambda *t: call("causal", q, k, v, mixing, feature_map=name, normalizer="none",
                        query_map=t[0], key_map=t[1]), maps)


def test_weights_take_part_in_the_type_of_the_sums():
    maps = {name: t.requires_grad_() for name, t in weights_of("hedgehog", True).items()}
    low = tensors(dtype=torch.bfloat16)
    out = call("causal", *low, feature_map="hedgehog", **maps)
    exact = call("causal", *(t.double() for t in low), feature_map="hedgehog", **maps)
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out.double(), exact, rtol=1e-2, atol=1e-2)
    with torch.autocast("cpu", torch.bfloat16):
        cast = call("causal", *(t.float() for t in low), feature_map="hedgehog", **maps)
    assert torch.equal(cast, out)
    gradient, = torch.autograd.grad(cast.float().square().sum(), [maps["key_map"]])
    assert gradient.dtype is torch.float64 and gradient.any()


@pytest.mark.parametrize("name, bias", MAPS)
def test_keeps_the_contract_of_operators(name, bias):
    q, k, v, mixing = (t.requires_grad_() for t in tensors(batch=1, heads=2, values=2))
    maps = {name: t.requires_grad_() for name, t in weights_of(name, bias).items()}
    options = {"feature_map": name, "normalizer": "none"} | maps
    torch.library.opcheck(OPERATORS.causal.default, (q, k, v, mixing, 6), options)
    torch.library.opcheck(OPERATORS.causal_kept.default, (q, k, v, mixing, 6), options, test_utils=(
        "test_schema", "test_autograd_registration", "test_faketensor"))
    with torch.no_grad():
        torch.library.opcheck(OPERATORS.causal_backward.default,
                              (torch.ones_like(v), q, k, v, mixing, 6), options)


def test_a_module_is_called_with_weights():
    module = MHLA(24, 6, causal=True, layout="bnhd", feature_map="hedgehog").double()
    q, k, v, _ = tensors()
    maps = weights_of("hedgehog", True)
    out = module(q, k, v, **maps)
    assert torch.equal(out, call("causal", q, k, v, module.mixing, feature_map="hedgehog", **maps))


@pytest.mark.parametrize("options, sentence", (
    ({"feature_map": "hedgehog"}, "query_map is absent, expected the weights of hedgehog"),
    (weights_of("t2r", False), "query_map is set, expected none: there are no weights in relu"),
    ({"feature_map": "hedgehog"} | weights_of("elementwise_product", True),
     "query_map has 60 weights, expected 25 or, with biases, 30: those of hedgehog of width 5"),
    ({"feature_map": "t2r"} | weights_of("hedgehog", True),
     "query_map has 30 weights, expected 25: those of t2r of width 5"),
))
def test_says_which_weights_were_expected(options, sentence):
    with pytest.raises((ValueError, RuntimeError), match="mhla::causal: " + sentence):
        call("causal", *tensors(), **options)
