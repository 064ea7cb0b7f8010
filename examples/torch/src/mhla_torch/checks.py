"""Checks of the arguments of the formula; each raises ValueError."""

import math

import torch


def mask(name, argument, mask, like, layout):
    """Checks mask [B,N] and views it as [B,1,N,1]."""
    if mask is None:
        return None
    if mask.dtype is not torch.bool:
        fail(name, argument, f"has type {mask.dtype}", "torch.bool")
    shape = like.shape[0], like.shape[2 if layout == "bhnd" else 1]
    expect_shape(name, argument, mask, shape)
    return mask[:, None, :, None]


def expect_numbers(name, options):
    """Checks that factors are numbers, as a tensor among them would get no gradient."""
    for argument in ("eps", "scale", "norm_eps", "relu_eps"):
        if isinstance(options.get(argument), torch.Tensor):
            fail(name, argument, "is a tensor", "a number: it would get no gradient")


def expect_blocks(name, side, grid, block, prefix):
    """Checks arguments of blocks, of queries or (side "key_") of keys."""
    axes = len(grid) or 1
    if axes > 3:
        fail(name, side + "grid", f"has {axes} sizes", "1 to 3")
    if len(block) != axes:
        fail(name, side + "block", f"has {len(block)} sizes",
             f"{axes}{f' (those of {side}grid)' * bool(grid)}")
    if min((*grid, *block)) < 1:
        fail(name, f"{side}grid and {side}block", f"are {tuple(grid)} and {tuple(block)}",
             "sizes >= 1")
    if prefix < 0:
        fail(name, side + "prefix", f"is {prefix}", "at least 0")


def matrix(name, mixing, rows, columns, q, exactly=(False, False)):
    """The mixing matrices [..,rows,columns], the leading part of larger ones: one, [H,..] or [B,H,..]
    of q [B,H,N,D].

    exactly: whether there are no more rows, and no more columns
    """
    if mixing.dim() not in (2, 3, 4):
        fail(name, "mixing", f"has {mixing.dim()} axes", "2, 3 or 4")
    leading = list(q.shape[4 - mixing.dim():2])
    fits = all(has == wanted or (has > wanted and not exact) for has, wanted, exact in
               zip(mixing.shape[-2:], (rows, columns), exactly))
    if not fits or list(mixing.shape[:-2]) != leading:
        fail(name, "mixing", f"has shape {list(mixing.shape)}",
             f"{'' if all(exactly) else 'at least '}{[*leading, rows, columns]}")
    return mixing[..., :rows, :columns].to(q.dtype)


def expect_tensors(name, q, k, v, layout, normalizer_q, normalizer_k):
    if layout not in ("bnhd", "bhnd"):
        fail(name, "layout", f'is "{layout}"', "bnhd or bhnd")
    if (normalizer_q is None) != (normalizer_k is None):
        fail(name, f"normalizer_{'q' if normalizer_q is None else 'k'}", "is absent", "both")
    tensors = {"q": q, "k": k, "v": v}
    if normalizer_q is not None:
        tensors |= {"normalizer_q": normalizer_q, "normalizer_k": normalizer_k}
    for argument, x in tensors.items():
        if x.dim() != 4:
            fail(name, argument, f"has {x.dim()} axes", "4")
        if x.dtype is not q.dtype or not x.is_floating_point():
            fail(name, argument, f"has type {x.dtype}",
                 f"{q.dtype}" if q.is_floating_point() else "a floating one")
    tokens, heads = (2, 1) if layout == "bhnd" else (1, 2)
    for argument, like, width in (("k", q, q), ("v", k, v), ("normalizer_q", q, normalizer_q),
                                  ("normalizer_k", k, normalizer_q)):
        if argument in tensors:
            shape = list(tensors[argument].shape)
            shape[0], shape[heads], shape[3] = q.shape[0], q.shape[heads], width.shape[3]
            shape[tokens] = shape[tokens] if argument == "k" else like.shape[tokens]
            expect_shape(name, argument, tensors[argument], shape)


def expect_angles(name, argument, angles, x):
    if angles is None:
        fail(name, argument, "is absent", "both query_angles and key_angles")
    expect_shape(name, argument, angles, x.shape[2:])
    if x.shape[3] % 2:
        fail(name, argument, f"has {x.shape[3]} columns", "an even number")


def expect_norm(name, q, v, gain, gate, norm_eps):
    if not norm_eps >= 0:
        fail(name, "norm_eps", f"is {norm_eps}", "at least 0")
    if gain is not None:
        expect_shape(name, "gain", gain, v.shape[3:])
    if gate is None:
        return
    if gain is None:
        fail(name, "gate", "is given without a gain", "both, or a gain alone")
    if gate.dtype is not q.dtype:
        fail(name, "gate", f"has type {gate.dtype}", f"{q.dtype}")
    expect_shape(name, "gate", gate, (*q.shape[:3], v.shape[3]))


def expect_shape(name, argument, x, shape):
    if list(x.shape) != list(shape):
        fail(name, argument, f"has shape {list(x.shape)}", f"{list(shape)}")


def expect_causal(name, q, k, cross):
    if cross:
        fail(name, "normalizer", 'is "cross_query"', "key_sum or none: it reads later queries")
    if q.shape[2] != k.shape[2]:
        fail(name, "k", f"has {k.shape[2]} tokens", f"{q.shape[2]} as q")


def expect_equal_blocks(name, pieces, rows, columns):
    widths = {math.prod(piece.widths) for piece in pieces if piece.blocks}
    ragged = any(n % w for piece in pieces for n, w in zip(piece.sizes, piece.widths))
    if rows != columns or ragged or len(widths) > 1:
        fail(name, "normalizer", 'is "cross_query"',
             "as many query blocks as key blocks, all of one size")


def fail(name, argument, got, expected):
    raise ValueError(f"{name}: {argument} {got}, expected {expected}")
