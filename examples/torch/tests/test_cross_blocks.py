"""Queries and keys with blocks of their own: an image that reads a sequence, or a video."""

import pytest
import torch

import mhla_torch
from reference import attention, block_of
from test_operators import close, tensors

IMAGE = {"grid": (4, 6), "block": (2, 3)}  # 24 queries in 4 blocks
KEYS = {"sequence": ({"key_block": (5,)}, 12, 3),
        "prefix": ({"key_block": (5,), "key_prefix": 2}, 12, 3),
        "image": ({"key_grid": (3, 4), "key_block": (2, 2), "key_prefix": 1}, 13, 5),
        "video": ({"key_grid": (2, 3, 2), "key_block": (1, 2, 2)}, 12, 4)}


def definition(q, k, v, mixing, options):
    """Attention by a matrix of weights."""
    keys = (options.get("key_grid", ()), options["key_block"], options.get("key_prefix", 0))
    blocks = block_of(q.shape[1], *IMAGE.values()), block_of(k.shape[1], *keys)
    return attention(q, k, v, mixing, blocks, eps=0.5)


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("backend", ("kernels", "formula"))
@pytest.mark.parametrize("save", ("inputs", "summaries"))
def test_equals_the_definition_with_all_gradients(name, backend, save):
    options, tokens, columns = KEYS[name]
    q, (k, v) = tensors()[0], (t[:, :tokens] for t in tensors(seed=1)[1:3])
    mixing = torch.rand(4, columns, dtype=torch.float64)
    results = []
    for run in (lambda *t: definition(*t, options), lambda *t: mhla_torch.bidirectional(
            *t, **IMAGE, **options, eps=0.5, backend=backend, save=save)):
        leaves = [t.clone().requires_grad_() for t in (q, k, v, mixing)]
        out = run(*leaves)
        results.append((out, *torch.autograd.grad(out.sin().sum(), leaves)))
    for exact, ours in zip(*results, strict=True):
        close(ours, exact, 1e-11)


def test_a_sequence_of_keys_uses_the_leading_columns():
    q, (k, v) = tensors()[0], (t[:, :12] for t in tensors(seed=1)[1:3])
    mixing = torch.rand(4, 7, dtype=torch.float64)
    for backend in ("kernels", "formula"):
        out, leading = (mhla_torch.bidirectional(q, k, v, m, **IMAGE, key_block=(5,),
                                                 backend=backend) for m in (mixing, mixing[:, :3]))
        assert torch.equal(out, leading)


def test_steps_read_a_prefix_of_the_keys():
    q, (k, v) = tensors(tokens=12)[0], tensors(seed=1, tokens=13)[1:3]
    mixing = torch.rand(4, 5, dtype=torch.float64)
    earlier = torch.ones(4, 5).tril(1)  # the first column is the prefix, which all steps read
    out, exact = (run(q, k, v, m, block=(3,), key_block=(3,), key_prefix=1) for run, m in
                  ((mhla_torch.block_causal, mixing), (mhla_torch.bidirectional, mixing * earlier)))
    assert torch.equal(out, exact)


VIDEO = {"grid": (3, 4, 4), "block": (1, 2, 2)}  # three frames of four blocks
VIDEO_KEYS = {"key_grid": (3, 2, 2), "key_block": (1, 2, 2)}  # three frames of one block


@pytest.mark.parametrize("backend", ("kernels", "formula"))
def test_keys_have_steps_of_their_own(backend):
    q, (k, v) = tensors(tokens=48)[0], tensors(seed=1, tokens=12)[1:3]
    mixing = torch.rand(12, 3, dtype=torch.float64)

    def run(v):
        return mhla_torch.block_causal(q, k, v, mixing, step=4, key_step=1, backend=backend,
                                       **VIDEO, **VIDEO_KEYS)

    out = run(v)
    for frame in (1, 2):
        later = v.clone()
        later[:, 4 * frame:] += 100
        assert torch.equal(run(later)[:, :16 * frame], out[:, :16 * frame])
        assert (run(later) != out)[:, 16 * frame:].all()


@pytest.mark.parametrize("wrong, sentence", (
    ({"step": 4}, "key_block makes 3 blocks in steps of 4, expected as many steps as 12 query "
                  "blocks in steps of 4"),
    ({"step": 4, "key_step": 2}, "key_block makes 3 blocks in steps of 2"),
    ({"step": 4, "key_step": 0}, "key_step is 0, expected at least 1"),
    ({"step": 4, "key_block": (1, 0, 2)}, "key_grid and key_block are .*, expected sizes >= 1"),
    ({"step": 4, "key_grid": (), "key_block": (5,), "query_offsets": torch.tensor([0, 48])},
     "query_offsets is given with key_block, expected a grid and a key_grid"),
    ({"step": 4, "key_step": 1, "key_grid": (), "key_block": ()},
     "key_step is given without key_block, expected both"),
))
def test_steps_of_queries_and_keys_are_equally_many(wrong, sentence):
    q, (k, v) = tensors(tokens=48)[0], tensors(seed=1, tokens=12)[1:3]
    with pytest.raises(ValueError, match="mhla::block_causal: " + sentence):
        mhla_torch.block_causal(q, k, v, torch.rand(12, 3), **(VIDEO | VIDEO_KEYS | wrong))


def test_cross_queries_want_equal_blocks():
    q, (k, v) = tensors()[0], tensors(seed=1)[1:3]
    mixing = torch.rand(4, 4, dtype=torch.float64)
    options = {"normalizer": "cross_query", "eps": 0.5, "key_block": (6,)}
    close(*(mhla_torch.bidirectional(q, k, v, mixing, **IMAGE, **options, backend=backend)
            for backend in ("kernels", "formula")))


@pytest.mark.parametrize("backend", ("kernels", "formula"))
@pytest.mark.parametrize("wrong, sentence", (
    ({"key_grid": (3, 4), "key_block": (2,)},
     r"key_block has 1 sizes, expected 2 \(those of key_grid\)"),
    ({"key_grid": (3, 4)}, "key_grid or key_prefix is given without key_block"),
    ({"key_prefix": 1}, "key_grid or key_prefix is given without key_block"),
    ({"key_block": (2,), "key_prefix": -1}, "key_prefix is -1, expected at least 0"),
    ({"key_grid": (3, 5), "key_block": (3, 2)},
     r"blocks cover 15 tokens, expected 12|mixing has shape \[4, 4\], expected \[4, 3\]"),
    ({"key_grid": (3, 0), "key_block": (1, 1)},
     r"key_grid and key_block are \(3, 0\) and \(1, 1\), expected sizes >= 1"),
    ({"key_block": (0,)}, r"key_grid and key_block are \(\) and \(0,\), expected sizes >= 1"),
    ({"key_grid": (1, 2, 2, 3), "key_block": (1,) * 4}, "key_grid has 4 sizes, expected 1 to 3"),
    ({"key_block": (2,), "key_prefix": 30}, "key_prefix is 30, expected at most 12"),
    ({"key_grid": (3, 4), "key_block": (1, 1)}, r"mixing has shape \[4, 4\], expected \[4, 12\]"),
))
def test_errors_name_the_side(backend, wrong, sentence):
    q, k, v, mixing = tensors()
    with pytest.raises((ValueError, RuntimeError), match="mhla::bidirectional: .*" + sentence):
        mhla_torch.bidirectional(q, k[:, :12], v[:, :12], mixing, **IMAGE, **wrong, backend=backend)


def test_operators_check_the_keys():
    q, k, v, mixing = tensors()
    with pytest.raises((ValueError, RuntimeError), match="key_block has 1 sizes, expected 2"):
        torch.ops.mhla.bidirectional(q, k, v, mixing, [4, 6], [2, 3], key_grid=[4, 6], key_block=[2])


@pytest.mark.parametrize("side", ("", "key_"))
def test_packed_sequences_are_longer_than_their_prefix(side):
    q, k, v, mixing = tensors(batch=1)
    ends = {"query_offsets": torch.tensor([0, 5, 24]), "key_offsets": torch.tensor([0, 5, 24])}
    blocks = {"block": (6,), "prefix": 6} if not side else {
        "block": (6,), "key_block": (6,), "key_prefix": 6}
    with pytest.raises(ValueError, match=f"mhla::bidirectional: {side}prefix is 6, expected at most 5"):
        mhla_torch.bidirectional(q, k, v, mixing, **blocks, **ends, backend="formula")
