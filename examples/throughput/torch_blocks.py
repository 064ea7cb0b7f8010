"""The blocks of throughput.cpp in PyTorch, with the authors' names and one of three attentions.

Attention layers are those of benchmarks/peers/torch_layers.py. Without MHLA, tokens have raster
order, which needs no permutation. Softmax is scaled_dot_product_attention.
"""

import torch
from torch import nn
from torch.nn import functional

from peers import torch_layers


def softmax(q, k, v, causal=False):
    """Softmax attention of q, k, v [B,N,H,.], [B,N,H,E]."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if q.shape[-1] != v.shape[-1] and q.shape[2] > 1:  # the flash kernel needs equal widths
        scale, missing = q.shape[-1]**-0.5, (0, v.shape[-1] - q.shape[-1])
        q, k = functional.pad(q, missing), functional.pad(k, missing)
    else:
        scale = None
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    return out.transpose(1, 2)


class SoftmaxVision(torch_layers.Vision):
    def attend(self, q, k, v):
        return softmax(*(t.unflatten(-1, (self.heads, -1)) for t in (q, k, v))).flatten(2)


class SoftmaxVideo(torch_layers.Video):
    def attend(self, q, k, v):
        return softmax(self.turn(q), self.turn(k), v)


class SoftmaxLanguage(torch_layers.Language):
    def attend(self, q, k, v):
        return softmax(q, k, v, causal=True)


class LinearLanguage(torch_layers.Language):
    def attend(self, q, k, v):
        """Attends chunk by chunk, with the summary of all earlier chunks."""
        tokens = q.shape[1]
        q, k, v = self.blocks(q * q.shape[-1]**-0.5), self.blocks(k), self.blocks(v)
        summaries = k.transpose(-1, -2) @ v
        out = q @ (summaries.cumsum(2) - summaries) + (q @ k.transpose(-1, -2)).tril() @ v
        return out.permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :tokens]


class CachedLanguage(torch_layers.Language):
    """A token after N tokens, whose keys and values are cached."""

    cache = None  # [1,N,H,D], [1,N,H,E]

    def attend(self, q, k, v):
        return softmax(q, *self.cache)


class Mlp(nn.Module):
    def __init__(self, channels, approximate):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.approximate = approximate

    def forward(self, x):
        return self.fc2(functional.gelu(self.fc1(x), approximate=self.approximate))


class GatedMlp(nn.Module):
    def __init__(self, channels, hidden):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            nn.Linear(*sizes, bias=False)
            for sizes in ((channels, hidden), (channels, hidden), (hidden, channels)))

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class GatedMix(nn.Module):
    """The Mix-FFN of SANA."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.inverted_conv = nn.Linear(channels, 2 * hidden)
        self.depth_conv = nn.Conv2d(2 * hidden, 2 * hidden, 3, padding=1, groups=2 * hidden)
        self.point_conv = nn.Linear(hidden, channels, bias=False)

    def forward(self, x, over_image):
        u, g = over_image(self.depth_conv, functional.silu(self.inverted_conv(x))).chunk(2, -1)
        return self.point_conv(u * functional.silu(g))


class ResidualMix(nn.Module):
    """The Mix-FFN of RALA."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(channels, hidden), nn.Linear(hidden, channels)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)

    def forward(self, x, over_image):
        e = functional.gelu(self.fc1(x))
        return self.fc2(e + over_image(self.dwconv, e))


def plain_norm(channels):
    return nn.LayerNorm(channels, eps=1e-6, elementwise_affine=False)


def modulated(x, m):
    """Modulates x by shift m[0] and scale m[1]."""
    return x * (1 + m[1].unsqueeze(1)) + m[0].unsqueeze(1)


class Dit(nn.Module):
    def __init__(self, attn, channels):
        super().__init__()
        self.attn, self.mlp = attn, Mlp(channels, "tanh")
        self.norm1, self.norm2 = plain_norm(channels), plain_norm(channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(channels, 6 * channels))

    def forward(self, x, c):
        m = self.adaLN_modulation(c).chunk(6, -1)
        x = x + m[2].unsqueeze(1) * self.attn(modulated(self.norm1(x), m))
        return x + m[5].unsqueeze(1) * self.mlp(modulated(self.norm2(x), m[3:]))


class Deit(nn.Module):
    def __init__(self, attn, channels):
        super().__init__()
        self.attn, self.mlp = attn, Mlp(channels, "none")
        self.norm1, self.norm2 = nn.LayerNorm(channels, eps=1e-6), nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vlt(nn.Module):
    def __init__(self, attn, channels):
        super().__init__()
        self.attn, self.ffn = attn, ResidualMix(channels, 3 * channels)
        self.pos = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm1, self.norm2 = nn.LayerNorm(channels, eps=1e-6), nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x):
        x = x + self.attn.over_image(self.pos, x)
        x = x + self.attn(self.norm1(x))
        return x + self.ffn(self.norm2(x), self.attn.over_image)


class Sana(nn.Module):
    def __init__(self, attn, channels):
        super().__init__()
        self.attn, self.mlp = attn, GatedMix(channels, channels * 5 // 2)
        self.norm1, self.norm2 = plain_norm(channels), plain_norm(channels)
        self.scale_shift_table = nn.Parameter(torch.randn(6, channels))

    def forward(self, x, c):
        m = (c.unflatten(-1, (6, -1)) + self.scale_shift_table).unbind(1)
        x = x + m[2].unsqueeze(1) * self.attn(modulated(self.norm1(x), m))
        y = self.mlp(modulated(self.norm2(x), m[3:]), self.attn.over_image)
        return x + m[5].unsqueeze(1) * y


class Language(nn.Module):
    def __init__(self, attn, channels):
        super().__init__()
        self.attn, self.mlp = attn, GatedMlp(channels, 2816)
        attn.g_norm_swish_gate.eps = 1e-6
        self.attn_norm, self.mlp_norm = (nn.RMSNorm(channels, eps=1e-6) for _ in range(2))

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


VISION = {"DiT-S/2": Dit, "DeiT-S": Deit, "VLT-T 1": Vlt, "VLT-T 2": Vlt, "SANA block": Sana}


MOST_CACHED = 1 << 29  # bytes of separate caches


def decoder_of(result, channels):
    """All blocks of a model after N tokens. Each has its own weights, and its own cache up to
    MOST_CACHED bytes in all."""
    n, heads, widths = result["tokens"], result["heads"], (result["width"], result["values"])
    count = max(1, min(result["depth"], MOST_CACHED // (4 * n * heads * sum(widths))))
    caches = [tuple(torch.randn(1, n, heads, width) for width in widths) for _ in range(count)]
    blocks = [Language(CachedLanguage(channels, heads, 64, 1), channels)
              for _ in range(result["depth"])]
    for i, block in enumerate(blocks):
        block.attn.cache = caches[i % count]
    return nn.Sequential(*blocks)


def block_of(result, kind):
    """The block of a result of throughput.cpp with attention `kind`, or all blocks of a decoder;
    and the sizes of its inputs besides x: [columns of the condition] or []."""
    channels, heads = result["heads"] * result["values"], result["heads"]
    grid = result["grid"]
    block = result["block"] if kind == "mhla" else grid
    model = result["model"]
    if model in VISION:
        deit = model == "DeiT-S"
        layer = SoftmaxVision if kind == "softmax" else torch_layers.Vision
        attention = layer(channels, heads, grid[1:], block[1:], "blocks", lepe=5 if deit else 3,
                          qk_norm=deit, qkv_bias=not deit)
        columns = {"DiT-S/2": [channels], "SANA block": [6 * channels]}
        return VISION[model](attention, channels), columns.get(model, [])
    if model == "Wan layer":
        layout = [n // w for n, w in zip(grid, block)]
        layer = SoftmaxVideo if kind == "softmax" else torch_layers.Video
        return layer(channels, heads, grid, layout), []
    if model == "340M token":
        return decoder_of(result, channels), []
    layer = {"softmax": SoftmaxLanguage, "linear": LinearLanguage, "mhla": torch_layers.Language}
    chunk = result["tokens"] // result["blocks"] if kind == "mhla" else 64
    attention = layer[kind](channels, heads, chunk, result["tokens"] // chunk)
    return Language(attention, channels), []
