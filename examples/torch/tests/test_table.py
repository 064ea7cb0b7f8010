"""The table of the page says what kernels for CUDA take: its cells are asked of `explain`."""

import itertools
from pathlib import Path

import torch

from cuda_calls import call, extras, KINDS, tensors
from test_cuda_refusals import explained, KEEP, PACKED


def cells_of_page():
    """The cells of kernels on CUDA, by the names of rows."""
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    rows = page.partition("| | kernels, CPU | kernels, CUDA | formula |\n")[2].partition("\n\n")[0]
    cells = [row.split(" | ") for row in rows.splitlines()[1:]]
    return {row[0].removeprefix("| "): row[2] for row in cells}


def takes(*arguments, **options):
    return explained(*arguments, **options).backend == "kernels"


def every_kind_takes(**options):
    return all(takes(kind, **options) for kind in KINDS)


def name(dtype):
    return str(dtype).removeprefix("torch.")


def widths():
    """Pairs that all types take, and those that only types of 16 bits take."""
    sizes = (16, 32, 48, 64, 72, 80, 96, 128, 256)
    pairs = {dtype: [pair for pair in itertools.product(sizes, repeat=2)
                     if every_kind_takes(widths=pair, dtype=dtype)]
             for dtype in (torch.bfloat16, torch.float16, torch.float32)}
    assert pairs[torch.bfloat16] == pairs[torch.float16]
    more = [pair for pair in pairs[torch.bfloat16] if pair not in pairs[torch.float32]]
    assert len(more) + len(pairs[torch.float32]) == len(pairs[torch.bfloat16])
    return ", ".join(map(str, pairs[torch.float32])) + "; in 16 bits also " + ", ".join(
        map(str, more))


def takes_terms(*shape):
    with torch._subclasses.FakeTensorMode():
        q, k, v, _ = tensors(device="cuda")
        terms = torch.ones(shape, device="cuda")
        return call("causal", q, k, v, terms, decaying=True, explain=True).backend == "kernels"


def decaying_terms():
    """The most terms, which heads and batch items may have for themselves."""
    most = max(terms for terms in range(1, 64) if takes_terms(2, terms))
    assert takes_terms(3, 2, most) and takes_terms(2, 3, 2, most)
    return f"up to {most}, also per head and batch item"


def test_cells_of_kernels_for_cuda(with_kernels):
    page = cells_of_page()
    types = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    assert page["types"] == ", ".join(name(t) for t in types if every_kind_takes(dtype=t))
    assert page["widths (D, E)"] == widths()
    maps = ("relu", "elu_plus_one", "identity", "exp")
    assert page["feature maps"] == ", ".join(
        f"`{name}`" for name in maps if every_kind_takes(feature_map=name))
    assert page["decaying terms, [2,R]"] == decaying_terms()
    assert page["normalisers"] == "all" and all(
        takes(normalizer=name) for name in ("none", "key_sum", "cross_query"))
    assert page["masks"] == "yes" and every_kind_takes(query_mask=KEEP, key_mask=KEEP)
    assert every_kind_takes(**PACKED)


def test_cells_of_gain_and_gate(with_kernels):
    cell = cells_of_page()["gain and gate of outputs"]
    assert cell.startswith("yes, but not causal (256, 256).")
    for pair in ((128, 256), (256, 256)):
        normed = {argument: t for argument, t in extras(pair).items() if "angles" not in argument}
        assert takes(widths=pair, **normed)
        assert takes("causal", pair, **normed) == (pair != (256, 256))
