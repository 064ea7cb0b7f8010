"""Mixing by distance: the matrix of a table of offsets, and modules that have one."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck

import mhla_torch


def draw(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def definition(table, blocks, causal):
    """The matrix [M,M] of a table, coefficient by coefficient, without divided rows."""
    places = list(itertools.product(*map(range, blocks)))
    m = torch.zeros(len(places), len(places), dtype=table.dtype)
    for (i, query), (b, key) in itertools.product(enumerate(places), repeat=2):
        at = (min(max(q - k, -(n // 2)), n // 2) + n // 2 for q, k, n in zip(query, key, table.shape))
        m[i, b] = 0 if causal and b > i else table[tuple(at)]
    return m


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("offsets, blocks", (((3,), (5,)), ((7,), (3,)), ((3, 5), (4, 3)),
                                             ((1, 3, 3), (2, 2, 3)), ((1,), (1,))))
def test_coefficients_are_those_of_the_offset(offsets, blocks, causal):
    tables = draw(2, *offsets)  # of two heads
    m = mhla_torch.distance_matrix(tables, blocks, causal=causal, rows_sum_to_one=False)
    exact = torch.stack([definition(table, blocks, causal) for table in tables])
    assert m.equal(exact)
    divided = mhla_torch.distance_matrix(tables, blocks, causal=causal)
    torch.testing.assert_close(divided, exact / exact.sum(-1, keepdim=True))
    assert gradcheck(lambda t: mhla_torch.distance_matrix(t, blocks, causal=causal),
                     [tables.requires_grad_()])


@pytest.mark.parametrize("prefix", (0, 1))
def test_a_module_serves_images_of_any_size(prefix):
    module = mhla_torch.MHLA((8, 8), (2, 2), prefix=prefix, offsets=(3, 5)).double()
    near = module.mixing.detach()
    assert near.shape == (3, 5) and near.argmax() == 7  # the offset 0
    for grid, block in (((8, 8), (2, 2)), ((4, 12), (2, 2)), ((6, 6), (3, 2))):
        module.resize_(grid, block)
        tokens = prefix + grid[0] * grid[1]
        q, k, v = (draw(1, 2, tokens, 4, seed=seed) for seed in range(3))
        blocks = [n // w for n, w in zip(grid, block)]
        inside = mhla_torch.distance_matrix(module.mixing, blocks)
        first = int(prefix > 0)
        outside = module.matrix()[first:, first:]
        torch.testing.assert_close(outside / outside[0, 0], inside / inside[0, 0])
        out = mhla_torch.bidirectional(q, k, v, module.matrix(), grid=grid, block=block,
                                       prefix=prefix, layout="bhnd")
        assert module(q, k, v).equal(out)
        module.zero_grad()
        module(q, k, v).square().sum().backward()
        assert torch.isfinite(module.mixing.grad).all() and module.mixing.grad.any()
    module.constrain_()


def test_rows_without_a_sum_stay_zero():
    m = mhla_torch.distance_matrix(torch.tensor([1.0, 0.0, 1.0]), (3,), causal=True)
    assert m.equal(torch.tensor([[0.0, 0, 0], [1, 0, 0], [0.5, 0.5, 0]]))


def test_a_causal_module_serves_sequences_of_any_length():
    module = mhla_torch.MHLA(16, 4, causal=True, offsets=(5,)).double()
    assert module.mixing.eq(1).all()  # rows of the matrix are uniform
    for tokens in (3, 16, 40):
        q, k, v = (draw(1, 2, tokens, 4, seed=seed) for seed in range(3))
        blocks = -(-tokens // 4)
        mixing = torch.ones(blocks, blocks).tril() / torch.arange(1, blocks + 1)[:, None]
        out = mhla_torch.causal(q, k, v, mixing.double(), block=4, layout="bhnd")
        torch.testing.assert_close(module(q, k, v), out)
    module.constrain_()
    assert module.mixing.eq(1).all()


def test_packed_sequences_take_the_matrix_of_the_longest(monkeypatch):
    module = mhla_torch.MHLA(16, 4, causal=True, offsets=(5,)).double()
    sizes, matrix = [], module.matrix
    monkeypatch.setattr(module, "matrix", lambda tokens: sizes.append(tokens) or matrix(tokens))
    q, k, v = (draw(1, 2, 40, 4, seed=seed) for seed in range(3))
    ends = torch.tensor([0, 12, 30, 40])
    packed = {"query_offsets": ends, "key_offsets": ends}
    out = module(q, k, v, **packed, max_queries=18, max_keys=18)
    assert torch.equal(out, module(q, k, v, **packed)) and sizes == [18, 40]


@pytest.mark.parametrize("call, message", (
    (lambda: mhla_torch.distance_matrix(torch.ones(3, 4), (2, 2)),
     r"table has shape \[3, 4\], expected an odd number of offsets for each axis of blocks \(2, 2\)"),
    (lambda: mhla_torch.distance_matrix(torch.ones(3), (2, 2)), r"table has shape \[3\], expected"),
    (lambda: mhla_torch.bidirectional(*(draw(1, 8, 3, 4),) * 3, draw(1, 2, 2), block=(4,),
                                      backend="kernels"),
     "mixing has 1 matrices, expected 3, one per head of q"),
    (lambda: mhla_torch.distance_matrix(torch.ones(3), ()), r"table has shape \[3\], expected"),
    (lambda: mhla_torch.distance_matrix(torch.ones(3), (0,)),
     r"blocks is \(0,\), expected at least 1 each"),
    (lambda: mhla_torch.MHLA((8, 8), (2, 2), offsets=(3,)),
     r"offsets is \(3,\), expected a number for each of the 2 axes"),
    (lambda: mhla_torch.MHLA((8, 8), (2, 2), offsets=(3, 3)).resize_((64,), (4,)),
     r"offsets is \(3, 3\), expected a number for each of the 1 axes"),
    (lambda: mhla_torch.MHLA(16, 4, offsets=(5,))(*(draw(1, 2, n, 4) for n in (8, 16, 16))),
     "of 8 queries and 16 keys, expected one sequence that reads itself"),
    (lambda: mhla_torch.MHLA(16, 4, offsets=(5,))(
        *(draw(1, 2, 8, 4),) * 3, query_offsets=torch.tensor([0, 8]),
        key_offsets=torch.tensor([0, 8])), "has sequences that are packed")))
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
