"""The operators against their formula, and PyTorch's requirements of an operator."""

import pytest
import torch
from torch.autograd import forward_ad

import mhla_torch
from mhla_torch import kernels

OPERATORS = torch.ops.mhla
KINDS = ("bidirectional", "causal", "linear", "linear_causal")
GRID, BLOCK = (4, 6), (2, 3)
TOKENS = 24


def tensors(seed=0, batch=2, tokens=TOKENS, heads=3, width=5, values=7, dtype=torch.float64):
    """Random q, k, v and a mixing matrix of four blocks."""
    torch.manual_seed(seed)
    shapes = [(batch, tokens, heads, width)] * 2 + [(batch, tokens, heads, values), (4, 4)]
    q, k, v, mixing = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    sums = torch.float64 if dtype is torch.float64 else torch.float32
    return q.to(dtype), k.to(dtype), v.to(dtype), mixing.abs().to(sums)


def call(kind, q, k, v, mixing, **options):
    if kind == "bidirectional":
        return mhla_torch.bidirectional(q, k, v, mixing, grid=GRID, block=BLOCK, **options)
    if kind == "causal":
        return mhla_torch.causal(q, k, v, mixing, block=6, **options)
    return mhla_torch.linear(q, k, v, causal=kind == "linear_causal", **options)


def expected(*arguments, **options):
    """The result of the formula in PyTorch; test_formula.py compares it with the definition."""
    return call(*arguments, **options, backend="formula")


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("feature_map", ("relu", "elu_plus_one", "identity", "exp"))
def test_equals_the_formula(kind, feature_map):
    normalizer = "none" if feature_map == "identity" else "key_sum"
    options = {"feature_map": feature_map, "normalizer": normalizer, "eps": 0.25, "scale": 0.5}
    close(call(kind, *tensors(), **options), expected(kind, *tensors(), **options))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype, tolerance", ((torch.float32, 2e-6), (torch.bfloat16, 1e-2),
                                              (torch.float16, 1e-3)))
def test_takes_the_types_of_the_library(kind, dtype, tolerance):
    out = call(kind, *tensors(dtype=dtype))
    assert out.dtype is dtype
    exact = expected(kind, *(t.double() for t in tensors(dtype=dtype)))
    torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=tolerance)


def test_mixes_the_queries_of_a_slot():
    options = {"normalizer": "cross_query", "eps": 1e-3}
    more = dict(zip(("normalizer_q", "normalizer_k"), tensors(seed=1)))
    for extra in ({}, more):
        close(call("bidirectional", *tensors(), **options, **extra),
              expected("bidirectional", *tensors(), **options, **extra))


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("save", ("inputs", "summaries"))
def test_heads_may_have_matrices_of_their_own(kind, save):
    q, k, v, _ = tensors()
    mixing = torch.rand(3, 4, 4, dtype=torch.float64)
    results = []
    for options in ({"backend": "kernels", "save": save}, {"backend": "formula"}):
        leaves = [t.clone().requires_grad_() for t in (q, k, v, mixing)]
        out = call(kind, *leaves, **options)
        results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    for ours, exact in zip(*results):
        assert ours.shape == exact.shape
        close(ours, exact, 1e-11)
    arguments = (kind, q, k, v, mixing)
    assert torch.equal(torch.compile(call, fullgraph=True)(*arguments), call(*arguments))
    for wrong in (mixing[:2], mixing[:, :3]):
        for backend in ("kernels", "formula"):
            with pytest.raises((ValueError, RuntimeError), match="mixing has"):
                call(kind, q, k, v, wrong, backend=backend)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_matrices_of_items_run_as_a_formula_on_the_cpu(kind):
    q, k, v, _ = tensors()
    mixing = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match="mixing has 4 axes, expected 2 or 3 on the CPU"):
        call(kind, q, k, v, mixing, backend="kernels")
    with pytest.warns(mhla_torch.FormulaWarning, match="mixing has 4 axes"):
        kernels.WARNED.clear()
        out = call(kind, q, k, v, mixing)
    close(out, torch.cat([call(kind, *(t[b:b + 1] for t in (q, k, v)), mixing[b])
                          for b in range(2)]))


@pytest.mark.parametrize("kind", KINDS)
def test_reads_no_masked_token(kind):
    q, k, v, mixing = tensors()
    keep = torch.ones(2, TOKENS, dtype=torch.bool)
    keep[0, 20:] = False
    k = k.masked_fill(~keep[..., None, None], torch.nan)
    out = call(kind, q, k, v, mixing, query_mask=keep, key_mask=keep)
    close(out, expected(kind, q, k, v, mixing, query_mask=keep, key_mask=keep))


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_over_zero_are_constants(kind):
    keep = torch.ones(2, TOKENS, dtype=torch.bool)
    keep[0, :10] = False  # padding on the left, and an item without keys
    keep[1] = False

    def run(backend):
        leaves = tensors()
        leaves[3][1] = 0  # which clamp(m, 0, 1) may leave
        leaves = [t.requires_grad_() for t in leaves]
        out = call(kind, *leaves, key_mask=keep, feature_map="elu_plus_one", backend=backend)
        used = leaves[:3] if kind.startswith("linear") else leaves
        return out, *torch.autograd.grad(out.square().sum(), used)

    out, *gradients = run("kernels")
    assert not out[1].any() and not any(g[1].any() for g in gradients[:3])
    assert not gradients[3:] or not gradients[3][1].any()
    for a, b in zip((out, *gradients), run("formula")):
        assert torch.isfinite(a).all()
        close(a, b, 1e-10)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_packed_sequences_are_as_alone(kind):
    q, k, v, mixing = tensors(batch=1)
    ends = torch.tensor([0, 10, 10, 24])
    out = call(kind, q, k, v, mixing, query_offsets=ends, key_offsets=ends)
    for begin, end in ((0, 10), (10, 24)):
        alone = [t[:, begin:end] for t in (q, k, v)]
        assert torch.equal(out[:, begin:end], call(kind, *alone, mixing))
    for lengths in ({"max_queries": 14}, {"max_queries": 24, "max_keys": 14}):
        narrow = ends.int()
        assert torch.equal(call(kind, q, k, v, mixing, query_offsets=narrow, key_offsets=narrow,
                                **lengths), out)


@pytest.mark.parametrize("backend", ("kernels", "formula"))
@pytest.mark.parametrize("wrong, sentence", (
    ({"max_queries": 13}, "max_queries is 13, expected at least the tokens of the longest packed"),
    ({"max_queries": 14, "max_keys": 9}, "max_keys is 9, expected at least the tokens of"),
    ({"max_keys": 0}, "max_keys is 0, expected at least 1"),
    ({"query_offsets": torch.tensor([0., 24.])}, "query_offsets has type torch.float32, expected"),
    ({"key_offsets": None, "max_keys": 14}, "max_keys is given without key_offsets, expected both"),
))
def test_lengths_of_packed_sequences_are_checked(backend, wrong, sentence):
    ends = torch.tensor([0, 10, 10, 24])
    options = {"query_offsets": ends, "key_offsets": ends} | wrong
    with pytest.raises((ValueError, RuntimeError), match="mhla::.*" + sentence):
        call("linear", *tensors(batch=1), **options, backend=backend)


def test_a_prefix_is_a_block_of_its_own():
    q, k, v, _ = tensors(tokens=TOKENS + 2)
    mixing = torch.rand(5, 5, dtype=torch.float64)
    for blocks in ({"grid": GRID, "block": BLOCK, "prefix": 2}, {"block": (7,), "prefix": 1}):
        close(*(mhla_torch.bidirectional(q, k, v, mixing, backend=backend, **blocks)
                for backend in ("kernels", "formula")))


def test_cross_attention_of_sequences():
    q, (_, k, v, mixing) = tensors(tokens=13)[0], tensors()
    close(*(mhla_torch.bidirectional(q, k, v, mixing, block=(6,), backend=backend)
            for backend in ("kernels", "formula")))


@pytest.mark.parametrize("kind", KINDS)
def test_reads_any_strides(kind):
    q, k, v, mixing = tensors(values=5)
    dense = call(kind, q, k, v, mixing)
    packed = torch.stack([q, k, v], 2).unbind(2)
    assert not packed[1].is_contiguous()
    assert torch.equal(call(kind, *packed, mixing), dense)
    heads_first = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    out = call(kind, *heads_first, mixing, layout="bhnd")
    assert torch.equal(out.transpose(1, 2), dense)
    assert out.transpose(1, 2).is_contiguous()
    columns = [t.movedim(-1, 0).contiguous().movedim(0, -1) for t in (q, k, v)]
    close(call(kind, *columns, mixing.T.contiguous().T), dense)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ("bnhd", "bhnd"))
def test_gradients_by_differences(kind, layout):
    q, k, v, mixing = tensors(batch=1, heads=2, width=3, values=2)
    if layout == "bhnd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    leaves = [t.requires_grad_() for t in (q, k, v, mixing)]
    options = {"feature_map": "elu_plus_one", "layout": layout}
    used = leaves[:3] if kind.startswith("linear") else leaves
    assert torch.autograd.gradcheck(
        lambda *t: call(kind, *t[:3], mixing, **options), used)


@pytest.mark.parametrize("kind", KINDS[:1])
def test_gradients_of_the_denominators_own_tokens(kind):
    leaves = [t.requires_grad_() for t in tensors(batch=1)[:3] + tensors(seed=3, batch=1)[:2]]
    mixing = tensors()[3]
    def run(function):
        options = {"feature_map": "elu_plus_one", "normalizer_q": leaves[3],
                   "normalizer_k": leaves[4]}
        return torch.autograd.grad(function(kind, *leaves[:3], mixing, **options).sum(), leaves)
    for ours, theirs in zip(run(call), run(expected)):
        close(ours, theirs, 1e-11)


def calls_of_the_dispatcher():
    """Pairs (operator, arguments) of each operator, with and without optional tensors."""
    q, k, v, mixing = tensors(batch=1, heads=2, width=3, values=2)
    keep = torch.ones(1, TOKENS, dtype=torch.bool)
    options = {"normalizer_q": q.clone(), "normalizer_k": k.clone(), "key_mask": keep}
    first = [t.transpose(1, 2) for t in (q, k, v)]
    yield OPERATORS.bidirectional.default, (q, k, v, mixing, GRID, BLOCK), {}
    yield OPERATORS.bidirectional.default, (*first, mixing, GRID, BLOCK), {"layout": "bhnd"}
    yield OPERATORS.bidirectional.default, (q, k, v, mixing, GRID, BLOCK), options
    yield OPERATORS.causal.default, (q, k, v, mixing, 6), {}
    yield OPERATORS.linear.default, (q, k, v), {}
    yield OPERATORS.linear.default, (q, k, v, True), {"query_mask": keep}
    dout = torch.ones_like(v)
    yield OPERATORS.bidirectional_backward.default, (dout, q, k, v, mixing, GRID, BLOCK), {}
    yield OPERATORS.causal_backward.default, (dout, q, k, v, mixing, 6), {}
    yield OPERATORS.linear_backward.default, (dout, q, k, v), options
    yield OPERATORS.causal_backward.default, (dout, q, k, v, mixing, 6), {"unwanted": 0b1010}


@pytest.mark.parametrize("case", range(10))
def test_keeps_the_contract_of_operators(case):
    operator, args, kwargs = list(calls_of_the_dispatcher())[case]
    if not operator.name().endswith("_backward"):
        args = [t.clone().requires_grad_() if isinstance(t, torch.Tensor) else t for t in args]
    torch.library.opcheck(operator, args, kwargs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dynamic", (False, True))
def test_compiles_whole(kind, dynamic):
    torch.compiler.reset()
    compiled = torch.compile(lambda *t: call(kind, *t).square(), fullgraph=True, dynamic=dynamic)
    for batch in (1, 2, 3):
        leaves = [t.requires_grad_() for t in tensors(batch=batch)]
        used = leaves[:3] if kind.startswith("linear") else leaves
        out, eager = compiled(*leaves), call(kind, *leaves).square()
        assert torch.equal(out, eager)
        for ours, theirs in zip(*(torch.autograd.grad(y.sum(), used) for y in (out, eager))):
            close(ours, theirs)


def test_bits_do_not_depend_on_threads():
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for batch, kind in ((2, "bidirectional"), (1, "causal"), (2, "linear")):
                large = tensors(batch=batch, width=160, values=160, dtype=torch.float32)
                leaves = [t.requires_grad_() for t in large]
                out = call(kind, *leaves)
                used = leaves[:3] if kind == "linear" else leaves
                results.append((out, *torch.autograd.grad(out.square().sum(), used)))
    finally:
        torch.set_num_threads(before)
    for i in range(3):
        for other in (results[i + 3], results[i + 6]):
            assert all(torch.equal(a, b) for a, b in zip(results[i], other))


def test_runs_inside_other_threads():
    from concurrent.futures import ThreadPoolExecutor
    inputs = tensors(width=160, values=160)  # enough work for threads
    once = call("bidirectional", *inputs)
    with ThreadPoolExecutor(4) as pool:
        outs = list(pool.map(lambda _: call("bidirectional", *inputs), range(40)))
    assert all(torch.equal(once, out) for out in outs)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_multiplies_in_16_bits(kind):
    q, k, v, mixing = (t.requires_grad_() for t in tensors(dtype=torch.float32))
    for low in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", low):
            out = call(kind, q, k, v, mixing)
        assert torch.equal(out, call(kind, q.to(low), k.to(low), v.to(low), mixing))
        used = (q, k, v) if kind.startswith("linear") else (q, k, v, mixing)
        assert all(g.dtype is torch.float32 for g in torch.autograd.grad(out.float().sum(), used))
    with torch.autocast("cpu", torch.bfloat16):
        assert call(kind, *tensors()).dtype is torch.float64


def test_autocast_leaves_the_mixing_matrix_alone():
    ones, step = torch.ones(1, 4, 1, 2), 2**-12  # which bfloat16 cannot tell from 0 beside 1
    mixing = torch.tensor([[1 + step, -1], [0, 0]])
    with torch.autocast("cpu", torch.bfloat16):
        out = mhla_torch.bidirectional(ones, ones, ones, mixing, block=(2,), normalizer="none",
                                       feature_map="identity")
    assert torch.equal(out[0, :, 0, 0].float(), torch.tensor([4 * step, 4 * step, 0, 0]))


@pytest.mark.parametrize("kind", KINDS)
def test_says_which_derivatives_there_are_not(kind):
    leaves = [t.requires_grad_() for t in tensors()]
    dq, = torch.autograd.grad(call(kind, *leaves).square().sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match='no second derivatives, backend="formula" has them'):
        torch.autograd.grad(dq.sum(), leaves[1])
    q, k, v, mixing = tensors()
    with pytest.raises(ValueError, match="in a transform of torch.func, expected none"):
        torch.func.jvp(lambda q: call(kind, q, k, v, mixing, backend="kernels"), (q,), (q,))
    with forward_ad.dual_level():
        for name in ("q", "mixing"):
            given = {"q": q, "k": k, "v": v, "mixing": mixing}
            given[name] = forward_ad.make_dual(given[name], torch.ones_like(given[name]))
            if name == "q" or not kind.startswith("linear"):
                with pytest.raises(ValueError, match=name + " has a tangent, expected none"):
                    call(kind, *given.values(), backend="kernels")


@pytest.mark.parametrize("kind", KINDS)
def test_empty_batches(kind):
    leaves = [t.requires_grad_() for t in tensors(batch=0)]
    out = call(kind, *leaves)
    assert out.shape == (0, TOKENS, 3, 7)
    used = leaves[:3] if kind.startswith("linear") else leaves
    gradients = torch.autograd.grad(out.sum(), used)
    assert all(not g.any() and g.shape == t.shape for g, t in zip(gradients, used))


@pytest.mark.parametrize("wrong, sentence", (
    ({"mixing": torch.ones(3, 4)}, r"mixing has shape \[3, 4\], expected \[4, 4\]"),
    ({"mixing": torch.ones(4)}, "mixing has 1 axes, expected 2"),
    ({"grid": (4, 5)}, "query_blocks covers 20 tokens, expected 24 tokens"),
    ({"block": (2,)}, r"block has 1 sizes, expected 2 \(those of grid\)"),
    ({"grid": (2, 2, 2, 3), "block": (1, 1, 1, 1)}, "grid has 4 sizes, expected 1 to 3"),
    ({"prefix": -1}, "prefix is -1, expected at least 0"),
    ({"feature_map": "gelu"}, 'name is "gelu", expected relu, elu_plus_one, identity or exp'),
    ({"normalizer": "sum"}, 'name is "sum", expected none, key_sum or cross_query'),
    ({"layout": "nbhd"}, 'layout is "nbhd", expected bnhd or bhnd'),
    ({"k": torch.ones(2, TOKENS, 3, 4)}, r"k has width 4, 4 after the feature map, expected 5"),
    ({"v": torch.ones(2, 5, 3, 7)}, "v has shape"),
    ({"v": torch.ones(2, TOKENS, 3, 7, dtype=torch.float64)}, "v has type Double, expected Float"),
    ({"q": torch.ones(2, TOKENS, 3, 5, dtype=torch.int64)}, "q has type Long, expected Float"),
    ({"key_mask": torch.ones(2, TOKENS)}, "key_mask has type Float, expected Bool"),
    ({"key_mask": torch.ones(2, 3, dtype=torch.bool)}, "key_mask has shape"),
    ({"normalizer_q": torch.ones(2, TOKENS, 3, 5)}, "normalizer_k is absent, expected both"),
    ({"gate": torch.ones(2, TOKENS, 3, 7)}, "gate is given without a gain"),
    ({"query_angles": torch.ones(TOKENS, 5)}, "query_angles has 5 columns, expected an even"),
    ({"scale": torch.ones(())}, "scale is a tensor, expected a number"),
))
def test_errors_say_what_was_expected(wrong, sentence):
    arguments = dict(zip(("q", "k", "v", "mixing"), tensors(dtype=torch.float32)))
    arguments |= {"grid": GRID, "block": BLOCK} | wrong
    with pytest.raises((ValueError, RuntimeError), match="mhla.*" + sentence):
        mhla_torch.bidirectional(**arguments)


@pytest.mark.parametrize("argument", ("query_angles", "key_angles", "gain", "gate"))
def test_operators_of_the_cpu_refuse_what_the_functions_apply(argument):
    q, k, v, mixing = tensors()
    with pytest.raises((ValueError, RuntimeError),
                       match=f"mhla::causal: {argument} is given, expected none on the CPU"):
        OPERATORS.causal(q, k, v, mixing, 6, **{argument: q})


def test_refuses_a_matrix_of_one_axis_whose_summaries_are_kept():
    q, k, v, _ = tensors(dtype=torch.float32)
    with pytest.raises((ValueError, RuntimeError), match="mixing has 1 axes, expected 2"):
        mhla_torch.bidirectional(q, k, v, torch.ones(4, requires_grad=True), grid=GRID, block=BLOCK,
                                 save="summaries")


def test_refuses_tensors_of_several_devices():
    arguments = dict(zip(("q", "k", "v", "mixing"), tensors(dtype=torch.float32)))
    arguments |= {"grid": GRID, "block": BLOCK, "key_mask": torch.ones(2, TOKENS, dtype=torch.bool)}
    for name in ("k", "mixing", "key_mask"):
        with pytest.raises(ValueError, match=f"{name} is on meta, expected cpu as q"):
            mhla_torch.bidirectional(**arguments | {name: arguments[name].to("meta")})


def test_refuses_another_device():
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(1, 4, 1, 2, device="xpu")
        with pytest.raises(ValueError, match="q is on xpu:0, expected cpu or cuda"):
            mhla_torch.linear(q, q, q, backend="kernels")
