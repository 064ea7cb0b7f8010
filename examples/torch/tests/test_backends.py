"""The backend that a call takes, its warning, and equal results of both backends."""

import warnings

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import mhla_torch
from mhla_torch import FormulaWarning, explain, kernels
from test_operators import BLOCK, GRID, KINDS, TOKENS, call, tensors
from test_feature_maps import MAPS, weights_of


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch):
    monkeypatch.setattr(kernels, "WARNED", set())


def maps_of(name, bias):
    return {"feature_map": name, "normalizer": "none"} | weights_of(name, bias)


KEEP = torch.arange(2 * TOKENS).view(2, TOKENS) % 4 < 3  # includes the first token of each sequence


def numbers(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def angles(width):
    return dict(zip(("query_angles", "key_angles"), numbers(2, TOKENS, width)))

ANGLES, GATE = angles(6), {"gain": numbers(7), "gate": numbers(2, TOKENS, 3, 7)}
OPTIONS = {
    "none": {"normalizer": "none"}, "sums": {"eps": 0.5, "scale": 2., "relu_eps": 0.25},
    "exp": {"feature_map": "exp"},
    "elu": {"feature_map": "elu_plus_one", "layout": "bhnd"},
    "identity": {"feature_map": "identity", "eps": 100.}, "masks": {"query_mask": KEEP,
                                                                    "key_mask": KEEP.flip(0)},
    "own": dict(zip(("normalizer_q", "normalizer_k"), tensors(seed=5))),
    "rotary": ANGLES | {"eps": 0.5, "scale": 2., "query_mask": KEEP, "key_mask": KEEP.flip(0)},
    "rotary, own": ANGLES | dict(zip(("normalizer_q", "normalizer_k"), tensors(seed=5, width=6))),
    "rotary, hedgehog": angles(10) | maps_of("hedgehog", True),
    "gain": {"gain": GATE["gain"], "norm_eps": 0.5, "relu_eps": 0.25},
    "gate": ANGLES | GATE | {"normalizer": "none"},
    "gate of heads": GATE | {"gate": GATE["gate"].transpose(1, 2), "layout": "bhnd"},
    **{f"{name}, {bias}": maps_of(name, bias) for name, bias in MAPS},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIONS)
def test_both_give_the_same_with_all_gradients(kind, name):
    rotates = "query_angles" in OPTIONS[name] and "query_map" not in OPTIONS[name]
    inputs = tensors(width=6 if rotates else 5)
    if OPTIONS[name].get("layout") == "bhnd":
        inputs = [t.transpose(1, 2) for t in inputs[:3]] + [inputs[3]]
    floats = {key: t for key, t in OPTIONS[name].items()
              if isinstance(t, torch.Tensor) and t.is_floating_point()}
    leaves = [t.clone().requires_grad_() for t in (*inputs, *floats.values())]
    results = []
    for backend in ("kernels", "formula"):
        options = OPTIONS[name] | dict(zip(floats, leaves[4:])) | {"backend": backend}
        out = call(kind, *leaves[:4], **options)
        used = leaves[:3] + leaves[4:] if kind.startswith("linear") else leaves
        dout = torch.arange(out.numel()).double().cos().view(out.shape)
        results.append((out, *torch.autograd.grad(out, used, dout)))
    assert results[0][0].stride() == results[1][0].stride()
    for ours, theirs in zip(*results):
        assert (ours - theirs).abs().max() <= 1e-11 * theirs.abs().max()


def with_all(dtype):
    """Options of a call with rotary angles, gain and gate."""
    return ANGLES | GATE | {"normalizer": "none", "gate": GATE["gate"].to(dtype)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
@pytest.mark.parametrize("normed", (False, True))
def test_both_round_alike(kind, dtype, normed):
    options = with_all(dtype) if normed else {}
    out, exact = (call(kind, *tensors(dtype=dtype, width=6), backend=backend, **options)
                  for backend in ("kernels", "formula"))
    assert out.dtype is exact.dtype is dtype
    torch.testing.assert_close(out, exact, rtol=4 * torch.finfo(dtype).eps, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normed", (False, True))
def test_both_cast_alike_under_autocast(kind, normed):
    inputs, options = tensors(dtype=torch.float32, width=6), {}
    if normed:
        options = with_all(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out, exact = (call(kind, *inputs, backend=backend, **options)
                      for backend in ("kernels", "formula"))
    assert out.dtype is exact.dtype is torch.bfloat16
    torch.testing.assert_close(out, exact, rtol=2**-6, atol=1e-5)


def test_packed_sequences_rotate_by_their_own_angles():
    inputs, ends = tensors(batch=1, width=6), torch.tensor([0, 10, 10, 24])
    packed = {"query_offsets": ends, "key_offsets": ends}
    out, exact = (call("causal", *inputs, backend=backend, **ANGLES, **packed)
                  for backend in ("kernels", "formula"))
    torch.testing.assert_close(out, exact, rtol=1e-12, atol=1e-12)
    compiled = torch.compile(lambda *t: call("causal", *t, **ANGLES, **packed), fullgraph=True,
                             backend="aot_eager")
    assert torch.equal(compiled(*inputs), out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", ({}, {"save": "summaries"}), ids=("inputs", "summaries"))
def test_outputs_may_be_changed_in_place(kind, options):
    options = {} if kind.startswith("linear") else options
    gradients = []
    for change in (lambda out: out.mul_(2), lambda out: 2 * out):
        q, k, v, mixing = tensors()
        q.requires_grad_()
        out = change(call(kind, *(t.transpose(1, 2) for t in (q, k, v)), mixing, layout="bhnd",
                          backend="kernels", **options))
        gradients += torch.autograd.grad(out.square().sum(), q)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("backend", ("kernels", "formula"))
def test_offsets_may_be_strided(backend):
    q, k, v, _ = tensors(batch=1)
    for dtype in (torch.int32, torch.int64):
        ends = torch.tensor([0, 10, 24], dtype=dtype)
        apart, out = (mhla_torch.linear(q, k, v, query_offsets=e, key_offsets=e, backend=backend)
                      for e in (torch.stack([ends] * 2, 1)[:, 0], ends))
        assert torch.equal(apart, out)


def test_explains_what_a_call_takes():
    q, k, v, mixing = tensors()
    ours = explain(mhla_torch.linear, q, k, v)
    assert (ours.backend, ours.form, ours.reason) == ("kernels", "cpu", "")
    blocks = {"grid": GRID, "block": BLOCK}
    asked = explain(mhla_torch.bidirectional, q, k, v, mixing, **blocks, backend="formula")
    assert (asked.backend, asked.reason) == ("formula", 'backend is "formula"')
    module = mhla_torch.MHLA(GRID, BLOCK, layout="bnhd").double()
    assert explain(module, q, k, v) == ours
    with warnings.catch_warnings(), torch._subclasses.FakeTensorMode():
        warnings.simplefilter("error")
        x = torch.empty(1, 4, 1, 2, device="xpu")
        there = explain(mhla_torch.linear, x, x, x)
    assert (there.backend, there.reason) == ("formula", "q is on xpu:0, expected cpu or cuda")


@pytest.mark.parametrize("kind", KINDS)
def test_says_once_why_it_takes_the_formula(kind):
    q, k, v, mixing = tensors()
    plain = call(kind, q, k, v, mixing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # an error does not count
            with pytest.raises(FormulaWarning, match="in a transform of torch.func"):
                torch.func.grad(lambda q: call(kind, q, k, v, mixing).sum())(q)
    with pytest.warns(FormulaWarning, match="in a transform of torch.func") as said:
        gradient = torch.func.grad(lambda q: call(kind, q, k, v, mixing).sum())(q)
    assert len(said) == 1 and said[0].filename == __file__.replace("test_backends",
                                                                   "test_operators")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(torch.func.grad(lambda q: call(kind, q, k, v, mixing).sum())(q), gradient)
        call(kind, q, k, v, mixing, backend="formula")
    leaf = q.clone().requires_grad_()
    torch.testing.assert_close(gradient, torch.autograd.grad(call(kind, leaf, k, v, mixing).sum(),
                                                             leaf)[0])
    with forward_ad.dual_level(), pytest.warns(FormulaWarning, match="q has a tangent"):
        out = forward_ad.unpack_dual(call(kind, forward_ad.make_dual(q, q), k, v, mixing))
    torch.testing.assert_close(out.primal, plain)
    assert out.tangent.any()


@pytest.mark.parametrize("transform", (
    torch.func.grad, torch.func.vmap, torch.func.jacrev,
    lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1]), ids=range(4))
def test_transforms_compile_whole(transform):
    q, k, v, mixing = tensors()
    torch.compiler.reset()
    takes_batch = transform is torch.func.vmap

    def function(q):
        q = q[None] if takes_batch else q
        out = call("causal", q, k[:len(q)], v[:len(q)], mixing)
        return out if takes_batch else out[:, :2].sum()

    compiled = torch.compile(transform(function), fullgraph=True, backend="aot_eager")
    with pytest.warns(FormulaWarning):
        out = compiled(q)
    torch.testing.assert_close(out, transform(function)(q))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::mhla_torch.FormulaWarning")
def test_every_transform_gives_its_derivative(kind):
    q, k, v, mixing = tensors(tokens=TOKENS)
    operator = getattr(torch.ops.mhla, kind.split("_")[0]).default
    blocks = {"bidirectional": (mixing, GRID, BLOCK), "causal": (mixing, 6)}.get(
        kind, (kind == "linear_causal",))
    for function in (lambda q, k, v: call(kind, q, k, v, mixing),
                     lambda q, k, v: operator(q, k, v, *blocks)):
        def loss(*items):
            return function(*(t[None] for t in items)).square().sum()

        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        expected = torch.autograd.grad(function(*leaves).square().sum(), leaves)
        gradient = torch.func.grad(loss, argnums=(0, 1, 2))
        for ours in (torch.func.vmap(gradient)(q, k, v),
                     torch.func.vjp(function, q, k, v)[1](2 * function(q, k, v))):
            for a, b in zip(ours, expected):
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
        jacobian = torch.func.jacrev(lambda v: function(q, k, v)[0, :2])(v)
        out = function(*leaves)
        for index in ((0, 1, 2), (1, 0, 3)):
            row, = torch.autograd.grad(out[0][index], leaves[2:], retain_graph=True)
            torch.testing.assert_close(jacobian[index], row, rtol=1e-10, atol=1e-10)
        rows = torch.func.vmap(lambda dout: torch.autograd.grad(out, leaves, dout,
                                                                retain_graph=True))(
            torch.stack([2 * out.detach()] * 2))
        torch.testing.assert_close(rows[2][1], expected[2], rtol=1e-10, atol=1e-10)


def test_says_what_to_do_in_a_transform():
    q, k, v, mixing = tensors(batch=1)
    with pytest.raises(ValueError, match='mhla::causal: .* backend="formula" takes the call'):
        torch.func.grad(lambda q: call("causal", q, k, v, mixing, backend="kernels").sum())(q)
    ends = torch.tensor([[0, 10, 24], [0, 12, 24]])
    with pytest.raises(ValueError, match="mhla::causal: query_offsets has a batch axis"):
        torch.func.vmap(lambda ends: call("causal", q, k, v, mixing, query_offsets=ends,
                                          key_offsets=ends, backend="formula"))(ends)


def test_the_formula_has_second_derivatives():
    leaves = [t.requires_grad_() for t in tensors()]
    out = call("causal", *leaves, backend="formula").square().sum()
    dq, = torch.autograd.grad(out, leaves[:1], create_graph=True)
    assert all(g.any() for g in torch.autograd.grad(dq.square().sum(), leaves))


def test_refuses_another_backend():
    with pytest.raises(ValueError, match='backend is "cuda", expected auto, kernels or formula'):
        call("causal", *tensors(), backend="cuda")


@pytest.mark.parametrize("layer", (
    mhla_torch.Vision(24, 2, (8, 8), (4, 4), "blocks"),
    mhla_torch.Video(24, 2, (4, 4, 4), (2, 2, 2)),
    mhla_torch.Language(24, 2, 16, 4)), ids=lambda layer: type(layer).__name__)
def test_layers_take_a_backend(layer):
    class Operators(TorchDispatchMode):
        """Records the libraries whose operators run."""
        def __init__(self):
            super().__init__()
            self.libraries = set()

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            self.libraries.add(operator.namespace)
            return operator(*args, **(kwargs or {}))

    x, results = torch.randn(2, 64, 24), []
    for layer.backend in ("kernels", "formula"):
        with Operators() as seen:
            y = layer(x)
            results.append((y, *torch.autograd.grad(y.square().sum(), layer.parameters())))
        assert ("mhla" in seen.libraries) == (layer.backend == "kernels")
    for a, b in zip(*results):
        assert (a - b).norm() <= 1e-4 * b.norm() + 1e-6
