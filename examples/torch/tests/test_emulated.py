"""The operators for CUDA without a device: csrc/cuda calls kernels in the emulator.

Tensors are bfloat16 or float32 of widths (64, 64), in blocks of 6 tokens.
"""

import itertools

import pytest
import torch

import mhla_torch
from cuda_calls import call, extras, KINDS, TAKEN, tensors
from mhla_torch import pattern as patterns

pytestmark = pytest.mark.usefixtures("emulated")
OPERATORS = torch.ops.mhla
ENDS = (0, 10, 10, 24)  # of packed sequences, one of them empty


def run(kind, q, k, v, mixing, **options):
    """Calls the operator below mhla_torch, which would apply angles and gains itself on the CPU."""
    blocks = {"bidirectional": (mixing, [], [6]), "causal": (mixing, 6), "linear": (),
              "linear_causal": (True,)}[kind]
    return getattr(OPERATORS, kind.removesuffix("_causal"))(q, k, v, *blocks, **options)


def masks(batch=2, tokens=24):
    """Masks of single tokens, of all queries of a block, and of a whole sequence of queries."""
    keep = torch.arange(batch * tokens).view(batch, tokens) % 4 < 3  # with the first key
    queries = keep.flip(1)
    queries[0, 6:12] = False
    queries[1:] = False
    return {"query_mask": queries, "key_mask": keep}


def packed(ends=ENDS):
    ends = torch.tensor(ends, dtype=torch.int32)
    most = int(ends.diff().max())
    return {"query_offsets": ends, "key_offsets": ends, "max_queries": most, "max_keys": most}


def formula(kind, *arguments, **options):
    """The formula of [..] in float64."""
    options = {name: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
               for name, t in options.items()}
    return call(kind, *(t.double() for t in arguments), backend="formula", **options)


def expect_near(out, exact, tolerance=2e-2):
    assert out.shape == exact.shape and torch.isfinite(out).all()
    assert (out.double() - exact).norm() <= tolerance * exact.norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", (24, 280))
@pytest.mark.parametrize("name", ("plain", "masks", "packed", "both"))
def test_equals_the_formula(kind, tokens, name):
    batch = 1 if name in ("packed", "both") else 2
    heads = 3 if tokens == 24 else 1
    arguments = tensors(tokens=(tokens, tokens), batch=batch, heads=heads)
    ends = (0, tokens // 3, tokens // 3, tokens)
    options = {"plain": {}, "masks": masks(batch, tokens), "packed": packed(ends),
               "both": packed(ends) | {"key_mask": masks(batch, tokens)["key_mask"]}}[name]
    for more in ({}, {"feature_map": "elu_plus_one", "eps": 0.25, "scale": 0.5}):
        exact = formula(kind, *arguments, **options, **more)
        expect_near(run(kind, *arguments, **options, **more), exact)
        if tokens > 24:
            return
        first = [t.transpose(1, 2) for t in arguments[:3]]
        out = run(kind, *first, arguments[3], layout="bhnd", **options, **more)
        expect_near(out.transpose(1, 2), exact)


TOLERANCE = {torch.bfloat16: 4e-2, torch.float32: 1e-4}  # of gradients


def leaves_of(kind, arguments, **options):
    """Tensors of a call that have gradients, by name."""
    floats = {name: t for name, t in options.items()
              if isinstance(t, torch.Tensor) and t.is_floating_point() and "angles" not in name}
    named = dict(zip(("q", "k", "v", "mixing"), arguments))
    if kind.startswith("linear"):
        del named["mixing"]
    return {name: t.detach().clone().requires_grad_() for name, t in (named | floats).items()}


def expect_equal(by_kernels, kind, arguments, options, tolerance, gradients_of):
    """Compares outputs and gradients of kernels with those of the formula in float64."""
    results = []
    for function in (by_kernels, formula):
        leaves = leaves_of(kind, arguments, **options)
        at = [leaves.get(argument, arguments[3]) for argument in ("q", "k", "v", "mixing")]
        out = function(kind, *at, **(options | {name: t for name, t in leaves.items()
                                                if name in options}))
        results.append((out, *gradients_of(out, list(leaves.values()))))
    for ours, exact in zip(*results):
        expect_near(ours, exact.double(), tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens, dtype", ((24, torch.bfloat16), (280, torch.bfloat16),
                                           (24, torch.float32)))
@pytest.mark.parametrize("name", ("plain", "masks", "packed"))
@pytest.mark.parametrize("normed", (False, True))
def test_gradients_equal_the_formula(kind, tokens, dtype, name, normed):
    batch = 1 if name == "packed" else 2
    heads = 3 if (tokens, dtype) == (24, torch.bfloat16) else 1
    arguments = tensors(tokens=(tokens, tokens), dtype=dtype, batch=batch, heads=heads)
    options = {"plain": {}, "masks": masks(batch, tokens),
               "packed": packed((0, tokens // 3, tokens // 3, tokens))}[name]
    options |= {"eps": 0.5, "norm_eps": 1e-3}
    if normed:
        more = extras(tokens=(tokens, tokens), dtype=dtype, batch=batch, heads=heads)
        if name == "packed":
            more = {argument: more[argument] for argument in ("gain", "gate")}
        options |= more | {"normalizer": "none"}
    dout = torch.randn_like(arguments[2])
    expect_equal(run, kind, arguments, options, TOLERANCE[dtype],
                 lambda out, leaves: torch.autograd.grad(out, leaves, dout.to(out)))


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("tokens", (24, 280))
@pytest.mark.parametrize("leading", ((2,), (2, 2)))
def test_heads_may_have_matrices_of_their_own(kind, tokens, leading):
    q, k, v, mixing = tensors(tokens=(tokens, tokens), heads=2)
    mixing = torch.rand(*leading, *mixing.shape)
    dout = torch.randn_like(v)
    results = []
    for function in (run, formula):
        leaves = [t.clone().requires_grad_() for t in (q, k, v, mixing)]
        out = function(kind, *leaves, eps=0.5)
        results.append((out, *torch.autograd.grad(out, leaves, dout.to(out))))
    for ours, exact in zip(*results):
        expect_near(ours, exact.double(), 4e-2)
    with pytest.raises(RuntimeError, match="mixing has shape"):
        run(kind, q, k, v, mixing[..., :1, :, :])


@pytest.mark.parametrize("kind", ("bidirectional", "causal"))
def test_sequences_have_the_bits_that_they_have_alone(kind):
    arguments = tensors(batch=1)
    q, k, v, mixing = arguments
    out = run(kind, *arguments, **packed())
    masked = [t.repeat(3, 1, 1, 1) for t in (q, k, v)]  # the same, padded
    keep = torch.zeros(3, 24, dtype=torch.bool)
    for i, (begin, end) in enumerate(itertools.pairwise(ENDS)):
        keep[i, :end - begin] = True
        for t in masked:
            t[i, :end - begin] = t[i, begin:end].clone()
            t[i, end - begin:] = torch.nan
    padded = run(kind, *masked, mixing, query_mask=keep, key_mask=keep)
    for i, (begin, end) in enumerate(itertools.pairwise(ENDS)):
        if begin == end:
            continue
        alone = run(kind, *(t[:, begin:end] for t in (q, k, v)), mixing)
        assert torch.equal(out[:, begin:end], alone)
        assert torch.equal(padded[i, :end - begin], alone[0])
    assert not padded[~keep].any()


def test_preparations_are_of_one_kind_of_call():
    """Calls of equal shapes do not share a preparation if masks or sequences differ."""
    q, k, v, mixing = tensors(batch=1, heads=1)
    both = masks(1)
    for options in ({}, {"query_mask": both["query_mask"]}, both, {"key_mask": both["key_mask"]},
                    packed(), packed((0, 14, 24)), packed((0, 24)),
                    packed((0, 14, 24)) | {"prefix": 2}, packed((0, 13, 24)) | {"prefix": 1}):
        out = run("bidirectional", q, k, v, mixing, **options)
        expect_near(out, formula("bidirectional", q, k, v, mixing, **options))
        OPERATORS.bidirectional_backward(out, q, k, v, mixing, [], [6], **options)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_outside_of_all_sequences_are_zeros(kind):
    """Rows that offsets leave out, and those after max_queries, have outputs and gradients of 0."""
    leaves = [t.requires_grad_() for t in tensors(batch=1)]
    options = packed((0, 4, 14)) | {"max_queries": 6, "max_keys": 6}
    out = run(kind, *leaves, **options)
    gradients = torch.autograd.grad(out.sum(), leaves[:3])
    for t in (out, *gradients):
        assert not t[:, 10:].any() and t[:, :10].any()
    out = run(kind, *leaves, **packed((0, 0)) | {"max_queries": 1, "max_keys": 1})
    assert not out.any() and not torch.autograd.grad(out.sum(), leaves[0])[0].any()


@pytest.mark.parametrize("kind", ("causal", "linear_causal"))
def test_autograd_may_save_offsets_twice(kind):
    leaves = [t.requires_grad_() for t in tensors(batch=1)]
    expected = torch.autograd.grad(run(kind, *leaves, **packed()).sum(), leaves[:3])
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.clone()):
        out = run(kind, *leaves, **packed())
        gradients = torch.autograd.grad(out.sum(), leaves[:3])
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected))


@pytest.mark.parametrize("options", (masks, packed))
def test_the_backward_reads_outputs_that_it_is_given(options):
    q, k, v, mixing = tensors(tokens=(280, 280), batch=1, heads=1)
    options = options((0, 280)) if options is packed else options(1, 280)
    out = run("causal", q, k, v, mixing, **options)
    again, given, wrong = (OPERATORS.causal_backward(v, q, k, v, mixing, 6, out=t, **options)
                           for t in (None, out, 2 * out))
    assert all(torch.equal(a, b) for a, b in zip(again, given))
    assert not torch.equal(wrong[0], given[0])


def test_cross_queries_of_packed_images():
    """A grid says how many tokens a packed image has."""
    q, k, v, _ = tensors(tokens=(48, 48), batch=1)
    ends = torch.tensor([0, 24, 48], dtype=torch.int32)
    mixing = torch.rand(4, 4)
    options = {"normalizer": "cross_query", "eps": 1e-3}
    out = OPERATORS.bidirectional(q, k, v, mixing, [4, 6], [2, 3], query_offsets=ends,
                                  key_offsets=ends.clone(), **options)
    alone = OPERATORS.bidirectional(*(t.view(2, 24, 3, 64) for t in (q, k, v)), mixing, [4, 6],
                                    [2, 3], **options)
    assert torch.equal(out.view_as(alone), alone)


@pytest.mark.parametrize("tokens, blocks, options", (
    (26, {"grid": [4, 6], "block": [2, 3], "prefix": 2}, {}),
    (26, {"grid": [4, 6], "block": [2, 3], "prefix": 2}, extras(tokens=(26, 26), heads=2)),
    (31, {"grid": [], "block": [6], "prefix": 7}, masks(2, 31)),
    (31, {"grid": [], "block": [6], "prefix": 3}, packed((0, 9, 31))),
    (8, {"grid": [], "block": [6], "prefix": 8}, {"normalizer": "none"}),
), ids=("image", "rotated", "masks", "packed", "alone"))
def test_a_prefix_is_one_more_block(tokens, blocks, options):
    q, k, v, _ = tensors(tokens=(tokens, tokens), batch=1 if "max_keys" in options else 2, heads=2)
    mixing = torch.rand(6, 6) if not blocks["grid"] else torch.rand(5, 5)
    dout, results = torch.randn_like(v), []
    for function, dtype in ((OPERATORS.bidirectional, None), (exact_bidirectional, torch.float64)):
        leaves = [t.to(dtype).requires_grad_() for t in (q, k, v, mixing)]
        out = function(*leaves, **blocks, **options, eps=0.5, norm_eps=1e-3)
        results.append((out, *torch.autograd.grad(out, leaves, dout.to(out))))
    for ours, exact in zip(*results):
        expect_near(ours, exact.double(), 4e-2)


def exact_bidirectional(*leaves, **options):
    doubles = {name: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
               for name, t in options.items()}
    return mhla_torch.bidirectional(*leaves, **doubles, backend="formula")


def test_queries_and_keys_of_other_lengths():
    q, k, v, mixing = tensors(tokens=(24, 40), batch=1)
    lengths = {"query_offsets": (0, 10, 24), "key_offsets": (0, 25, 40)}
    options = {name: torch.tensor(ends, dtype=torch.int32) for name, ends in lengths.items()}
    options |= {"max_queries": 14, "max_keys": 25}
    mask = {"key_mask": torch.arange(40)[None] % 3 > 0}
    expect_near(run("bidirectional", q, k, v, mixing, **options, **mask),
                formula("bidirectional", q, k, v, mixing, **options, **mask))
    expect_near(run("linear", q, k, v, mixing, **options),
                formula("linear", q, k, v, mixing, **options))


@pytest.mark.parametrize("dtype, leading, name", (
    (torch.bfloat16, (), "plain"), (torch.bfloat16, (2,), "packed"),
    (torch.bfloat16, (2, 2), "normed"), (torch.float32, (2,), "plain")))
def test_decaying_terms_equal_the_formula(dtype, leading, name):
    """Terms of up to 32, of all heads or of each, with their gradients."""
    tokens, batch = (50, 1) if name == "packed" else (30, 2)
    q, k, v, _ = tensors(tokens=(tokens, tokens), dtype=dtype, batch=batch, heads=2)
    terms = torch.rand(*(batch, 2)[2 - len(leading):], 2, 32 if name == "plain" else 2)
    options = {"plain": {}, "packed": packed((0, 20, 50)), "normed": {
        **extras(tokens=(tokens, tokens), dtype=dtype, heads=2), "normalizer": "none"}}[name]
    dout, results = torch.randn_like(v), []
    for function in (OPERATORS.causal, exact_decaying):
        leaves = [t.clone().requires_grad_() for t in (q, k, v, terms)]
        out = function(*leaves, 6, True, **options, norm_eps=1e-3)
        results.append((out, *torch.autograd.grad(out, leaves, dout.to(out))))
    for ours, exact in zip(*results):
        expect_near(ours, exact.double(), TOLERANCE[dtype])


def exact_decaying(q, k, v, terms, block, decaying, **options):
    return formula("causal", q, k, v, terms, decaying=decaying, **options)


def test_decaying_terms_share_no_preparation_with_a_matrix():
    """A matrix and as many terms have equal shapes, and 33 terms have no kernel."""
    q, k, v, _ = tensors(tokens=(12, 12))
    mixing = torch.rand(2, 2)
    for decaying in (False, True, False):
        expect_near(OPERATORS.causal(q, k, v, mixing, 6, decaying),
                    exact_decaying(q, k, v, mixing, 6, decaying))
    assert OPERATORS.causal_form(q, k, v, mixing, 6, True) == "three-stage"
    for wrong in (torch.rand(2, 33), torch.rand(2, 0), torch.rand(3, 2)):
        with pytest.raises((ValueError, RuntimeError), match="mixing has "):
            OPERATORS.causal(q, k, v, wrong, 6, True)


CROSS = (({"grid": [4, 6], "block": [2, 3], "key_block": [5]}, {}, 4, 8),
         ({"grid": [], "block": [6], "key_grid": [3, 13], "key_block": [3, 5], "key_prefix": 1},
          {"key_mask": torch.arange(80).view(2, 40) % 3 > 0}, 4, 4),
         ({"grid": [], "block": [6], "prefix": 2, "key_grid": [5, 4, 2], "key_block": [1, 4, 2]},
          {}, 5, 5))


@pytest.mark.parametrize("blocks, options, rows, columns", CROSS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_keys_have_blocks_of_their_own(blocks, options, rows, columns, dtype):
    q, k, v, _ = tensors(tokens=(24, 40), dtype=dtype, heads=2)
    mixing, results = torch.rand(rows, columns), []
    for function in (OPERATORS.bidirectional, exact_bidirectional):
        leaves = [t.double() if function is exact_bidirectional else t for t in (q, k, v, mixing)]
        leaves = [t.clone().requires_grad_() for t in leaves]
        out = function(*leaves, **blocks, **options, eps=0.5)
        results.append((out, *torch.autograd.grad(out.float().sin().sum(), leaves)))
    for ours, exact in zip(*results):
        expect_near(ours, exact.double(), TOLERANCE[dtype])


def test_packed_images_have_keys_of_any_length():
    """A grid of queries says how many they are, and max_keys how many keys."""
    q, k, v, mixing = tensors(tokens=(48, 40), batch=1)
    ends = [torch.tensor(t, dtype=torch.int32) for t in ((0, 24, 48), (0, 25, 40))]
    options = {"grid": [4, 6], "block": [2, 3], "key_block": [6], "query_offsets": ends[0],
               "key_offsets": ends[1]}
    out = OPERATORS.bidirectional(q, k, v, mixing[:4], **options, max_keys=25)
    expect_near(out, exact_bidirectional(*(t.double() for t in (q, k, v, mixing[:4])), **options))
    with pytest.raises((ValueError, RuntimeError), match="max_keys is 0, expected the tokens of"):
        OPERATORS.bidirectional(q, k, v, mixing[:4], **options)


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_kernels_skip_what_a_pattern_lacks(kind, dtype):
    """Values of blocks that no coefficient of a strip reads may be NaN."""
    q, k, v, mixing = tensors(tokens=(280, 280), dtype=dtype, batch=1, heads=1)
    pattern = (torch.arange(47) < 31).expand(47, 47)  # without the second strip of columns
    words, zeros = patterns.words(pattern), mixing * pattern
    results = []
    for function, more in ((run, {"pattern": words}), (formula, {})):
        leaves = [t.clone().requires_grad_() for t in (q, k, v, zeros)]
        out = function(kind, *leaves, **more, eps=0.5)
        results.append((out, *torch.autograd.grad(out.sum(), leaves)))
    assert not results[0][4][:, 31:].any()
    results[1][4][:, 31:] = 0
    for ours, exact in zip(*results):
        expect_near(ours, exact.double(), TOLERANCE[dtype])
    v[:, 6 * 40:] = torch.nan  # of a block in that strip
    rows = slice(0, 6 * 31)  # which read no later block of a causal form
    assert torch.isfinite(run(kind, q, k, v, zeros, pattern=words)[:, rows]).all()
    if kind == "bidirectional":
        assert run(kind, q, k, v, zeros).isnan().any()
    with pytest.raises((ValueError, RuntimeError), match="pattern has [0-9]+ words, expected"):
        run(kind, q, k, v, zeros, pattern=words[1:])


@pytest.mark.parametrize("wrong, sentence", (
    ({"query_offsets": None}, "query_offsets is absent, expected both query_offsets and"),
    ({"query_offsets": torch.tensor(ENDS)}, "query_offsets has type Long, expected Int"),
    ({"key_offsets": torch.tensor((0, 24), dtype=torch.int32)}, "key_offsets is another tensor"),
    ({"max_queries": 0}, "max_queries is 0, expected the tokens of the longest packed sequence"),
    ({"max_keys": 0}, "max_keys is 0, expected the tokens of the longest packed sequence"),
    ({"max_keys": 20}, "max_keys is 20, expected 14 as the blocks"),
    ({"query_offsets": torch.zeros(0, dtype=torch.int32)}, "query_offsets has 0 numbers"),
    ({"query_mask": torch.ones(1, 20, dtype=torch.bool)},
     r"query_mask has shape \[1, 20\], expected \[1, 24\]"),
    ({"key_mask": torch.ones(1, 24)}, "key_mask has type Float, expected Bool"),
    ({"key_mask": torch.ones(24, dtype=torch.bool)}, "key_mask has 1 axes, expected 2"),
))
def test_errors_name_the_argument(wrong, sentence):
    with pytest.raises((ValueError, RuntimeError), match="(mhla::|emulated).*" + sentence):
        run("causal", *tensors(batch=1), **(packed() | wrong))


def test_packed_sequences_are_of_one_batch_item():
    with pytest.raises((ValueError, RuntimeError), match="q has 2 batch items, expected 1"):
        run("causal", *tensors(), **packed())


@pytest.mark.parametrize("widths, dtype", TAKEN)
def test_tells_the_form_of_all_widths(widths, dtype):
    form = OPERATORS.bidirectional_form(*tensors(widths, dtype=dtype), [], [6])
    in_stages = widths == (256, 256) or dtype is torch.float32
    assert form == ("three-stage" if in_stages else "quadratic")


def test_float32_has_no_kernels_of_wide_keys():
    with pytest.raises((ValueError, RuntimeError), match="have widths .* of Float on CUDA"):
        run("causal", *tensors((256, 256), dtype=torch.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ("plain", "masks", "packed"))
def test_wide_values_of_float32_equal_the_formula(kind, name):
    arguments = tensors((128, 256), dtype=torch.float32, batch=1, heads=1)
    options = {"plain": {}, "masks": masks(1, 24), "packed": packed((0, 8, 8, 24))}[name]
    expect_equal(run, kind, arguments, options | {"eps": 0.5}, TOLERANCE[torch.float32],
                 lambda out, leaves: torch.autograd.grad(out.sin().sum(), leaves))


def test_tells_the_form():
    q, k, v, mixing = tensors(batch=1)
    assert OPERATORS.causal_form(q, k, v, mixing, 6, **packed()) == "quadratic"
    assert mhla_torch.explain(mhla_torch.causal, q, k, v, mixing, block=6).form == "cpu"
