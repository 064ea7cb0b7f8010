"""A vision transformer with the members and the names of timm's."""

import torch
from torch import nn
from torch.nn import functional


class PatchEmbed(nn.Module):
    def __init__(self, size, patch, channels):
        super().__init__()
        self.grid_size = (size // patch, size // patch)
        self.proj = nn.Conv2d(1, channels, patch, patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)  # [B,N,C]


class Attention(nn.Module):
    """Softmax attention like timm's. `attend` is a function of q, k, v [B,H,N,D]."""

    def __init__(self, channels, heads):
        super().__init__()
        self.num_heads, self.attend = heads, functional.scaled_dot_product_attention
        self.qkv = nn.Linear(channels, 3 * channels)
        self.q_norm, self.k_norm = nn.Identity(), nn.Identity()
        self.attn_drop = nn.Dropout(0.0)
        self.proj, self.proj_drop = nn.Linear(channels, channels), nn.Dropout(0.0)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        out = self.attend(self.q_norm(q), self.k_norm(k), v)
        return self.proj_drop(self.proj(out.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(channels), Attention(channels, heads)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 2 * channels), nn.GELU(),
                                 nn.Linear(2 * channels, channels))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TinyViT(nn.Module):
    """Maps images [B,1,size,size] to logits [B,10], read from the class token if there is one."""

    def __init__(self, size=32, patch=2, channels=32, heads=2, depth=2, class_token=False):
        super().__init__()
        self.patch_embed = PatchEmbed(size, patch, channels)
        self.num_prefix_tokens = int(class_token)
        if class_token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, channels))
        tokens = (size // patch)**2 + self.num_prefix_tokens
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, tokens, channels))
        self.blocks = nn.Sequential(*(Block(channels, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(channels), nn.Linear(channels, 10)

    def forward(self, x):
        x = self.patch_embed(x)
        if self.num_prefix_tokens:
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        x = self.norm(self.blocks(x + self.pos_embed))
        return self.head(x[:, 0] if self.num_prefix_tokens else x.mean(1))
