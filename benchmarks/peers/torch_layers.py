"""The authors' attention layers in plain PyTorch, under the authors' parameter names.

Each layer maps x [B,N,C] to y [B,N,C], with the options of the benchmarks' shapes and the stored
cases. error_of(file) compares a layer with a stored case of the authors' code.
"""

import ast
import json
import sys

import torch
from torch import nn
from torch.nn import functional


def to_blocks(x, grid, block):
    """Reorders x [B,N,...] in raster order to [B,M,W,...]."""
    x = x.unflatten(1, [s for n, w in zip(grid, block) for s in (n // w, w)])
    return x.movedim((1, 3, 5), (1, 2, 3)).flatten(4, 6).flatten(1, 3)


def from_blocks(x, grid, block):
    """The inverse of to_blocks."""
    x = x.unflatten(2, block).unflatten(1, [n // w for n, w in zip(grid, block)])
    return x.movedim((1, 2, 3), (1, 3, 5)).flatten(1, 6)


def split_heads(x, heads):
    """Reorders x [B,M,W,C] to [B,H,M,W,D]."""
    return x.unflatten(3, (heads, -1)).permute(0, 3, 1, 2, 4)


def merge_heads(x):
    """The inverse of split_heads."""
    return x.permute(0, 2, 3, 1, 4).flatten(3)


class Mixing(nn.Module):
    """A mixing matrix [M,M,1,1], stored as a 1 x 1 convolution as in the checkpoints."""

    def __init__(self, blocks):
        super().__init__()
        self.conv = nn.Conv2d(blocks, blocks, 1, bias=False)

    def forward(self, x):
        """The mixtures of x [B,H,M,...], of the same shape."""
        return (self.conv.weight[:, :, 0, 0] @ x.flatten(3)).view_as(x)


def normaliser(q, k, mixing):
    """The authors' denominators [B,H,M,W,1]: sums over queries of equal slots of all blocks."""
    return mixing((q @ k.sum(-2).unsqueeze(-1)).contiguous()) + 1e-6


class Vision(nn.Module):
    """The layer of DiT and DeiT: tokens block by block; grid and block along [y, x]."""

    def __init__(self, channels, heads, grid, block, order, lepe, qk_norm, qkv_bias):
        super().__init__()
        assert order == "blocks"
        self.heads, self.grid, self.block = heads, (1, *grid), (1, *block)
        self.norm = nn.LayerNorm(channels)
        self.to_qkv = nn.Linear(channels, 3 * channels, bias=qkv_bias)
        self.q_norm = nn.RMSNorm(channels) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(channels) if qk_norm else nn.Identity()
        self.lepe = nn.Conv2d(channels, channels, lepe, padding=lepe // 2, groups=channels)
        self.piece_attn = Mixing(grid[0] * grid[1] // (block[0] * block[1]))
        self.to_out = nn.Sequential(nn.Linear(channels, channels))

    def blocks(self, x):
        """Views x [B,N,C] as [B,M,W,C]."""
        return x.unflatten(1, (-1, self.block[1] * self.block[2]))

    def over_image(self, convolution, x):
        """A convolution of the tokens x [B,N,C] over the image."""
        image = from_blocks(self.blocks(x), self.grid, self.block).unflatten(1, self.grid[1:])
        y = convolution(image.permute(0, 3, 1, 2)).flatten(2).transpose(1, 2)
        return to_blocks(y, self.grid, self.block).flatten(1, 2)

    def attend(self, q, k, v):
        """MHLA of q, k, v [B,N,C]."""
        q, k, v = (split_heads(self.blocks(t), self.heads)
                   for t in (q.relu() + 1e-6, k.relu() + 1e-6, v))
        mixed = self.piece_attn((k.transpose(-1, -2) @ v).contiguous())  # [B,H,M,D,E]
        return merge_heads(q @ mixed / normaliser(q, k, self.piece_attn)).flatten(1, 2)

    def forward(self, x):
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        out = self.attend(self.q_norm(q), self.k_norm(k), v)
        return self.to_out(out + self.over_image(self.lepe, v))


class Video(nn.Module):
    """The layer of Wan: raster order, rotary in the numerator, gated RMSNorm per head."""

    def __init__(self, channels, heads, grid, layout, lepe=False, normalize=False):
        super().__init__()
        self.heads, self.grid, self.normalize = heads, grid, normalize
        self.block = [n // m for n, m in zip(grid, layout)]
        for name in "qkvog":
            setattr(self, name, nn.Linear(channels, channels))
        self.norm_q, self.norm_k = (nn.RMSNorm(channels, eps=1e-6) for _ in range(2))
        self.g_norm = nn.RMSNorm(channels // heads, eps=1e-6)
        self.block_attn = Mixing(layout[0] * layout[1] * layout[2])
        self.lepe = nn.Conv3d(channels, channels, 3, padding=1, groups=channels) if lepe else None
        self.register_buffer("turns", self.rotary(channels // heads // 2), persistent=False)

    def rotary(self, pairs):
        """The angles of all tokens, cosines and sines.   # [2,N,pairs]"""
        narrow = pairs // 3
        widths = (pairs - 2 * narrow, narrow, narrow)
        places = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in self.grid),
                                indexing="ij")
        angles = [p.flatten()[:, None] * 10000.0**(-torch.arange(w, dtype=torch.float64) / w)
                  for p, w in zip(places, widths)]
        angles = torch.cat(angles, 1)
        return torch.stack([angles.cos(), angles.sin()]).to(torch.get_default_dtype())

    def turn(self, x):
        """Rotates pairs of channels of x [B,N,H,D]."""
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = self.turns.unsqueeze(2)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    def attend(self, q, k, v):
        """MHLA of features q, k and values v [B,N,H,.]."""
        def blocks(t):  # [B,N,H,D] -> [B,H,M,W,D]
            return to_blocks(t, self.grid, self.block).permute(0, 3, 1, 2, 4)

        mixed = self.block_attn((blocks(self.turn(k)).transpose(-1, -2) @ blocks(v)).contiguous())
        out = blocks(self.turn(q)) @ mixed
        if self.normalize:
            out = out / normaliser(blocks(q), blocks(k), self.block_attn)
        return from_blocks(out.permute(0, 2, 3, 1, 4), self.grid, self.block)

    def forward(self, x):
        q, k = self.norm_q(self.q(x)).relu() + 1e-6, self.norm_k(self.k(x)).relu() + 1e-6
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (q, k, self.v(x)))
        out = self.g_norm(self.attend(q, k, v)).flatten(2) * functional.silu(self.g(x))
        if self.lepe is not None:
            clip = v.flatten(2).transpose(1, 2).unflatten(2, self.grid)
            out = out + self.lepe(clip).flatten(2).transpose(1, 2)
        return self.o(out)


class Language(nn.Module):
    """The language model's layer: rotary after the feature map, gated RMSNorm per head."""

    def __init__(self, channels, heads, chunk, chunks, feature_map="relu", convolution=0):
        super().__init__()
        keys = channels // 2
        self.heads, self.chunk, self.feature_map = heads, chunk, feature_map
        for name, width in (("q", keys), ("k", keys), ("v", channels), ("g", channels)):
            setattr(self, f"{name}_proj", nn.Linear(channels, width, bias=False))
            if convolution and name != "g":
                setattr(self, f"{name}_conv1d", nn.Conv1d(
                    width, width, convolution, padding=convolution - 1, groups=width, bias=False))
        self.o_proj = nn.Linear(channels, channels, bias=False)
        self.mixing_matrix = nn.Parameter(torch.ones(chunks, chunks, 1, 1, 1, 1))
        self.g_norm_swish_gate = nn.RMSNorm(channels // heads, eps=1e-5)
        places = torch.arange(chunk * chunks, dtype=torch.float64)[:, None]
        pairs = keys // heads // 2
        angles = places * 10000.0**(-torch.arange(pairs, dtype=torch.float64) / pairs)
        turns = torch.stack([angles.cos(), angles.sin()]).to(torch.get_default_dtype())
        self.register_buffer("turns", turns, persistent=False)

    def project(self, x, name):
        y = getattr(self, f"{name}_proj")(x)
        if hasattr(self, f"{name}_conv1d"):
            convolve = getattr(self, f"{name}_conv1d")
            y = functional.silu(convolve(y.transpose(1, 2))[..., :x.shape[1]].transpose(1, 2))
        return y.unflatten(-1, (self.heads, -1))  # [B,N,H,D]

    def features(self, x):
        x = functional.elu(x) + 1 if self.feature_map == "elu" else x.relu()
        a, b = x.chunk(2, dim=-1)
        cos, sin = self.turns[:, :x.shape[1]].unsqueeze(2)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def blocks(self, x):
        """Reorders x [B,N,H,D] to [B,H,M,W,D], with zeros at the end of the last block."""
        missing = -x.shape[1] % self.chunk
        x = functional.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x
        return x.unflatten(1, (-1, self.chunk)).permute(0, 3, 1, 2, 4)

    def attend(self, q, k, v):
        """Causal MHLA of features q, k and values v [B,N,H,.]."""
        tokens = q.shape[1]
        q, k, v = self.blocks(q * q.shape[-1]**-0.5), self.blocks(k), self.blocks(v)
        m = self.mixing_matrix[:q.shape[2], :q.shape[2], 0, 0, 0, 0]
        summaries = k.transpose(-1, -2) @ v  # [B,H,M,D,E]
        mixed = (m.tril(-1) @ summaries.flatten(3)).view_as(summaries)
        intra = (q @ k.transpose(-1, -2)).tril() * m.diagonal()[:, None, None]
        out = q @ mixed + intra @ v
        return out.permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :tokens]

    def forward(self, x):
        q, k, v = (self.project(x, name) for name in "qkv")
        out = self.g_norm_swish_gate(self.attend(self.features(q), self.features(k), v))
        return self.o_proj(out.flatten(2) * functional.silu(self.g_proj(x)))


TYPES = {"F64": torch.float64, "F32": torch.float32}


def read_case(path):
    """The tensors and the metadata of a safetensors file of floating-point tensors."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = bytearray(file.read())
    about = header.pop("__metadata__", {})
    tensors = {}
    for name, tensor in header.items():
        if tensor["dtype"] not in TYPES:
            raise ValueError(f"{path}: {name} is {tensor['dtype']}, expected {' or '.join(TYPES)}")
        (begin, end), dtype = tensor["data_offsets"], TYPES[tensor["dtype"]]
        tensors[name] = torch.frombuffer(data, dtype=dtype, offset=begin,
                                         count=(end - begin) // dtype.itemsize
                                         ).view(tensor["shape"])
    return tensors, about


def layer_of(about, x, layers=sys.modules[__name__]):
    """The layer of a stored case, from this module or another with the same classes."""
    yes = lambda key: about[key] == "true"
    if about["kind"] == "video":
        return layers.Video(int(about["dim"]), int(about["heads"]), ast.literal_eval(about["grid"]),
                            ast.literal_eval(about["block_layout"]), yes("is_lepe"),
                            yes("normalize_out"))
    if about["kind"] == "nlp":
        return layers.Language(int(about["hidden_size"]), int(about["num_heads"]),
                               int(about["chunk_size"]), int(about["max_chunks"]),
                               about["feature_map"],
                               int(about["conv_size"]) if yes("use_short_conv") else 0)
    blocks, side = (round(n**0.5) for n in x.shape[1:3])
    return layers.Vision(int(about["dim"]), int(about["heads"]), (blocks * side, blocks * side),
                         (side, side), "blocks", int(about["lepe_kernel"]), yes("qk_norm"),
                         yes("qkv_bias"))


def error_of(path):
    """Largest error of y against a stored case, relative to its largest number."""
    tensors, about = read_case(path)
    torch.set_default_dtype(torch.float64)
    try:
        layer = layer_of(about, tensors["x"])
        state = {name.removeprefix("param."): tensor for name, tensor in tensors.items()
                 if name.startswith("param.")}
        layer.load_state_dict(state)
        x, y = tensors["x"], tensors["y"]
        if x.dim() == 4:  # [B,M,W,C]
            x, y = x.flatten(1, 2), y.flatten(1, 2)
        with torch.inference_mode():
            return float((layer(x) - y).abs().max() / y.abs().max())
    finally:
        torch.set_default_dtype(torch.float32)
