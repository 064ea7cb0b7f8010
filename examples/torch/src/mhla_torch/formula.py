"""The operators in plain PyTorch, for every device and every argument.

    S_b = sum of phi(k_t) v_t^T over the tokens t of block b       D x E, of all blocks at once
    o_t = phi(q_t)^T (sum_b m_ib S_b) / den_t                      t in block i

Rotary angles rotate phi(q) and phi(k) in these two lines alone; den_t keeps the features as they
are. A gain makes o_t gain / rms(o_t) silu(gate_t) of the output.

There is no N x N matrix: memory is linear in N, and a causal form has W x W weights per block. All
of PyTorch works: autograd of any order, forward mode, torch.func, torch.compile, autocast.

The functions have the arguments of mhla_torch's operators, and one more option:

    dtype    type of features, products and sums; the default is float64 for float64 tensors and
             float32 for all others, so 16-bit tensors are rounded once, at the end

For a denominator of 0, the output is 0 for a numerator of 0 and infinite for any other, and no
gradient passes. Masked tokens may hold NaN. A NaN in a later token may reach earlier outputs of
its sequence, unlike in the kernels. Packed sequences run one after another, at offsets that are
read on the host, so torch.compile(fullgraph=True) does not accept them.
"""

import itertools
import math
from typing import NamedTuple

import torch
from torch.nn import functional

from mhla_torch import checks
from mhla_torch.checks import fail

CHUNK = 64  # tokens per block of causal linear attention
MAPS = {"relu": torch.relu, "identity": lambda x: x, "exp": torch.exp,
        "elu_plus_one": lambda x: torch.where(x > 0, x + 1, x.clamp(max=0).exp())}
NUMERATORS = {"layout": "bhnd", "feature_map": "identity", "normalizer": "none"}  # of features
LAYERS = {"hedgehog": 1, "t2r": 1, "elementwise_product": 2}  # linear layers of maps with weights


def bidirectional(q, k, v, mixing, *, grid=(), block, prefix=0, key_grid=(), key_block=(),
                  key_prefix=0, pattern=None, numerators=None, **options):
    """Bidirectional attention: every query reads every key; see mhla_torch.bidirectional.

    pattern: where kernels find zeros of mixing, which the formula reads
    numerators: computes the numerators [B,H,N,E] of rotated features q, k [B,H,N,D] and of values
        v by kernels; the denominators are computed here
    """
    name = "mhla::bidirectional"
    of_queries = of_keys = grid, block, prefix
    checks.expect_blocks(name, "", *of_queries)
    if key_grid or key_block or key_prefix:
        of_keys = key_grid, key_block, key_prefix, "key_"
        checks.expect_blocks(name, "key_", *of_keys[:3])

    def form(q, k, v, den, cross):
        queries, keys = pieces(name, q, *of_queries), pieces(name, k, *of_keys)
        rows, columns = (sum(piece.blocks for piece in pieces) for pieces in (queries, keys))
        matrix = checks.matrix(name, mixing, rows, columns, q,
                               exactly=(bool(of_queries[0]), bool(of_keys[0])))
        if cross:
            checks.expect_equal_blocks(name, queries, rows, columns)
        return _mix(q, k, v, den, cross, matrix, queries, keys, numerators)

    return attend(name, form, q, k, v, **options)


def causal(q, k, v, mixing, *, block, decaying=False, pattern=None, numerators=None, **options):
    """Causal attention: a token reads itself and the past; see mhla_torch.causal.

    pattern, numerators: those of bidirectional
    """
    name = "mhla::causal"
    if block < 1:
        fail(name, "block", f"is {block}", "at least 1")

    def form(q, k, v, den, cross):
        checks.expect_causal(name, q, k, cross)
        piece = Piece(0, (q.shape[2],), (block,))
        if decaying:
            count = max((1, *mixing.shape[-1:]))
            terms = checks.matrix(name, mixing, 2, count, q, exactly=(True, True))
            matrix = decay_matrix(terms, piece.blocks)
        else:
            matrix = checks.matrix(name, mixing, piece.blocks, piece.blocks, q)
        earlier = matrix.tril(-1)
        return _scan(q, k, v, den, piece, lambda sums: product(earlier, sums),
                     matrix.diagonal(0, -2, -1)[..., None, None], numerators)

    return attend(name, form, q, k, v, **options)


def decay_matrix(terms, blocks):
    """The matrix m_ib = sum_r a_r lambda_r^(i-b) for b <= i, and 0 otherwise. -> [..,M,M]

    terms: [..,2,R], R weights a_r and then R decays lambda_r, from 0 to 1
    """
    places = torch.arange(blocks, device=terms.device)
    distance = (places[:, None] - places)[..., None]
    weights, decays = terms[..., None, None, :].unbind(-4)
    powers = decays ** distance.clamp(min=1)  # those of exponent 0 have no second derivative at 0
    return (weights * powers.where(distance > 0, 1)).sum(-1).tril()


def linear(q, k, v, *, causal=False, numerators=None, **options):
    """Linear attention, MHLA with one block; see mhla_torch.linear.

    numerators: those of bidirectional
    """
    name = "mhla::linear"

    def form(q, k, v, den, cross):
        if not causal:  # a slot of one block holds one query, so cross is no different
            whole = [[Piece(0, (t.shape[2],), (max(1, t.shape[2]),))] for t in (q, k)]
            ones = q.new_ones([pieces[0].blocks for pieces in whole])  # [1,1]; 0 without tokens
            return _mix(q, k, v, den, False, ones, *whole, numerators)
        checks.expect_causal(name, q, k, cross)
        return _scan(q, k, v, den, Piece(0, (q.shape[2],), (CHUNK,)), _sums_before, 1, numerators)

    return attend(name, form, q, k, v, **options)


def around(name, kernels, q, k, v, *, normalizer="key_sum", eps=0., query_offsets=None,
           key_offsets=None, max_queries=0, max_keys=0, **options):
    """A call of kernels that have neither rotary angles nor a gain: they are applied here.

    kernels(q=, k=, v=, ...) computes attention of features [B,H,N,.]
    """
    fixed = NUMERATORS | {"normalizer": normalizer, "eps": eps, "query_offsets": query_offsets,
                          "key_offsets": key_offsets, "max_queries": max_queries,
                          "max_keys": max_keys}

    def form(q, k, v, den, cross):
        den = dict(zip(("normalizer_q", "normalizer_k"), den or ()))
        return kernels(q=q, k=k, v=v, **fixed, **den), None

    return attend(name, form, q, k, v, normalizer=normalizer, **options)


# ---- parts of all operators ----------------------------------------------------------------------

def attend(name, form, q, k, v, *, feature_map="relu", normalizer="key_sum", eps=0., scale=1.,
            layout="bnhd", normalizer_q=None, normalizer_k=None, query_mask=None, key_mask=None,
            query_offsets=None, key_offsets=None, query_map=None, key_map=None, query_angles=None,
            key_angles=None, gain=None, gate=None, norm_eps=1e-6, relu_eps=1e-6, max_queries=0,
            max_keys=0, dtype=None):
    """Applies features and masks before a form, and denominators and the norm after it.

    form(q, k, v, den, cross), of features [B,H,N,.], returns numerators [B,H,N,E] and sums [B,H,N,1]
    for denominators, or None without denominators.
    den: features of the denominators, () for q and k, None for no denominators
    cross: sums are over the queries of equal slots
    """
    checks.expect_tensors(name, q, k, v, layout, normalizer_q, normalizer_k)
    checks.expect_norm(name, q, v, gain, gate, norm_eps)
    if normalizer not in ("none", "key_sum", "cross_query"):
        fail(name, "normalizer", f'is "{normalizer}"', "none, key_sum or cross_query")
    dtype = dtype or (torch.float64 if q.dtype is torch.float64 else torch.float32)
    masks = [checks.mask(name, argument, mask, t, layout) for argument, mask, t in
             (("query_mask", query_mask, q), ("key_mask", key_mask, k))]

    def features(x, side):
        argument, weights, factor = (("query_map", query_map, scale), ("key_map", key_map, 1))[side]
        x = _drop(_heads_first(x, layout).to(dtype), masks[side])
        y = _features(name, feature_map, x, argument, weights, relu_eps)
        return _drop(y if factor == 1 else y * factor, masks[side])

    tensors = [features(q, 0), features(k, 1),
               _drop(_heads_first(v, layout).to(dtype), masks[1])]
    den = () if normalizer_q is None else (features(normalizer_q, 0), features(normalizer_k, 1))
    if query_angles is not None or key_angles is not None:
        den = den or tuple(tensors[:2])
        for i, (argument, angles) in enumerate((("query_angles", query_angles),
                                                ("key_angles", key_angles))):
            checks.expect_angles(name, argument, angles, tensors[i])
            tensors[i] = rotate(tensors[i], angles)

    def divided(q, k, v, *den):
        cross = normalizer == "cross_query"
        out, sums = form(q, k, v, den if normalizer != "none" else None, cross)
        return out if sums is None else _divide(out, sums + eps)

    if query_offsets is None and key_offsets is None:
        out = divided(*tensors, *den)
    else:
        spans = _sequences(name, tensors, query_offsets, key_offsets, max_queries, max_keys)
        out = torch.cat([tensors[2][:, :, :0], *(divided(*(t[:, :, span] for t, span in zip(
            (*tensors, *den), (a, b, b, a, b)))) for a, b in spans)], 2)
    if gain is not None:
        out = out * (out.square().mean(-1, keepdim=True) + norm_eps).rsqrt() * gain.to(dtype)
    if gate is not None:
        out = out * functional.silu(_drop(_heads_first(gate, layout).to(dtype), masks[0]))
    out = _drop(out, masks[0])
    out = out.to(q.dtype).transpose(1, 2).contiguous()  # [B,N,H,E] in memory
    return out if layout == "bnhd" else out.transpose(1, 2)


def _mix(q, k, v, den, cross, mixing, queries, keys, numerators=None):
    """Mixes the summaries of all key blocks for each query block, and reads them out.

    mixing: [..,Mq,Mk]
    numerators: see bidirectional
    """
    def mixed(sums):  # [B,H,Mk,...] -> a tensor of [B,H,M,...] per piece of queries
        return product(mixing, sums).split([piece.blocks for piece in queries], 2)

    def cut(x, pieces):
        return [piece.cut(x) for piece in pieces]

    if numerators is not None:
        out = numerators(q, k, v)
    else:
        blocks, features = cut(q, queries), cut(k, keys)
        summaries = [k.mT @ v for k, v in zip(features, cut(v, keys))]  # [B,H,M,D,E]
        out = _join([q @ s for q, s in zip(blocks, mixed(torch.cat(summaries, 2)))], queries)
    if den is None:
        return out, None
    if den:
        blocks, features = cut(den[0], queries), cut(den[1], keys)
    key_sums = torch.cat([k.sum(-2) for k in features], 2)  # [B,H,M,D]
    if cross:
        parts = zip(blocks, key_sums.split([piece.blocks for piece in queries], 2))
        sums = mixed(torch.cat([(q @ z[..., None]) for q, z in parts], 2))
    else:
        sums = [q @ z[..., None] for q, z in zip(blocks, mixed(key_sums))]
    return out, _join(sums, queries)


def _scan(q, k, v, den, piece, mixed, diagonal, numerators=None):
    """Causal form: reads the mixture of earlier blocks, and weights inside the block.

    mixed(sums) mixes sums [B,H,M,...] of earlier blocks; diagonal is the coefficient m_ii.
    numerators: see bidirectional
    """
    out = None if numerators is None else numerators(q, k, v)
    q, k, v, *others = (piece.cut(t) for t in (q, k, v, *(den or ())))

    def weights(q, k):  # [B,H,M,W,W]
        return (q @ k.mT).tril() * diagonal

    if numerators is None:
        inside = weights(q, k)
        out = piece.join(q @ mixed(k.mT @ v) + inside @ v)
    if den is None:
        return out, None
    if others:
        q, k, inside = *others, weights(*others)
    return out, piece.join(q @ mixed(k.sum(-2))[..., None] + inside.sum(-1, keepdim=True))


def _divide(numerators, denominators):
    """Quotients. For a denominator of 0 they are constants: 0 for 0, otherwise infinite."""
    zero = denominators == 0
    quotients = numerators / denominators.masked_fill(zero, 1)
    limits = torch.xlogy(numerators.detach(), math.inf)  # x * inf, but 0 for 0
    return torch.where(zero, limits, quotients)


def rotate(x, angles):
    """Rotates pairs of adjacent features of x [B,H,N,D]; angles: cosine and sine of each [N,D]."""
    cos, sin = angles.to(x.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def product(mixing, sums):
    """Product of mixing [Mq,Mk], [H,Mq,Mk] or [B,H,Mq,Mk] and sums [B,H,Mk,...], [B,H,Mq,...]."""
    return (mixing @ sums.flatten(3)).unflatten(3, sums.shape[3:])


def _sums_before(sums):
    """For each block, the sum [B,H,M,...] of all earlier blocks."""
    return torch.cat([torch.zeros_like(sums[:, :, :1]), sums[:, :, :-1].cumsum(2)], 2)


def _features(name, feature_map, x, argument, weights, relu_eps):
    """Features phi(x) of x [..,D]."""
    if feature_map not in (*MAPS, *LAYERS):
        fail(name, "feature_map", f'is "{feature_map}"', ", ".join((*MAPS, *LAYERS)))
    layers, width = LAYERS.get(feature_map, 0), x.shape[-1]
    if (weights is None) != (layers == 0):
        fail(name, argument, *(("is absent", f"the weights of {feature_map}") if layers else
                               ("is set", f"none: there are no weights in {feature_map}")))
    if not layers:
        y = MAPS[feature_map](x)
        return y + relu_eps if feature_map == "relu" else y
    square, count = width * width, weights.numel()
    bias = feature_map != "t2r" and count == layers * (square + width)
    if weights.dim() != 1 or count != layers * (square + bias * width):
        more = f" or, with biases, {layers * (square + width)}" * (feature_map != "t2r")
        fail(name, argument, f"has {count} weights",
             f"{layers * square}{more}: those of {feature_map} of width {width}")
    y = [functional.linear(x, layer[:square].view(width, width), layer[square:] if bias else None)
         for layer in weights.to(x.dtype).chunk(layers)]
    if feature_map == "hedgehog":
        return torch.cat([2 * y[0], -2 * y[0]], -1).softmax(-1)
    return y[0].relu() if feature_map == "t2r" else y[0] * y[1]


def _heads_first(x, layout):
    """Views x as [B,H,N,C]."""
    return x if layout == "bhnd" else x.transpose(1, 2)


def _drop(x, mask):
    """Sets the rows of masked tokens of x [B,H,N,C] to 0."""
    return x if mask is None else x.masked_fill(~mask, 0)


# ---- blocks --------------------------------------------------------------------------------------

class Piece(NamedTuple):
    """Tokens from `begin` on, in blocks: a prefix, or a sequence, an image or a video."""

    begin: int
    sizes: tuple  # tokens along each axis
    block: tuple  # tokens of a block along each axis; blocks at the far edges may be short

    @property
    def widths(self):  # a block larger than the tokens is the tokens
        return [w if n >= w else max(n, 1) for n, w in zip(self.sizes, self.block)]

    @property
    def counts(self):
        return [(n + w - 1) // w for n, w in zip(self.sizes, self.widths)]

    @property
    def blocks(self):
        return math.prod(self.counts)

    def cut(self, x):
        """Reorders x [B,H,N,C] to [B,H,M,W,C], blocks and their tokens in raster order. Rows that
        short blocks lack are 0.
        """
        batch, heads, _, width = x.shape
        x = x[:, :, self.begin:self.begin + math.prod(self.sizes)]
        padding = [m * w - n for n, m, w in zip(self.sizes, self.counts, self.widths)]
        if any(padding):
            x = x.reshape(batch, heads, *self.sizes, width)
            x = functional.pad(x, [0, 0, *itertools.chain(*((0, p) for p in reversed(padding)))])
        x = x.reshape(batch, heads, *itertools.chain(*zip(self.counts, self.widths)), width)
        axes = range(2, x.dim() - 1)
        x = x.permute(0, 1, *axes[::2], *axes[1::2], -1)
        return x.reshape(batch, heads, self.blocks, math.prod(self.widths), width).contiguous()

    def join(self, x):
        """The inverse of cut."""
        batch, heads, _, _, width = x.shape
        x = x.reshape(batch, heads, *self.counts, *self.widths, width)
        axes = len(self.sizes)
        order = itertools.chain(*zip(range(2, 2 + axes), range(2 + axes, 2 + 2 * axes)))
        whole = [m * w for m, w in zip(self.counts, self.widths)]
        x = x.permute(0, 1, *order, -1).reshape(batch, heads, *whole, width)
        for axis, n in enumerate(self.sizes):
            x = x.narrow(2 + axis, 0, n)
        return x.reshape(batch, heads, math.prod(self.sizes), width)


def pieces(name, x, grid, block, prefix, side=""):
    """The pieces of the tokens of x [B,H,N,D]: the prefix, if there is one, and the rest.

    side: "key_" for arguments of keys alone
    """
    tokens = x.shape[2]
    if prefix > tokens:
        fail(name, side + "prefix", f"is {prefix}", f"at most {tokens}, the tokens of a sequence")
    rest = tuple(grid) or (tokens - prefix,)
    if prefix + math.prod(rest) != tokens:
        fail(name, "blocks", f"cover {prefix + math.prod(rest)} tokens", f"{tokens}")
    first = [Piece(0, (prefix,), (prefix,))] if prefix else []
    return [*first, Piece(prefix, rest, tuple(block))]


def _join(parts, pieces):
    joined = [piece.join(part) for part, piece in zip(parts, pieces)]
    return joined[0] if len(joined) == 1 else torch.cat(joined, 2)


def _sequences(name, tensors, query_offsets, key_offsets, *bounds):
    """Slices of the queries and of the keys of each packed sequence.

    bounds: max_queries and max_keys, or 0
    """
    ends = []
    for argument, offsets, x, bound, most in (
            ("query_offsets", query_offsets, tensors[0], "max_queries", bounds[0]),
            ("key_offsets", key_offsets, tensors[1], "max_keys", bounds[1])):
        if offsets is None:
            fail(name, argument, "is absent", "both query_offsets and key_offsets")
        if torch._C._functorch.is_batchedtensor(offsets):
            fail(name, argument, "has a batch axis of torch.func.vmap", "the same numbers for all")
        numbers = offsets.tolist()
        if sorted(numbers) != numbers or numbers[:1] != [0] or numbers[-1] != x.shape[2]:
            fail(name, argument, f"is {numbers}", f"ascending numbers from 0 to {x.shape[2]}")
        if most and max(b - a for a, b in itertools.pairwise([0, *numbers])) > most:
            fail(name, bound, f"is {most}", "at least the tokens of the longest packed sequence")
        ends.append(numbers)
    if x.shape[0] != 1 or len(ends[0]) != len(ends[1]):
        fail(name, "key_offsets", f"has {len(ends[1])} entries of {x.shape[0]} batch items",
             f"{len(ends[0])} (those of query_offsets) of 1")
    return zip(*([slice(a, b) for a, b in itertools.pairwise(numbers)] for numbers in ends))
