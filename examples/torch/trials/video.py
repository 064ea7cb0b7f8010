"""Trains a video transformer to fill holes in clips of 13,824 tokens with each attention.

The task is that of restore_video with 8 times the tokens: 32 frames of 192 x 144 pixels, a token
per patch of 8 x 8. Holes are boxes in space and time, filled from the nearest frame that shows the
patch. The model corrects them. The last fifth of the video is held out. Prints the PSNR of hidden
pixels.
"""

import math

import numpy as np
import tiny_vit
import torch
import trial
from PIL import Image
from torch import nn

NAMES = ("softmax", "linear", "MHLA", "MHLA, by distance")
HIDDEN = 0.5  # share of tokens that is hidden at least
SIZES = {"frames": (32, 4), "width": (192, 32), "height": (144, 24), "patch": (8, 8),
         "batch": (2, 2), "channels": (256, 32), "heads": (4, 2), "depth": (4, 2),
         "steps": (2000, 6), "tests": (8, 2)}
PREDICTIONS = {"softmax": "19.0 dB", "linear": "19.2 dB", "MHLA": "20.0 dB",
               "MHLA, by distance": "20.0 dB"}


class Restorer(nn.Module):
    """Maps filled patches [B,N,features] and a mask [B,N] of hidden ones to patches."""

    def __init__(self, grid, options):
        super().__init__()
        channels, features = options.channels, 3 * options.patch**2
        self.patch, self.hidden = nn.Linear(features, channels), nn.Parameter(torch.zeros(channels))
        self.axes = nn.ParameterList(
            0.02 * torch.randn(*(n if i == j else 1 for j, n in enumerate(grid)), channels)
            for i in range(3))
        self.blocks = nn.Sequential(*(tiny_vit.Block(channels, options.heads)
                                      for _ in range(options.depth)))
        self.norm, self.head = nn.LayerNorm(channels), nn.Linear(channels, features)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, filled, mask):
        x = self.patch(filled) + mask[..., None] * self.hidden + sum(self.axes).flatten(0, 2)
        return filled + self.head(self.norm(self.blocks(x)))


def block_of(grid):
    """Tokens of a block along each axis, for at most N^(1/2) blocks."""
    counts = [1, 1, 1]
    while True:
        free = [i for i in range(3) if grid[i] % (2 * counts[i]) == 0
                and (2 * math.prod(counts))**2 <= math.prod(grid)]
        if not free:
            return tuple(n // m for n, m in zip(grid, counts))
        longest = max(free, key=lambda i: grid[i] / counts[i])
        counts[longest] *= 2


def read_frames(folder, options):
    """Frames [F,3,Y,X], numbers in [-1, 1]."""
    paths = sorted(folder.glob("*.png"))
    if len(paths) < 10 * options.frames:
        raise SystemExit(f"{folder} has {len(paths)} frames, expected at least "
                         f"{10 * options.frames}: data.sh decodes them")
    frames = []
    for path in paths:
        with Image.open(path) as image:
            size = options.width, options.height
            frames.append(np.asarray(image.convert("RGB").resize(size, Image.Resampling.BOX)))
    return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2).float() / 127.5 - 1


def patches_of(clip, side):
    """Patches [N,3 * side * side] of frames [F,3,Y,X]."""
    x = clip.unfold(2, side, side).unfold(3, side, side)  # [F,3,y,x,side,side]
    return x.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2)


def boxes(grid, draw):
    """Hides random boxes until half of the tokens are hidden. -> bool [F,y,x]"""
    mask = np.zeros(grid, bool)
    while mask.mean() < HIDDEN:
        box = []
        for axis, size in enumerate(grid):
            least, most = (-(-size // 4), size) if axis == 0 else (-(-size // 8), size // 2)
            length = draw.integers(least, max(least, most) + 1)
            begin = draw.integers(size - length + 1)
            box.append(slice(begin, begin + length))
        mask[tuple(box)] = True
    return torch.from_numpy(mask)


def fill(patches, mask):
    """Replaces hidden patches by those of the nearest frame that shows them; by 0 if none does."""
    frames = len(mask)
    patches, mask = patches.view(frames, -1, patches.shape[-1]), mask.flatten(1)
    places = torch.arange(frames, device=mask.device)
    apart = (places[:, None] - places).abs()
    apart = apart[:, :, None] + 10 * frames * mask  # [to,from,place]
    nearest = apart.argmin(1)
    filled = patches.gather(0, nearest[..., None].expand_as(patches))
    return torch.where(mask.all(0)[None, :, None], 0., filled).flatten(0, 1)


def clips(video, count, options, draw):
    """Random clips with holes: filled patches, masks [B,N], and patches [B,N,features]."""
    parts = []
    for _ in range(count):
        begin = draw.integers(len(video) - options.frames + 1)
        patches = patches_of(video[begin:begin + options.frames], options.patch)
        mask = boxes(options.grid, draw).to(video.device)
        parts.append((fill(patches, mask), mask.flatten().float(), patches))
    return [torch.stack(part) for part in zip(*parts)]


def squares_of(model, filled, mask, patches):
    """The mean squared error of hidden patches."""
    return ((model(filled, mask).float() - patches).square().mean(-1) * mask).sum() / mask.sum()


def main():
    options = trial.options_of(trial.parser_of(__doc__, "video", **SIZES), **SIZES)
    options.grid = (options.frames, options.height // options.patch, options.width // options.patch)
    columns = ["training loss", "PSNR, dB", "nearest frame, dB"]
    options.table = lambda rows: trial.table(NAMES, rows, columns, PREDICTIONS)
    rows = []
    if not options.predict:
        video = read_frames(options.data / "frames", options).to(options.device)
        training, held_out = video[:len(video) * 4 // 5], video[len(video) * 4 // 5:]

        def model_of(name):
            return trial.over_grid(Restorer(options.grid, options), name, options.grid,
                                   block_of(options.grid))

        def batch_of(seed, step):
            return clips(training, options.batch, options, np.random.default_rng((seed, step)))

        def test(model, _):
            draw, squares = np.random.default_rng(0), {"PSNR, dB": [], "nearest frame, dB": []}
            for _ in range(options.tests):
                clip = clips(held_out, 1, options, draw)
                clamped = lambda filled, mask: model(filled, mask).float().clamp(-1, 1)
                for name, restore in (("PSNR, dB", clamped),
                                      ("nearest frame, dB", lambda filled, _: filled)):
                    squares[name].append(squares_of(restore, *clip).item())
            return {name: 10 * math.log10(4 / np.mean(of)) for name, of in squares.items()}

        rows = trial.compare(NAMES, model_of, squares_of, batch_of, test, options)
    print(trial.described(options, rows))


if __name__ == "__main__":
    main()
