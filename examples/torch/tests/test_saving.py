"""Tensors that a forward saves for its backward: the inputs, or also the summaries of blocks."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

import mhla_torch
from test_operators import BLOCK, GRID, OPERATORS, TOKENS, tensors

KINDS = ("bidirectional", "causal")


def call(kind, q, k, v, mixing, save="summaries", **options):
    if kind == "causal":
        return mhla_torch.causal(q, k, v, mixing, block=6, save=save, **options)
    return mhla_torch.bidirectional(q, k, v, mixing, grid=GRID, block=BLOCK, save=save, **options)


def output_and_gradients(kind, save, pack=lambda t: t, unpack=lambda t: t, **options):
    dtype = options.pop("dtype", torch.float32)
    leaves = tensors(dtype=dtype)
    if options.pop("own", False):
        leaves += tensors(seed=1, dtype=dtype)[:2]
        options |= {"normalizer_q": leaves[4], "normalizer_k": leaves[5]}
    leaves = [t.requires_grad_() for t in leaves]
    q, k, v, mixing = leaves[:4]
    if options.get("layout") == "bhnd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    with saved_tensors_hooks(pack, unpack):
        out = call(kind, q, k, v, mixing, save, **options)
    return out, *torch.autograd.grad(out.float().square().sum(), leaves)


def equal(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def is_kept(tensor):
    return tensor.dtype is torch.uint8


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", ({}, {"layout": "bhnd"}, {"own": True}, {"normalizer": "none"},
                                     {"dtype": torch.bfloat16}, {"dtype": torch.float64},
                                     {"gain": torch.ones(7), "norm_eps": 0.5}), ids=str)
def test_results_have_the_same_bits_either_way(kind, options):
    assert equal(*(output_and_gradients(kind, save, **options) for save in ("inputs", "summaries")))


def test_a_prefix_and_sequences_have_summaries_too():
    q, k, v, _ = (t.requires_grad_() for t in tensors(tokens=TOKENS + 2))
    mixing = torch.rand(5, 5, dtype=torch.float64, requires_grad=True)
    for blocks in ({"grid": GRID, "block": BLOCK, "prefix": 2}, {"block": (7,)},
                   {"block": (7,), "prefix": 1}):
        results = []
        for save in ("inputs", "summaries"):
            out = mhla_torch.bidirectional(q, k, v, mixing, save=save, **blocks)
            results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v, mixing))))
        assert equal(*results), blocks
        torch.library.opcheck(OPERATORS.bidirectional_kept.default, (q, k, v, mixing), {
            "grid": (), "prefix": 0} | blocks, test_utils="test_faketensor")


@pytest.mark.parametrize("kind", KINDS)
def test_saves_what_it_says(kind):
    for save in ("inputs", "summaries"):
        saved = []
        output_and_gradients(kind, save, pack=lambda t: saved.append(t) or t)
        inputs = [t for t in saved if not is_kept(t)]
        assert sum(t.nbytes for t in inputs) == sum(t.nbytes for t in tensors(dtype=torch.float32))
        batch, heads, blocks, width, values = 2, 3, 4, 5, 7
        sums = 4 * batch * heads * blocks * width * (values + 1)  # bytes
        kept = sum(t.nbytes for t in saved if is_kept(t))
        if save == "inputs":
            assert kept == 0
        else:
            assert sums <= kept <= sums + batch * heads * blocks * 1024  # the cost of rounding up


def half_of_zeros(kept):
    """Summaries of which half are 0, with the mark at their end that a forward wrote them."""
    changed = kept.clone()
    changed.view(-1)[:kept.numel() // 2] = 0
    return changed


@pytest.mark.parametrize("kind", KINDS)
def test_the_backward_reads_the_summaries(kind):
    exact = output_and_gradients(kind, "summaries")
    without = output_and_gradients(kind, "summaries",
                                   unpack=lambda t: half_of_zeros(t) if is_kept(t) else t)
    assert torch.equal(exact[0], without[0])
    for name, there, gone in zip(("q", "mixing"), exact[1::3], without[1::3]):
        assert not torch.allclose(there, gone), name


def test_summaries_may_be_moved_in_between():
    def elsewhere(t):
        if not is_kept(t):
            return t
        moved.append(torch.cat([t.new_zeros(7), t.flatten()])[7:].view_as(t))
        as_moved.append(moved[-1].clone())
        return moved[-1]

    moved, as_moved = [], []
    exact = output_and_gradients("bidirectional", "summaries")
    assert equal(exact, output_and_gradients("bidirectional", "summaries", unpack=elsewhere))
    assert moved and equal(moved, as_moved), "a backward wrote what was kept"


def test_summaries_have_no_gradient_in_memory():
    class Zeros(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if "zeros" in function.name() and result.dtype is torch.uint8:
                zeros.append(function)
            return result

    zeros = []
    leaves = [t.requires_grad_() for t in tensors()]
    out = call("causal", *leaves).sum()
    with Zeros():
        torch.autograd.grad(out, leaves)
    assert not zeros


def test_keeps_nothing_where_there_is_no_backward():
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function.name())
            return function(*args, **(kwargs or {}))

    leaves = [t.requires_grad_() for t in tensors()]
    for context, inputs, expected in ((torch.no_grad, leaves, "mhla::causal"),
                                      (torch.enable_grad, tensors(), "mhla::causal"),
                                      (torch.enable_grad, leaves, "mhla::causal_kept")):
        names = []
        with context(), Names():
            call("causal", *inputs)
        assert [name for name in names if name.startswith("mhla::")] == [expected]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ("bnhd", "bhnd"))
def test_gradients_by_differences(kind, layout):
    q, k, v, mixing = tensors(batch=1, heads=2, width=3, values=2)
    if layout == "bhnd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    leaves = [t.requires_grad_() for t in (q, k, v, mixing)]
    options = {"feature_map": "elu_plus_one", "layout": layout}
    assert torch.autograd.gradcheck(lambda *t: call(kind, *t, **options), leaves)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", ({}, {"width": 16, "values": 72}, {"width": 72, "values": 16},
                                     {"width": 8, "values": 8, "batch": 1},
                                     {"dtype": torch.float32}, {"dtype": torch.float16}), ids=str)
def test_keeps_the_contract_of_operators(kind, options):
    q, k, v, mixing = (t.requires_grad_() for t in tensors(**options))
    operator = getattr(OPERATORS, kind + "_kept").default
    blocks = (6,) if kind == "causal" else (GRID, BLOCK)
    # Bytes are not compared: padding of rounded sizes is never written.
    torch.library.opcheck(operator, (q, k, v, mixing, *blocks), test_utils=(
        "test_schema", "test_autograd_registration", "test_faketensor"))
    with torch.no_grad():
        out, kept = operator(q, k, v, mixing, *blocks)
    backward = getattr(OPERATORS, kind + "_backward").default
    torch.library.opcheck(backward, (torch.ones_like(out), *(t.detach() for t in (q, k, v, mixing)),
                                     *blocks), {"kept": kept})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dynamic", (False, True))
def test_compiles_whole(kind, dynamic):
    torch.compiler.reset()
    compiled = torch.compile(lambda *t: call(kind, *t), fullgraph=True, dynamic=dynamic)
    for batch in (1, 2, 3):
        leaves = [t.requires_grad_() for t in tensors(batch=batch)]
        results = []
        for run in (compiled, lambda *t: call(kind, *t)):
            saved = []
            with saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
                out = run(*leaves)
            assert any(is_kept(t) for t in saved)
            results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
        assert torch.equal(results[0][0], results[1][0])
        for ours, theirs in zip(*results):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_module_passes_the_choice_on_and_exports():
    module = mhla_torch.MHLA(GRID, BLOCK, save="summaries")
    q, k, v = (t.detach().transpose(1, 2) for t in tensors(dtype=torch.float32)[:3])
    program = torch.export.export(module, (q, k, v))
    targets = [node.target for node in program.graph.nodes]
    assert OPERATORS.bidirectional_kept.default in targets
    assert torch.equal(program.module()(q, k, v), mhla_torch.MHLA(GRID, BLOCK)(q, k, v))


def test_says_what_may_be_saved():
    with pytest.raises(ValueError, match='save is "all", expected inputs or summaries'):
        call("causal", *tensors(), save="all")
    ends = torch.tensor([0, 10, 24])
    with pytest.raises(ValueError, match="packed sequences have is not in their shape"):
        call("causal", *tensors(batch=1), query_offsets=ends, key_offsets=ends)
