"""Whole models with one of several attentions, for benchmarks/cuda/models.py.

A model is `depth` equal blocks of random weights. Images and videos pass one block many times, so
that it is compiled once. Embeddings and heads are left out. The blocks are those of
examples/throughput/torch_blocks.py, and of Wan2.1 below. Arms differ in the attention alone.
"""

import importlib.util
import math
from typing import NamedTuple

import mhla_torch
import tiny_vit
import torch
import torch_blocks
from torch import nn
from torch.nn import functional

from peers import torch_cuda_peers, torch_layers

OURS, PLAIN, FLASH, CUDNN = "MHLA", "MHLA, PyTorch", "softmax, flash", "softmax, cuDNN"
LINEAR, FLA = "linear", "linear, FLA"
ARMS = (OURS, PLAIN, FLASH, CUDNN, LINEAR, FLA)
TOKENS = 65_536  # of a step, except of Wan2.1 and of a longer sequence
CACHED = 131_072  # tokens of all sequences that decode
SPARE = 64  # tokens that a state decodes
TEXT = 512  # tokens that the cross-attention of Wan2.1 reads


class Case(NamedTuple):
    name: str
    title: str
    kind: str  # "dit", "sana", "wan", "prefill" or "decode"
    batch: int
    grid: tuple
    block: tuple
    channels: int
    heads: int
    depth: int

    @property
    def tokens(self):
        """N: of a sequence. Decoding adds a token to so many."""
        return math.prod(self.grid)

    @property
    def blocks(self):
        return self.tokens // math.prod(self.block)

    @property
    def width(self):
        """Features of a head."""
        return 128 if self.kind in ("prefill", "decode") else self.channels // self.heads


def image(kind, name, title, pixels, patch, channels, heads, depth):
    """A case of square images, in the most blocks M with M^2 <= N, at least 16."""
    side = pixels // patch
    blocks = 4
    while 16 * blocks**4 <= side**2:
        blocks *= 2
    return Case(f"{name}_{pixels}", f"{title}, {pixels} px", kind, max(1, TOKENS // side**2),
                (side, side), (side // blocks,) * 2, channels, heads, depth)


def text(kind, tokens):
    """A case of the language model of 340M, in the most blocks M with M^2 <= N."""
    length = 64
    while (tokens // length)**2 > tokens:
        length *= 2
    together = CACHED if kind == "decode" else TOKENS
    return Case(f"{kind}_{tokens}", f"340M, {kind}, {tokens} tokens", kind,
                max(1, together // tokens), (tokens,), (length,), 1024, 4, 24)


SIDES = (256, 512, 1024, 2048, 4096)
LENGTHS = (2048, 8192, 32768, 131072)
WAN = Case("wan", "Wan2.1-1.3B, 31500 tokens", "wan", 1, (21, 30, 50), (7, 6, 5), 1536, 12, 30)
CASES = (
    *(image("dit", "dit_s", "DiT-S/2", pixels, 16, 384, 6, 12) for pixels in SIDES),
    WAN._replace(name="wan_block", title="Wan2.1-1.3B, one block", depth=1), WAN,
    *(text("decode", tokens) for tokens in LENGTHS),
    *(text("prefill", tokens) for tokens in LENGTHS),
    *(image("dit", "dit_xl", "DiT-XL/2", pixels, 16, 1152, 16, 28) for pixels in SIDES),
    *(image("sana", "sana", "SANA block", pixels, 32, 1152, 36, 1) for pixels in SIDES[2:]),
    *(image("sana", "sana_72", "SANA block, heads of 72", pixels, 32, 1152, 16, 1)
      for pixels in SIDES[2:]),
)
SMALLEST = (  # of each kind, for a CPU
    Case("dit_small", "DiT", "dit", 2, (8, 8), (4, 4), 64, 2, 2),
    Case("sana_small", "SANA block", "sana", 2, (8, 8), (4, 4), 64, 2, 1),
    Case("wan_small", "Wan2.1 block", "wan", 1, (2, 4, 4), (1, 2, 2), 96, 2, 2),
    Case("prefill_small", "340M, prefill", "prefill", 2, (64,), (16,), 512, 2, 2),
    Case("decode_small", "340M, decode", "decode", 2, (48,), (16,), 512, 2, 2),
)


# ---- attention between tensors -------------------------------------------------------------------

def softmax(backend, causal=False):
    """Softmax attention of q, k, v [B,N,H,.] by a kernel of PyTorch, or by the default of PyTorch.

    Kernels take equal widths. Values that are wider than keys become several heads.
    """
    def attend(q, k, v):
        heads, parts = q.shape[2], v.shape[-1] // q.shape[-1]
        q, k = (t.repeat_interleave(parts, 2) if parts > 1 else t for t in (q, k))
        v = v.unflatten(-1, (parts, -1)).flatten(2, 3)
        out = (torch_cuda_peers.softmax(q, k, v, causal, backend) if backend else
               torch_blocks.softmax(q, k, v, causal))
        return out.unflatten(2, (heads, parts)).flatten(3)
    return attend


def linear(q, k, v):
    """Linear attention of q, k, v [B,N,H,.] as two products."""
    q, k, v = (t.transpose(1, 2) for t in (torch_cuda_peers.phi(q), torch_cuda_peers.phi(k), v))
    out = q @ (k.mT @ v) / (q @ k.sum(-2).unsqueeze(-1))
    return out.transpose(1, 2)


def backend_of(arm):
    """The kernel of a softmax arm; None for PyTorch's choice, or for another arm."""
    backends = torch.nn.attention.SDPBackend
    return {FLASH: backends.FLASH_ATTENTION, CUDNN: backends.CUDNN_ATTENTION}.get(arm)


# ---- layers --------------------------------------------------------------------------------------

class ImageAttention(tiny_vit.Attention):
    """Attention of images in raster order. `attend` is of tensors [B,H,N,D]."""

    def __init__(self, case, arm, exact):
        super().__init__(case.channels, case.heads)
        self.grid = case.grid
        if arm in (OURS, PLAIN):
            formula = {"backend": "formula", "dtype": torch.float32 if exact else torch.bfloat16}
            self.attend = mhla_torch.MHLA(case.grid, case.block,
                                          **({} if arm == OURS and not exact else formula))
        else:
            attend = linear if arm == LINEAR else softmax(None if exact else backend_of(arm))
            self.attend = lambda *t: attend(*(x.transpose(1, 2) for x in t)).transpose(1, 2)

    def over_image(self, convolution, x):
        """A convolution of the tokens x [B,N,C] over the image."""
        return convolution(x.mT.unflatten(2, self.grid)).flatten(2).mT


class SoftmaxVideo(torch_layers.Video):
    def attend(self, q, k, v):
        return self.kernel(self.turn(q), self.turn(k), v)


class SoftmaxLanguage(torch_layers.Language):
    def attend(self, q, k, v):
        return self.kernel(q, k, v)


class FlaLanguage(torch_layers.Language):
    def attend(self, q, k, v):
        from fla.ops.linear_attn import chunk_linear_attn
        return chunk_linear_attn(q, k, v, scale=q.shape[-1]**-0.5, normalize=False)[0]


class DecodingLanguage(mhla_torch.Language):
    """A token after those of a prompt, or after its first `most` tokens."""

    state, most = None, None

    def prepare(self, prompt):
        self.state = self.start(len(prompt))
        self.append(self.state, prompt[:, :self.most])

    def forward(self, x):
        return self.append(self.state, x)


class CachedLanguage(torch_layers.Language):
    """A token after N cached tokens, without rotary angles."""

    def prepare(self, prompt):
        k, v = self.project(prompt, "k").relu(), self.project(prompt, "v")
        parts = v.shape[-1] // k.shape[-1]
        self.cache = [t.contiguous() for t in (k.repeat_interleave(parts, 2),
                                               v.unflatten(-1, (parts, -1)).flatten(2, 3))]

    def attend(self, q, k, v):
        keys, values = self.cache
        parts = keys.shape[2] // q.shape[2]
        out = self.kernel(q.repeat_interleave(parts, 2), keys, values)
        return out.unflatten(2, (q.shape[2], parts)).flatten(3)


def video(case, arm, exact):
    layout = [n // w for n, w in zip(case.grid, case.block)]
    if arm == OURS and not exact:
        return mhla_torch.Video(case.channels, case.heads, case.grid, layout)
    if arm in (OURS, PLAIN):
        return torch_layers.Video(case.channels, case.heads, case.grid, layout)
    layer = torch_layers.Video if arm == LINEAR else SoftmaxVideo
    layer = layer(case.channels, case.heads, case.grid, (1, 1, 1))
    layer.kernel = softmax(None if exact else backend_of(arm))
    return layer


def language(case, arm, exact):
    sizes, (length,) = (case.channels, case.heads), case.block
    if arm == OURS and not exact:
        return mhla_torch.Language(*sizes, length, case.blocks)
    if arm in (OURS, PLAIN):
        return torch_layers.Language(*sizes, length, case.blocks)
    if arm == FLA and not exact:
        return FlaLanguage(*sizes, case.tokens, 1)
    if arm in (LINEAR, FLA):
        return torch_blocks.LinearLanguage(*sizes, 64, -(-case.tokens // 64))
    layer = SoftmaxLanguage(*sizes, case.tokens, 1)
    layer.kernel = softmax(None if exact else backend_of(arm), causal=True)
    return layer


def decoding(case, arm, exact):
    sizes, (length,) = (case.channels, case.heads), case.block
    if arm in (OURS, PLAIN, LINEAR):
        backend = "formula" if exact or arm == PLAIN else "auto"
        blocks = case.blocks + -(-SPARE // length)
        if arm == LINEAR:  # a block, whose coefficient is 1: a step does not depend on the tokens
            length, blocks = 2 * SPARE, 1
        layer = DecodingLanguage(*sizes, length, blocks, backend=backend)
        layer.most = SPARE if arm == LINEAR else None
        return layer
    layer = CachedLanguage(*sizes, 1, 1)
    layer.kernel = softmax(None if exact else backend_of(arm))
    return layer


# ---- models --------------------------------------------------------------------------------------

class CrossAttention(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        for name in "qkvo":
            setattr(self, name, nn.Linear(channels, channels))
        self.norm_q, self.norm_k = (nn.RMSNorm(channels, eps=1e-6) for _ in range(2))

    def forward(self, x, text):
        tensors = self.norm_q(self.q(x)), self.norm_k(self.k(text)), self.v(text)
        out = functional.scaled_dot_product_attention(
            *(t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in tensors))
        return self.o(out.transpose(1, 2).flatten(2))


class Wan(nn.Module):
    """The block of Wan2.1: self-attention, cross-attention to a text, perceptron."""

    def __init__(self, attn, channels):
        super().__init__()
        self.attn, hidden = attn, channels * 35 // 6  # 8960 of 1536
        self.cross = CrossAttention(channels, attn.heads)
        self.ffn = nn.Sequential(nn.Linear(channels, hidden), nn.GELU("tanh"),
                                 nn.Linear(hidden, channels))
        self.norm1, self.norm2 = (torch_blocks.plain_norm(channels) for _ in range(2))
        self.norm3 = nn.LayerNorm(channels, eps=1e-6)
        self.modulation = nn.Parameter(torch.randn(6, channels) / channels**0.5)

    def forward(self, x, c, text):
        m = (c.unflatten(-1, (6, -1)) + self.modulation).unbind(1)
        x = x + m[2].unsqueeze(1) * self.attn(torch_blocks.modulated(self.norm1(x), m))
        x = x + self.cross(self.norm3(x), text)
        return x + m[5].unsqueeze(1) * self.ffn(torch_blocks.modulated(self.norm2(x), m[3:]))


LAYERS = {"dit": ImageAttention, "sana": ImageAttention, "wan": video, "prefill": language,
          "decode": decoding}
BLOCKS = {"dit": torch_blocks.Dit, "sana": torch_blocks.Sana, "wan": Wan,
          "prefill": torch_blocks.Language, "decode": torch_blocks.Language}


def block_of(case, arm, exact=False):
    """A block with an attention; `exact`: with the reference of that attention, for float32.

    Throws ValueError if the case lacks the arm.
    """
    if arm == FLA and (case.kind != "prefill" or not importlib.util.find_spec("fla")):
        raise ValueError("fla is not installed" if case.kind == "prefill" else
                         "chunk_linear_attn is causal")
    block = BLOCKS[case.kind](LAYERS[case.kind](case, arm, exact), case.channels)
    with torch.no_grad():  # torch_layers has other matrices at the start
        if arm == PLAIN and case.kind == "wan":
            layout = [n // w for n, w in zip(case.grid, case.block)]
            near = mhla_torch.locality(layout, columns=True)
            block.attn.block_attn.conv.weight.copy_(near[..., None, None])
        if arm == PLAIN and case.kind == "prefill":
            block.attn.mixing_matrix.copy_(mhla_torch.attention.uniform_causal(
                case.blocks)[..., None, None, None, None])
    return block


def tokens_of(case, batch, like):
    """Random tokens [B,N,C]. Neighbours resemble each other, so attention has something to find."""
    regions = min(16, case.tokens)
    drawn = torch.randn(batch, regions, case.channels, device=like.device)
    whole = drawn.repeat_interleave(-(-case.tokens // regions), 1)[:, :case.tokens]
    return (2 * whole + torch.randn_like(whole)).to(like.dtype)


def inputs_of(case, like):
    """Tokens, and what else a block reads: [x, ...]."""
    draw = lambda *sizes: torch.randn(*sizes, device=like.device, dtype=like.dtype)
    x = draw(case.batch, 1, case.channels) if case.kind == "decode" else tokens_of(case, case.batch,
                                                                                   like)
    others = {"dit": [(case.channels,)], "sana": [(6 * case.channels,)],
              "wan": [(6 * case.channels,), (TEXT, case.channels)]}
    return [x, *(draw(case.batch, *sizes) for sizes in others.get(case.kind, []))]


class Model(nn.Module):
    """A block that runs `depth` times. Models that decode have separate blocks."""

    def __init__(self, blocks, depth):
        super().__init__()
        self.blocks, self.depth = nn.ModuleList(blocks), depth

    def forward(self, x, *conditions):
        for i in range(self.depth):
            x = self.blocks[i % len(self.blocks)](x, *conditions)
        return x
