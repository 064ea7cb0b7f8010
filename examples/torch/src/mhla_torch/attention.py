"""MHLA in place of a model's softmax attention."""

import functools
import inspect
import math

import torch
from torch import nn

from mhla_torch import checks, formula, layer_parts, operators
from mhla_torch import pattern as patterns


class MHLA(nn.Module):
    """Attention between tensors of all heads, in place of scaled_dot_product_attention:

        self.attention = MHLA((14, 14), (7, 7), prefix=1)   # in __init__
        x = self.attention(q, k, v)                         # in forward; [B,H,N,D] -> [B,H,N,E]

    tokens, block: tokens of an image or a video along each axis, in raster order, and tokens of a
        block along each axis; or two numbers: the most tokens of a sequence, and tokens of a block
    prefix: tokens before the image, such as a class token; they are a separate block
    offsets: an odd number of offsets between blocks along each axis, or none. With them the
        parameter is a table of coefficients (distance_matrix) that serves images of any size
    decays: terms R of causal attention, or 0. With them the parameter is [2,R], weights and decays
        (mhla_torch.causal), which serve sequences of any length
    pattern: bool [M,M], where matrices have coefficients, with the block of a prefix; or None. Rows
        of tables are divided by their sums within it. Shorter sequences have its leading part. The
        pattern is a buffer, which state_dict lacks
    heads: H with a matrix, a table or terms per head, [H,..]; by default 0, all heads share them
    options: options of mhla_torch.bidirectional and mhla_torch.causal, such as backend. Tensors,
        such as a gain or the weights of feature maps, are options of a call

    The parameter is the mixing matrix `mixing` [M,M], a table [offsets] or terms [2,R]. It starts
    as locality (uniform if causal), with rows that sum to 1. Terms start with decays 1/2, 3/4,
    7/8, ... and rows whose sums grow to 1. After a step of an optimiser constrain_() keeps it in
    [0, 1].
    """

    def __init__(self, tokens, block, *, prefix=0, causal=False, layout="bhnd", offsets=(),
                 decays=0, pattern=None, heads=0, **options):
        super().__init__()
        _expect_own_blocks(options)
        for option, value in options.items():
            if isinstance(value, torch.Tensor):
                checks.fail("MHLA", option, "is a tensor", "it in the call: the module would neither "
                            "train nor move it")
        if heads < 0:
            raise ValueError(f"MHLA: heads is {heads}, expected one per matrix, or 0")
        sequence = isinstance(tokens, int)
        if causal and not (sequence and prefix == 0):
            raise ValueError("MHLA: causal attention is of a sequence without a prefix, "
                             f"got tokens {tokens} and prefix {prefix}")
        self.grid = () if sequence else tuple(tokens)
        self.block = (block,) if sequence else tuple(block)
        self.prefix, self.causal = prefix, causal
        self.options = {"layout": layout} | options
        self.offsets, self.decays = tuple(offsets), decays
        if decays < 0 or (decays and (self.offsets or not causal)):
            raise ValueError(f"MHLA: decays is {decays}, expected at least 1 term of causal "
                             "attention without offsets, or 0")
        if decays and pattern is not None:
            raise ValueError("MHLA: pattern is given with decays, expected either")
        counts = blocks_along((tokens,) if sequence else self.grid, self.block)
        if prefix < 0:
            raise ValueError(f"MHLA: prefix is {prefix}, expected at least 0")
        if self.offsets:
            _expect_axes(self.offsets, counts)
            operators.distance_matrix(torch.ones(self.offsets), counts)  # refuses even numbers
            near = operators.locality(self.offsets)
            mixing = near[len(near) // 2].view(self.offsets)
            mixing = torch.ones_like(mixing) if causal else mixing
        elif decays:
            mixing = decaying_terms(decays)
        else:
            mixing = uniform_causal(counts[0]) if causal else with_prefix(
                operators.locality(counts), prefix)
        device = torch.get_default_device()
        if pattern is not None:
            blocks = math.prod(counts) + (prefix > 0)
            patterns.expect("MHLA", pattern, (blocks, blocks))
            if pattern.is_meta:
                raise ValueError("MHLA: pattern is on meta, expected its values")
            pattern = pattern.clone()
        self.given_pattern = pattern
        self.register_buffer("pattern", None if pattern is None else pattern.to(device),
                             persistent=False)
        self.register_load_state_dict_post_hook(MHLA.place_pattern)  # which may leave meta
        mixing = mixing.to(device, torch.get_default_dtype())
        mixing = mixing if self.offsets else self._within_pattern(mixing)
        self.mixing = nn.Parameter(mixing.repeat(heads, *(1,) * mixing.dim()) if heads else mixing)

    def __setstate__(self, state):
        """Loads a module that was pickled before it had all of these members."""
        super().__setstate__({"offsets": (), "decays": 0} | state)
        vars(self).setdefault("given_pattern", self._buffers.setdefault("pattern", None))

    def place_pattern(self, *_):
        """Gives the pattern its values on the device of the parameter."""
        if self.pattern is not None:
            layer_parts.place_buffer(self, "pattern", self.given_pattern, self.mixing.device)

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self.place_pattern()
        return self

    def forward(self, q, k, v, **options):
        """Attention of q, k [B,H,N,D] and v [B,H,N,E] (layout "bnhd": [B,N,H,.]), in q's layout.

        options: options of this call, such as key_mask or the weights of feature maps
        """
        _expect_own_blocks(options, "pattern")
        options = self.options | options
        mixing, pattern = self.mixing, self.pattern
        if self.offsets:
            queries, keys = (t.shape[1 if options["layout"] == "bnhd" else 2] for t in (q, k))
            packed = options.get("query_offsets") is not None
            if not self.causal and not self.grid and (packed or queries != keys):
                raise ValueError("MHLA: a table of offsets has sequences that are packed, or of "
                                 f"{queries} queries and {keys} keys, expected one sequence that "
                                 "reads itself: rows sum to 1 over its blocks")
            mixing = self.matrix(packed and options.get("max_queries") or queries)
            blocks = mixing.shape[-1]
            pattern = None if pattern is None else pattern[:blocks, :blocks]
        if self.causal:
            return operators.causal(q, k, v, mixing, block=self.block[0],
                                    decaying=self.decays > 0, pattern=pattern, **options)
        return operators.bidirectional(q, k, v, mixing, grid=self.grid, block=self.block,
                                       prefix=self.prefix, pattern=pattern, **options)

    def matrix(self, tokens=None):
        """The mixing matrix, or one per head: of the module's image, or of so many tokens."""
        if not self.offsets and not self.decays:
            return self.mixing if self.pattern is None else patterns.masked("MHLA", self.mixing,
                                                                            self.pattern)
        counts = blocks_along(self.grid or (max(1, tokens - self.prefix),), self.block)
        if self.decays:
            return formula.decay_matrix(self.mixing, counts[0])
        return self._within_pattern(with_prefix(operators.distance_matrix(
            self.mixing, counts, causal=self.causal), self.prefix))

    def _within_pattern(self, mixing):
        """Matrices [..,M,M] with 0 outside of the pattern, whose rows sum to 1 without these."""
        if self.pattern is None:
            return mixing
        blocks = mixing.shape[-1]
        mixing = patterns.masked("MHLA", mixing, self.pattern[:blocks, :blocks])
        sums = mixing.sum(-1, keepdim=True)
        return mixing / sums.masked_fill(sums == 0, 1)

    @torch.no_grad()
    def constrain_(self):
        """Clamps the mixing matrix to [0, 1], and to the lower triangle if causal."""
        self.mixing.clamp_(0, 1)
        if self.causal and not self.offsets and not self.decays:
            self.mixing.tril_()

    @torch.no_grad()
    def resize_(self, tokens, block=None, **options):
        """Changes the module to an image or a video of another size; resizes the mixing matrix.

        tokens, block: as in the constructor; block keeps its value by default
        options: options of mhla_torch.resize

        A table of offsets stays, and so does a matrix of as many blocks along each axis. Otherwise
        the parameter is a new tensor, so make an optimiser after this. Coefficients between the
        prefix and a new block are means over the old blocks; the sums of the prefix stay.
        """
        if not self.grid:
            raise ValueError("MHLA: the module is of a sequence, expected an image or a video")
        block = self.block if block is None else tuple(block)
        before, after = (blocks_along(*sizes) for sizes in ((self.grid, self.block),
                                                            (tokens, block)))
        if self.pattern is not None and before != after:
            raise ValueError(f"MHLA: the module has a pattern of {before} blocks, got {after}, "
                             "expected as many")
        if self.offsets:
            _expect_axes(self.offsets, after)
        if self.offsets or before == after:
            self.grid, self.block = tuple(tokens), block
            return
        matrices = self.mixing.view(-1, *self.mixing.shape[-2:])
        resized = torch.stack([_resized(m, before, after, int(self.prefix > 0), **options)
                               for m in matrices])
        resized = resized.view(*self.mixing.shape[:-2], *resized.shape[-2:])
        self.mixing = nn.Parameter(resized, requires_grad=self.mixing.requires_grad)
        self.grid, self.block = tuple(tokens), block

    def extra_repr(self):
        tokens = self.grid or "sequence"
        return f"tokens={tokens}, block={self.block}, prefix={self.prefix}, causal={self.causal}"


def _resized(mixing, before, after, first, **options):
    """A matrix of other blocks. Row and column 0 are those of the prefix if `first` is 1."""
    inside = operators.resize(mixing[first:, first:], before, after, **options)
    resized = inside.new_empty([len(inside) + first] * 2)
    resized[first:, first:] = inside
    if first:
        resized[0, 0], resized[1:, 0] = mixing[0, 0], mixing[1:, 0].mean()
        resized[0, 1:] = mixing[0, 1:].sum() / len(inside)
    return resized


def blocks_along(tokens, block):
    """Number of blocks along each axis; blocks at the far edges may be short."""
    if len(tokens) != len(block) or not 1 <= len(block) <= 3 or min((*tokens, *block)) < 1:
        raise ValueError(f"MHLA: tokens is {tuple(tokens)} and block {tuple(block)}, expected one "
                         "to three sizes each, as many of both, of at least 1")
    return [math.ceil(n / w) for n, w in zip(tokens, block)]


def _expect_own_blocks(options, *others):
    """Refuses blocks of keys, and others, as options."""
    for option in ("key_grid", "key_block", "key_prefix", *others):
        if option in options:
            checks.fail("MHLA", option, "is given", "it in the constructor" if option in others
                        else "none: keys have the blocks of the queries")


def _expect_axes(offsets, counts):
    if len(offsets) != len(counts):
        raise ValueError(f"MHLA: offsets is {offsets}, expected a number for each of the "
                         f"{len(counts)} axes of the blocks")


def decaying_terms(count):
    """R weights and decays 1/2, 3/4, ...; the coefficients of each term sum to 1 / R.   # [2,R]"""
    apart = 0.5 ** torch.arange(1., count + 1)
    return torch.stack([apart / count, 1 - apart])


def uniform_causal(blocks):
    """m_ib = 1 / (i + 1) for b <= i.   # [M,M]"""
    return torch.ones(blocks, blocks).tril() / torch.arange(1, blocks + 1)[:, None]


def with_prefix(mixing, prefix):
    """Adds a row and a column for the prefix, if there is one, before the blocks. Its coefficients
    are the mean coefficient of a block.   # [..,M,M] -> [..,M + 1,M + 1]
    """
    if prefix == 0:
        return mixing
    blocks = mixing.shape[-1] + 1
    whole = mixing.new_full((*mixing.shape[:-2], blocks, blocks), 1 / blocks)
    whole[..., 1:, 1:] = mixing * (1 - 1 / blocks)
    return whole


class ViTAttention(nn.Module):
    """The attention of a timm vision transformer, with MHLA instead of softmax.

    attention: the replaced module; its projections, norms and gate are kept
    """

    def __init__(self, attention, mhla):
        super().__init__()
        self.num_heads, self.mhla = attention.num_heads, mhla
        self.qkv, self.proj = attention.qkv, attention.proj
        self.gate = getattr(attention, "gate", None)
        for name in ("q_norm", "k_norm", "norm", "proj_drop"):
            setattr(self, name, getattr(attention, name, None) or nn.Identity())

    def forward(self, x, attn_mask=None, is_causal=False):
        """Attention of x [B,N,C], [B,N,C]."""
        if attn_mask is not None or is_causal:
            raise ValueError("ViTAttention: attn_mask or is_causal is set, expected neither: MHLA "
                             "of an image mixes all blocks")
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        out = self.norm(self.mhla(self.q_norm(q), self.k_norm(k), v).flatten(2))
        if self.gate is not None:
            out = out * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(out))


MEMBERS = ("qkv", "proj", "num_heads")  # members of a replaceable attention


def replace_attention(model, block, *, grid=None, prefix=None, **options):
    """Replaces the attention of a timm-style vision transformer in place; returns the model.

        model = replace_attention(model, block=(7, 7))

    Each module with qkv, proj and num_heads becomes a ViTAttention with a separate mixing matrix.
    All other parameters keep their names, so weights trained with softmax can be loaded before.

    grid: patches along each axis, in raster order; the default is the grid_size of
        model.patch_embed or model.x_embedder. If the embedding has a convolution proj, each image
        is checked against the grid.
    prefix: tokens before the patches; the default is model.num_prefix_tokens or 0
    options: options of MHLA

    Throws ValueError, before anything changes, if the model does not fit.
    """
    found = [(parent, name, child) for parent in model.modules()
             for name, child in parent._modules.items()  # also of a module with two names
             if _is_attention(child)]
    if not found:
        raise ValueError("replace_attention: model has no module with qkv, proj and num_heads, "
                         "expected the attention of a timm-style vision transformer")
    for *_, child in found:
        _expect_replaceable(child)
    _expect_one_kind(model, found)
    embedding = getattr(model, "patch_embed", None) or getattr(model, "x_embedder", None)
    grid = grid or getattr(embedding, "grid_size", None)
    if grid is None:
        raise ValueError("replace_attention: model has no patch_embed.grid_size, expected it or "
                         "grid=, the patches along each axis: MHLA is of images of one size")
    if getattr(getattr(model, "patch_drop", None), "prob", 0):
        raise ValueError(f"replace_attention: patch_drop drops {model.patch_drop.prob} of the "
                         "patches, expected 0: blocks are of whole images")
    prefix = getattr(model, "num_prefix_tokens", 0) if prefix is None else prefix
    _expect_positions(model, math.prod(grid), prefix)
    replaced = {}  # one for each attention, which may have several places
    for *_, child in found:
        if child not in replaced:
            mhla = MHLA(grid, block, prefix=prefix, layout="bnhd", **options)
            like = child.qkv.weight
            new = ViTAttention(child, mhla.to(like.device, like.dtype))
            replaced[child] = new.train(child.training)
    for parent, name, child in found:
        setattr(parent, name, replaced[child])
    convolution = getattr(embedding, "proj", embedding)
    if isinstance(convolution, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Identity)):
        modules = [attention.mhla for attention in replaced.values()]
        convolution.register_forward_hook(functools.partial(_expect_grid, modules))
    return model


def _expect_grid(modules, convolution, args, patches):
    """Throws if the grid of patches [B,C,...] differs from the grid of the MHLA modules."""
    for mhla in modules:
        grid = tuple(patches.shape[-len(mhla.grid):])
        if grid != mhla.grid:
            raise ValueError(f"replace_attention: the image has {grid} patches, expected "
                             f"{mhla.grid}: resize_ of each MHLA module makes it one of "
                             "another grid")


def _is_attention(module):
    return all(hasattr(module, member) for member in MEMBERS)


def _expect_one_kind(model, found):
    """Throws if attentions of the model have several kinds, or stages have several widths."""
    names = {name for _, name, _ in found}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if name in names and hasattr(child, "num_heads") and not _is_attention(child):
                missing = [member for member in MEMBERS if not hasattr(child, member)]
                raise ValueError(f"replace_attention: {type(child).__name__} has no "
                                 f"{', '.join(missing)}, expected the members of timm's Attention")
    widths = sorted({child.qkv.in_features for *_, child in found})
    if len(widths) > 1:
        raise ValueError(f"replace_attention: attention has widths {widths}, expected one: MHLA "
                         "is of the same patches in all blocks")


def _expect_positions(model, patches, prefix):
    """Throws if an embedding of positions [1,N,C] has another number of tokens."""
    positions = getattr(model, "pos_embed", None)
    if not isinstance(positions, torch.Tensor) or positions.dim() != 3:
        return
    if not patches <= positions.shape[1] <= patches + prefix:
        raise ValueError(f"replace_attention: pos_embed has {positions.shape[1]} tokens, but grid "
                         f"and prefix have {patches} and {prefix}")


def _expect_replaceable(attention):
    """Throws if an attention has parts that ViTAttention lacks."""
    kind = type(attention).__name__
    known = {"qkv", "q_norm", "k_norm", "norm", "gate", "attn_drop", "proj", "proj_drop"}
    parts = dict(attention.named_children())
    parts |= dict(attention.named_parameters(recurse=False))
    parts |= dict(attention.named_buffers(recurse=False))
    arguments = set(inspect.signature(attention.forward).parameters)
    for what, more in (("has", set(parts) - known),
                       ("takes", arguments - {"x", "attn_mask", "is_causal"})):
        if more:
            raise ValueError(f"replace_attention: {kind} {what} {', '.join(sorted(more))}, "
                             "expected the members and arguments of timm's Attention")
    hooks = [name for name, value in vars(attention).items() if name.endswith("_hooks") and value]
    if hooks:
        raise ValueError(f"replace_attention: {kind} has {', '.join(hooks)}, expected none: they "
                         "would be lost")
    if not hasattr(attention.qkv, "in_features"):
        raise ValueError(f"replace_attention: {kind} has {type(attention.qkv).__name__} as qkv, "
                         "expected one linear projection of all three")
    drop = getattr(attention, "attn_drop", None)
    rate = drop if isinstance(drop, float) else getattr(drop, "p", 0)
    if rate:
        raise ValueError(f"replace_attention: attn_drop is {rate}, expected 0: MHLA has no matrix "
                         "of weights to drop from")
