"""Causal attention with decaying terms in place of a matrix, on the CPU and in modules."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import mhla_torch
from test_operators import TOKENS, close, tensors

KEEP = torch.arange(2 * TOKENS).view(2, TOKENS) % 4 < 3
OPTIONS = {"sums": {"eps": 0.5, "scale": 2.}, "none": {"normalizer": "none"},
           "masks": {"query_mask": KEEP, "key_mask": KEEP.flip(0), "eps": 0.25},
           "heads first": {"layout": "bhnd", "feature_map": "elu_plus_one"},
           "kept": {"save": "summaries"}}


def terms(*leading, count=3, dtype=torch.float64):
    """Weights and decays, of which the last is 1 and, of several, the first 0.   # [..,2,R]"""
    generator = torch.Generator().manual_seed(3)
    made = torch.rand(*leading, 2, count, dtype=torch.float64, generator=generator)
    made[..., 1, -1] = 1
    if count > 1:
        made[..., 1, 0] = 0
    return made.to(dtype)


def call(q, k, v, mixing, block=5, **options):
    return mhla_torch.causal(q, k, v, mixing, block=block, decaying=True, **options)


def output_and_gradients(run, leaves):
    leaves = [t.clone().requires_grad_() for t in leaves]
    out = run(*leaves)
    dout = torch.arange(out.numel()).double().cos().view(out.shape).to(out.dtype)
    return out, *torch.autograd.grad(out, leaves, dout)


def test_coefficients_decay_with_the_distance():
    m = terms(2)
    matrix = mhla_torch.decay_matrix(m, 4)
    assert matrix.shape == (2, 4, 4)
    for i in range(4):
        for b in range(4):
            exact = (m[:, 0] * m[:, 1] ** (i - b)).sum(-1) if b <= i else torch.zeros(2)
            close(matrix[:, i, b], exact.double())
    assert gradcheck(lambda t: mhla_torch.decay_matrix(t, 4), [terms().requires_grad_()])
    assert gradgradcheck(lambda t: mhla_torch.decay_matrix(t, 4), [terms().requires_grad_()])


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("count", (1, 3))
def test_kernels_equal_the_matrix_with_all_gradients(name, count):
    """Kernels, the formula, and the formula of the matrix of coefficients."""
    options = OPTIONS[name]
    q, k, v, _ = tensors()
    if options.get("layout") == "bhnd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    inputs = [q, k, v, terms(count=count)]
    formula = {key: value for key, value in options.items() if key != "save"}
    exact = output_and_gradients(lambda q, k, v, m: mhla_torch.causal(
        q, k, v, mhla_torch.decay_matrix(m, 5), block=5, backend="formula", **formula), inputs)
    for backend in ("kernels", "formula"):
        ours = output_and_gradients(lambda *t: call(*t, backend=backend, **options), inputs)
        for a, b in zip(ours, exact, strict=True):
            close(a, b, 1e-11)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_takes_the_types_of_the_library(dtype):
    q, k, v, _ = tensors(dtype=dtype)
    out = call(q, k, v, terms(), backend="kernels")
    assert out.dtype is dtype
    exact = call(*(t.double() for t in (q, k, v)), terms(), backend="formula")
    torch.testing.assert_close(out.double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=1e-5)


def test_packed_sequences_have_the_bits_that_they_have_alone():
    q, k, v, _ = tensors(batch=1)
    ends = torch.tensor([0, 7, 7, TOKENS])
    out = call(q, k, v, terms(), query_offsets=ends, key_offsets=ends)
    for span in (slice(0, 7), slice(7, TOKENS)):
        assert torch.equal(out[:, span], call(*(t[:, span] for t in (q, k, v)), terms()))


@pytest.mark.parametrize("leading", ((3,), (2, 3)))
def test_heads_have_terms_of_their_own_by_the_formula(leading):
    q, k, v, _ = tensors()
    mixing = terms(*leading)
    took = mhla_torch.explain(call, q, k, v, mixing)
    axes = len(leading) + 2
    assert took.backend == "formula" and took.reason.startswith(f"mixing has {axes} axes, expected")
    out = call(q, k, v, mixing, backend="formula")
    for b, h in ((0, 0), (1, 2)):
        one = mixing[h] if len(leading) == 1 else mixing[b, h]
        close(out[b:b + 1, :, h:h + 1],
              call(*(t[b:b + 1, :, h:h + 1] for t in (q, k, v)), one, backend="kernels"))


def test_works_in_transforms_and_compiled():
    q, k, v, _ = tensors()
    out = call(q, k, v, terms())
    made = terms()
    mapped = torch.func.vmap(lambda *t: call(*(x[None] for x in t), made, backend="formula")[0])
    close(mapped(q, k, v), out)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for a, b in zip(*(output_and_gradients(run, (q, k, v, terms())) for run in (compiled, call))):
        assert torch.equal(a, b)
    torch.library.opcheck(torch.ops.mhla.causal.default, (q, k, v, made.requires_grad_(), 5, True))


@pytest.mark.parametrize("backend", ("kernels", "formula"))
@pytest.mark.parametrize("mixing, sentence", (
    (torch.ones(3, 2), r"mixing has shape \[3, 2\], expected \[2, "),
    (torch.ones(2), "mixing has 1 axes, expected 2"),
    (torch.ones(2, 0), r"mixing has (no term|shape \[2, 0\])"),
))
def test_errors_say_what_was_expected(backend, mixing, sentence):
    with pytest.raises((ValueError, RuntimeError), match="mhla::causal: " + sentence):
        call(*tensors(dtype=torch.float32)[:3], mixing, backend=backend)


def test_kernels_refuse_growing_terms():
    with pytest.raises((ValueError, RuntimeError), match="decays holds 1.5.*, expected numbers"):
        call(*tensors()[:3], torch.full((2, 1), 1.5).double())
    with pytest.raises(ValueError, match="pattern is given with decaying terms, expected either"):
        call(*tensors()[:3], terms(), pattern=torch.ones(5, 5, dtype=torch.bool))


def test_a_module_serves_sequences_of_any_length():
    module = mhla_torch.MHLA(64, 4, causal=True, decays=3).double()
    assert module.mixing.shape == (2, 3)
    sums = module.matrix(4 * 50).sum(-1)
    assert sums.diff().min() > 0 and 0.99 < sums[-1] < 1 and sums[0] > 0.25
    for tokens in (6, 200):
        q, k, v = (torch.randn(1, 2, tokens, 5).double() for _ in range(3))
        out = module(q, k, v)
        close(out, mhla_torch.causal(q, k, v, module.matrix(tokens), block=4, layout="bhnd"))
        module.zero_grad()
        out.square().sum().backward()
        assert module.mixing.grad.abs().min() > 0
    with torch.no_grad():
        module.mixing += 0.75
    module.constrain_()
    assert module.mixing.max() == 1 and (module.mixing[0] > 0).all()


@pytest.mark.parametrize("options", ({"decays": -1, "causal": True}, {"decays": 2},
                                     {"decays": 2, "causal": True, "offsets": (3,)}))
def test_terms_are_of_causal_modules(options):
    with pytest.raises(ValueError, match="decays is -?[0-9], expected at least 1 term of causal"):
        mhla_torch.MHLA(64, 4, **options)
