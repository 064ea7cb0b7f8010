"""Parts of the layers of layers.py: mixing matrices, rotary embeddings and checks."""

import math

import torch
from torch import nn

from mhla_torch import operators


class Mixing(nn.Module):
    """A mixing matrix [M,M,1,1], stored as a 1 x 1 convolution as in the checkpoints."""

    def __init__(self, blocks):
        super().__init__()
        count = math.prod(blocks)
        self.conv = nn.Conv2d(count, count, 1, bias=False)
        with torch.no_grad():
            self.conv.weight[:, :, 0, 0] = operators.locality(blocks, columns=True)

    def matrix(self):
        return self.conv.weight[:, :, 0, 0]  # [M,M]


def expect(layer, fits, argument, got, expected):
    if not fits:
        raise ValueError(f"{layer}: {argument} is {got}, expected {expected}")


def expect_heads(layer, channels, heads, multiple):
    """Throws unless `channels` are whole heads whose width is a multiple of `multiple`."""
    expect(layer, heads >= 1, "heads", heads, "at least 1")
    expect(layer, channels >= 1 and channels % (heads * multiple) == 0, "channels", channels,
           f"a multiple of {heads * multiple}" + f": {heads} heads of {multiple}" * (multiple > 1))


def expect_blocks(layer, axes, grid, argument, parts):
    """Throws unless `parts`, blocks or tokens per block, divide the tokens of the grid."""
    for name, sizes in (("grid", grid), (argument, parts)):
        expect(layer, len(sizes) == axes and min(sizes) >= 1, name, tuple(sizes),
               f"{axes} sizes of at least 1")
    expect(layer, not any(n % w for n, w in zip(grid, parts)), argument, tuple(parts),
           f"divisors of grid {tuple(grid)}")


@torch.no_grad()
def place_buffer(module, name, value, device):
    """Gives a buffer that checkpoints lack its value, at the address that it has if it fits."""
    old = module._buffers.get(name)
    fits = old is not None and (old.shape, old.dtype, old.device) == (value.shape, value.dtype, device)
    if fits and (torch.is_inference_mode_enabled() or not old.is_inference()):
        old.copy_(value)
    else:
        module.register_buffer(name, value.to(device, copy=True), persistent=False)


class Rotary(nn.Module):
    """A layer with a rotary embedding: self.turns [N,D], the cosine and the sine of each pair of
    features, in the type of sums. Checkpoints do not contain them. A change of the layer's type
    computes them again, so they stay exact. They keep their address as long as type, device and
    size stay, so captured graphs may read them.
    """

    def __init__(self):
        super().__init__()
        self.register_load_state_dict_post_hook(Rotary.place_turns)  # which may assign parameters

    def place_turns(self, *_):
        """Computes the turns on the device of the parameters."""
        like = next(self.parameters())
        with torch.device("cpu"):
            turns = turns_by(self.angles())
        place_buffer(self, "turns", turns.to(operators.sums_of(like.dtype)), like.device)

    def _apply(self, fn, recurse=True):
        turns = self._buffers.pop("turns", None)  # whose type fn would change
        try:
            super()._apply(fn, recurse)
        finally:
            self._buffers["turns"] = turns
        self.place_turns()
        return self


def angles(places, pairs):
    """Angles of so many pairs of channels at places [..], in double.   # [..,pairs]"""
    numbers = torch.arange(pairs, dtype=torch.float64, device=places.device)
    return places[..., None] * 10000.0**(-numbers / pairs)


def turns_by(angles):
    """The cosine and the sine of each angle [..,pairs], side by side.   # [..,2 pairs]"""
    return torch.stack([angles.cos(), angles.sin()], -1).flatten(-2)
