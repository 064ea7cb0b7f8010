"""The formula against the definition: its values, its derivatives, and its use by PyTorch."""

import re

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import gradcheck, gradgradcheck

from mhla_torch import formula
from reference import attention, block_of, features

FORMS = ("bidirectional", "causal", "linear", "linear_causal")


def positive(*shape, seed=0):
    """Numbers in [0.1, 1.1), so that no sum is near 0."""
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=draw, dtype=torch.float64) + 0.1


def tensors(tokens=7, keys=None, batch=1, heads=2, width=3, values=2, blocks=4):
    """Random q, k, v [B,N,H,.] and a mixing matrix."""
    keys = tokens if keys is None else keys
    return [positive(batch, tokens, heads, width, seed=1), positive(batch, keys, heads, width, seed=2),
            positive(batch, keys, heads, values, seed=3), positive(blocks, blocks, seed=4)]


def call(form, q, k, v, mixing, block=(2,), **options):
    if form == "bidirectional":
        return formula.bidirectional(q, k, v, mixing, block=block, **options)
    if form == "causal":
        return formula.causal(q, k, v, mixing, block=block[0], **options)
    return formula.linear(q, k, v, causal=form == "linear_causal", **options)


def used(form, tensors):
    return tensors[:3] if form.startswith("linear") else tensors


def weights(layers, bias, width=3):
    count = layers * (width * width + bias * width)
    return {"query_map": positive(count, seed=5), "key_map": positive(count, seed=6)}


KEEP = torch.tensor([[True, False, True, True, False, True, True]])
OWN = {"normalizer_q": positive(1, 7, 2, 4, seed=7), "normalizer_k": positive(1, 7, 2, 4, seed=8)}
ENDS = torch.tensor([0, 3, 3, 7])
ANGLES = {"query_angles": positive(7, 4, seed=9), "key_angles": positive(7, 4, seed=10)}
GATE = {"gain": positive(2, seed=11), "gate": positive(1, 7, 2, 2, seed=12) - 0.6}
OPTIONS = {  # options of all forms
    "relu": {"feature_map": "relu"},
    "elu_plus_one": {"feature_map": "elu_plus_one"},
    "exp, eps, scale": {"feature_map": "exp", "eps": 0.25, "scale": 0.5},
    "identity": {"feature_map": "identity", "normalizer": "none"},
    "hedgehog": {"feature_map": "hedgehog"} | weights(1, True),
    "t2r": {"feature_map": "t2r"} | weights(1, False),
    "elementwise_product": {"feature_map": "elementwise_product"} | weights(2, True),
    "own normaliser": OWN,
    "masks": {"query_mask": KEEP, "key_mask": KEEP.flip(1)},
    "packed": {"query_offsets": ENDS, "key_offsets": ENDS},
    "heads first": {"layout": "bhnd"},
    "relu_eps": {"relu_eps": 0.25},
    "rotary": ANGLES,
    "rotary, own normaliser": ANGLES | OWN | {"scale": 0.5},
    "gain": {"gain": GATE["gain"], "norm_eps": 0.25},
    "rotary, gain and gate": ANGLES | GATE | {"normalizer": "none", "query_mask": KEEP},
}


def width_of(name):
    """The width of the tensors of a call with OPTIONS[name]."""
    return 4 if "query_angles" in OPTIONS[name] else 3


BLOCKS = {  # name: options of the bidirectional form and the number of blocks
    "prefix": ({"block": (2,), "prefix": 3}, 3),
    "image": ({"grid": (2, 3), "block": (2, 2), "prefix": 1}, 3),
    "video": ({"grid": (1, 2, 3), "block": (1, 1, 2), "prefix": 1}, 5),
    "cross_query": ({"grid": (2, 3), "block": (1, 3), "normalizer": "cross_query", "prefix": 0}, 2),
    "cross_query, own": ({"block": (7,), "normalizer": "cross_query"} | OWN, 1),
    "larger matrix": ({"block": (3,)}, 5),
    "cross_query, gate": ({"block": (7,), "normalizer": "cross_query"} | GATE, 1),
}


def with_options(form, inputs, options):
    """The inputs that need gradients, and a function of them."""
    floats = {name: t for name, t in options.items()
              if isinstance(t, torch.Tensor) and t.is_floating_point()}
    others = {name: t for name, t in options.items() if name not in floats}
    if options.get("layout") == "bhnd":
        inputs = [t.transpose(1, 2) for t in inputs[:3]] + inputs[3:]
    leaves = [t.clone().requires_grad_() for t in (*used(form, inputs), *floats.values())]
    count = len(used(form, inputs))

    def function(*t):
        return call(form, *t[:count], *inputs[count:], **others,
                    **dict(zip(floats, t[count:])))

    return function, leaves


def definition(form, q, k, v, mixing, grid=(), block=(2,), prefix=0, query_offsets=None,
               key_offsets=None, feature_map="relu", query_map=None, key_map=None, layout="bnhd",
               relu_eps=1e-6, **options):
    if layout == "bhnd":
        return definition(form, *(t.transpose(1, 2) for t in (q, k, v)), mixing, block=block,
                          feature_map=feature_map, **options).transpose(1, 2)
    if query_offsets is not None:
        return torch.cat([definition(form, q[:, a:b], k[:, a:b], v[:, a:b], mixing)
                          for a, b in zip(query_offsets, query_offsets[1:]) if a < b], 1)
    blocks = [block_of(t.shape[1], grid, block, prefix) for t in (q, k)]
    if form.startswith("linear"):
        blocks, mixing = [torch.zeros_like(b) for b in blocks], torch.ones_like(mixing[:1, :1])
    phi = [features(feature_map, m, relu_eps) for m in (query_map, key_map)]
    return attention(q, k, v, mixing, blocks, phi=phi, causal="causal" in form, **options)


def expect_the_definition(form, inputs, options):
    out, exact = call(form, *inputs, **options), definition(form, *inputs, **options)
    torch.testing.assert_close(out, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIONS)
def test_equals_the_definition(form, name):
    inputs = tensors(width=width_of(name))
    if OPTIONS[name].get("layout") == "bhnd":
        inputs[:3] = [t.transpose(1, 2) for t in inputs[:3]]
    expect_the_definition(form, inputs, OPTIONS[name])


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_equal_the_definition(name):
    options, blocks = BLOCKS[name]
    tokens = 6 if name == "cross_query" else 7
    expect_the_definition("bidirectional", tensors(tokens, blocks=blocks), options)


@pytest.mark.parametrize("leading", ((2,), (3, 2)))
@pytest.mark.parametrize("form, options", (
    ("bidirectional", {"grid": (2, 3), "block": (2, 2)}), ("bidirectional", {"block": (2,)}),
    ("bidirectional", {"block": (3,), "normalizer": "cross_query"}), ("causal", {"block": (2,)})))
def test_heads_may_have_matrices_of_their_own(leading, form, options):
    q, k, v, _ = tensors(6, batch=3)
    mixing = positive(*leading, *((2, 2) if "grid" in options else (4, 4)), seed=4)
    expect_the_definition(form, (q, k, v, mixing), options)
    leaves = [t.requires_grad_() for t in (q[:, :, :, :1], v[..., :1], mixing)]
    assert gradcheck(lambda q, v, m: call(form, q, q, v, m, **options), leaves)


def test_matrices_are_of_the_heads():
    q, k, v, _ = tensors(batch=3)
    for leading, wanted in (((3,), "[2, 4, 4]"), ((2, 2), "[3, 2, 4, 4]")):
        wrong = positive(*leading, 4, 4)
        for form in ("bidirectional", "causal"):
            with pytest.raises(ValueError, match=re.escape(f"expected at least {wanted}")):
                call(form, q, k, v, wrong)


def test_large_ones_equal_the_definition():
    wide = {"batch": 2, "heads": 3, "width": 5, "values": 4}
    expect_the_definition("linear_causal", tensors(200, **wide), {})
    expect_the_definition("causal", tensors(100, blocks=9, **wide), {"block": (12,)})
    expect_the_definition("bidirectional", tensors(13, 30, blocks=8, **wide), {"block": (4,)})
    ragged = {"grid": (5, 7), "block": (2, 3), "prefix": 4}
    expect_the_definition("bidirectional", tensors(39, blocks=10, **wide), ragged)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_by_differences(form, name):
    assert gradcheck(*with_options(form, tensors(heads=1, width=width_of(name)), {
        key: t[:, :, :1] if isinstance(t, torch.Tensor) and t.dim() == 4 else t
        for key, t in OPTIONS[name].items()}))


@pytest.mark.parametrize("name", BLOCKS)
def test_gradients_of_blocks_by_differences(name):
    options, blocks = BLOCKS[name]
    tokens = 6 if name == "cross_query" else 7
    assert gradcheck(*with_options("bidirectional", tensors(tokens, blocks=blocks), options))


@pytest.mark.parametrize("form", FORMS)
def test_second_and_forward_derivatives_by_differences(form):
    small = tensors(5, heads=1, width=2, values=1, blocks=3)
    function, leaves = with_options(form, small, {"feature_map": "elu_plus_one"})
    assert gradcheck(function, leaves, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, leaves, check_fwd_over_rev=True)


@pytest.mark.parametrize("form", FORMS)
def test_takes_transforms_of_functions(form):
    inputs = tensors(5, heads=1, width=2, values=1, blocks=3)
    places = tuple(range(len(used(form, inputs))))
    reverse = torch.func.jacrev(lambda *t: call(form, *t), places)(*inputs)
    forward = torch.func.jacfwd(lambda *t: call(form, *t), places)(*inputs)
    for a, b in zip(reverse, forward):
        torch.testing.assert_close(a, b)
    several = [torch.stack([t, 2 * t, t.flip(-1)]) for t in inputs]
    mapped = torch.func.vmap(lambda *t: call(form, *t))(*several)
    for i, out in enumerate(mapped):
        torch.testing.assert_close(out, call(form, *(t[i] for t in several)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dynamic", (False, True))
def test_compiles_whole(form, dynamic):
    torch.compiler.reset()
    traces = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda *t: call(form, *t), fullgraph=True, backend=traces)
    for tokens in (13, 11, 9) if dynamic else (7,):
        leaves = [t.requires_grad_() for t in tensors(tokens, blocks=8)]
        for leaf in leaves[:3] if dynamic else ():
            torch._dynamo.mark_dynamic(leaf, 1)
        results = [(out, *torch.autograd.grad(out.square().sum(), used(form, leaves)))
                   for out in (compiled(*leaves), call(form, *leaves))]
        assert traces.frame_count == 1
        for a, b in zip(*results):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("form", FORMS)
def test_sums_sixteen_bits_in_float(form):
    for dtype, tolerance in ((torch.bfloat16, 5e-3), (torch.float16, 6e-4)):
        low = [(100 * t).to(dtype) for t in tensors(300, blocks=150)[:3]] + tensors(blocks=150)[3:]
        out = call(form, *low, normalizer="key_sum")  # sums exceed the range of float16
        assert out.dtype is dtype
        exact = call(form, *(t.double() for t in low), normalizer="key_sum")
        torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_reads_no_masked_token(form):
    def run(inputs, keep):
        *leaves, gate = (t.clone().requires_grad_() for t in inputs)
        out = call(form, *leaves, query_mask=keep, key_mask=keep, feature_map="exp", gate=gate,
                   gain=GATE["gain"], **ANGLES)
        return out, *torch.autograd.grad(out, (*used(form, leaves), gate), torch.ones_like(out))

    inputs = tensors(width=4) + [GATE["gate"]]
    gone = [t.masked_fill(~KEEP[..., None, None], torch.nan) if t.dim() == 4 else t for t in inputs]
    for a, b in zip(run(inputs, KEEP), run(gone, KEEP)):
        assert torch.equal(a, b)
    assert not run(inputs, KEEP)[0][~KEEP].any()


@pytest.mark.parametrize("form", FORMS)
def test_nothing_over_nothing_is_nothing(form):
    leaves = [t.requires_grad_() for t in tensors(batch=2)]
    keep = torch.tensor([[False] * 7, [True] * 7])  # all keys of one sequence are masked
    out = call(form, *leaves, key_mask=keep)
    assert not out[0].any() and torch.equal(out[1], call(form, *leaves)[1])
    gradients = torch.autograd.grad(out, used(form, leaves), torch.ones_like(out))
    assert not any(g[0].any() for g in gradients[:3])
    assert all(torch.isfinite(g).all() for g in gradients)


def test_queries_and_keys_may_be_absent():
    q, k, v, mixing = tensors()
    assert not call("linear", q, k[:, :0], v[:, :0], mixing).any()
    assert call("linear", q[:, :0], k, v, mixing).shape == (1, 0, 2, 2)
    ends, fewer = torch.tensor([0, 4, 4, 7]), torch.tensor([0, 5, 7, 7])
    out = call("linear", q, k, v, mixing, query_offsets=ends, key_offsets=fewer)
    assert torch.equal(out[:, :4], call("linear", q[:, :4], k[:, :5], v[:, :5], mixing))
    assert not out[:, 4:].any()
    none = torch.tensor([0])
    for form in FORMS:
        nothing = [t[:, :0] for t in (q, k, v)]
        out = call(form, *nothing, mixing, query_offsets=none, key_offsets=none)
        assert out.shape == (1, 0, 2, 2)


@pytest.mark.parametrize("form", FORMS)
def test_a_query_of_nothing_has_no_gradient(form):
    q, *others = (t.requires_grad_() for t in tensors())
    out = call(form, q * 0, *others, feature_map="identity")
    gradients = torch.autograd.grad(out, used(form, [q, *others]), torch.ones_like(out))
    assert not out.any() and not any(g.any() for g in gradients)
    zero = torch.zeros_like(q, requires_grad=True)
    assert not torch.autograd.grad(call(form, zero, *others, feature_map="identity").sum(),
                                   zero)[0].any()


@pytest.mark.parametrize("form", FORMS)
def test_something_over_nothing_is_infinite(form):
    q, k, v, mixing = tensors(tokens=2, blocks=1)
    k[:, 1], v[:, 0], v[:, 1] = -k[:, 0], 1, 2  # whose sum is 0, and that of the values is not
    leaves = [t.requires_grad_() for t in (q, k, v, mixing)]
    out = call(form, *leaves, feature_map="identity")
    last = out[:, 1]
    assert torch.isinf(last).all() and (last < 0).all()
    dout = torch.zeros_like(out)  # rows without a gradient give none
    gradients = torch.autograd.grad(out, used(form, leaves), dout)
    assert not any(g.any() for g in gradients)


@pytest.mark.parametrize("wrong, sentence", (
    ({"mixing": torch.ones(3, 3)}, r"mixing has shape \[3, 3\], expected at least \[4, 4\]"),
    ({"mixing": torch.ones(4)}, "mixing has 1 axes, expected 2"),
    ({"grid": (2, 4), "block": (2, 2)}, "blocks cover 8 tokens, expected 7"),
    ({"grid": (1, 7), "block": (1, 3)}, r"mixing has shape \[4, 4\], expected \[1, 3\]|\[3, 3\]"),
    ({"grid": (7,), "block": (2, 2)}, r"block has 2 sizes, expected 1 \(those of grid\)"),
    ({"block": (0,)}, "expected sizes >= 1"),
    ({"prefix": 8}, "prefix is 8, expected at most 7"),
    ({"prefix": -1}, "prefix is -1, expected at least 0"),
    ({"feature_map": "gelu"}, 'feature_map is "gelu", expected relu'),
    ({"feature_map": "t2r"}, "query_map is absent, expected the weights of t2r"),
    (weights(1, True), "query_map is set, expected none"),
    ({"feature_map": "t2r"} | weights(1, True), "query_map has 12 weights, expected 9"),
    ({"normalizer": "sum"}, 'normalizer is "sum", expected none, key_sum or cross_query'),
    ({"normalizer": "cross_query"}, "expected as many query blocks as key blocks, all of one size"),
    ({"layout": "nbhd"}, 'layout is "nbhd", expected bnhd or bhnd'),
    ({"k": torch.ones(1, 7, 2, 4).double()}, r"k has shape \[1, 7, 2, 4\], expected \[1, 7, 2, 3\]"),
    ({"v": torch.ones(1, 7, 2, 2)}, "v has type torch.float32, expected torch.float64"),
    ({"v": torch.ones(1, 6, 2, 2).double()}, r"v has shape \[1, 6, 2, 2\], expected \[1, 7, 2, 2\]"),
    ({"q": torch.ones(7, 2, 3).double()}, "q has 3 axes, expected 4"),
    ({"q": torch.ones(1, 7, 2, 3).long()}, "q has type torch.int64, expected a floating one"),
    ({"key_mask": torch.ones(1, 7)}, "key_mask has type torch.float32, expected torch.bool"),
    ({"key_mask": KEEP[:, :3]}, r"key_mask has shape \[1, 3\], expected \[1, 7\]"),
    ({"normalizer_q": OWN["normalizer_q"]}, "normalizer_k is absent, expected both"),
    ({"query_offsets": ENDS}, "key_offsets is absent, expected both"),
    ({"query_offsets": ENDS[1:], "key_offsets": ENDS}, "expected ascending numbers from 0 to 7"),
    ({"query_offsets": ENDS, "key_offsets": ENDS[[0, 1, 3]]}, "key_offsets has 3 entries"),
    ({"key_angles": ANGLES["key_angles"][:, :3]}, "query_angles is absent, expected both"),
    (ANGLES, r"query_angles has shape \[7, 4\], expected \[7, 3\]"),
    ({"query_angles": torch.ones(7, 3), "key_angles": torch.ones(7, 3)},
     "query_angles has 3 columns, expected an even number"),
    ({"gain": torch.ones(3)}, r"gain has shape \[3\], expected \[2\]"),
    ({"gate": GATE["gate"]}, "gate is given without a gain, expected both, or a gain alone"),
    (GATE | {"gate": GATE["gate"][:, 1:]}, r"gate has shape \[1, 6, 2, 2\], expected \[1, 7"),
    (GATE | {"gate": GATE["gate"].float()}, "gate has type torch.float32, expected torch.float64"),
    ({"norm_eps": -1.}, r"norm_eps is -1.0, expected at least 0"),
))
def test_errors_say_what_was_expected(wrong, sentence):
    arguments = dict(zip(("q", "k", "v", "mixing"), tensors())) | {"block": (2,)}
    with pytest.raises(ValueError, match="mhla::bidirectional: .*" + sentence):
        formula.bidirectional(**arguments | wrong)


def test_causal_forms_refuse_what_reads_the_future():
    q, k, v, mixing = tensors()
    for form in ("causal", "linear_causal"):
        with pytest.raises(ValueError, match="it reads later queries"):
            call(form, q, k, v, mixing, normalizer="cross_query")
        with pytest.raises(ValueError, match="k has 6 tokens, expected 7 as q"):
            call(form, q, k[:, 1:], v[:, 1:], mixing)
