"""Trains a denoiser of photographs at 1,024 or 4,096 tokens with each attention.

A token is a patch of 4 x 4 pixels. The model removes Gaussian noise of an unknown strength from a
piece of a photograph. Every fourth photograph is held out. Prints the training loss, and the PSNR
of pieces of held-out photographs with noise of standard deviation 0.5. Pixels are in [-1, 1].
"""

import math

import numpy as np
import tiny_vit
import torch
import trial
from PIL import Image
from torch import nn
from torch.nn import functional

NAMES = ("softmax", "linear", "MHLA", "MHLA, by distance", "softmax and convolution",
         "linear and convolution", "MHLA and convolution")
PATCH, NOISE = 4, (0.05, 1.0)  # pixels; standard deviations, of pixels in [-1, 1]
SIZES = {"tokens": (4096, 64), "step_tokens": (65536, 256), "channels": (256, 32), "heads": (4, 2),
         "depth": (6, 2), "block": (8, 4), "steps": (3000, 8), "tests": (64, 4)}
PREDICTIONS = {
    "softmax": "best PSNR without a convolution at 1,024 tokens; slowest at 4,096",
    "linear": "0.3 dB below softmax",
    "MHLA": "0.1 dB above linear at 1,024 tokens, 0.2 dB at 4,096",
    "MHLA, by distance": "within 0.05 dB of MHLA",
    "softmax and convolution": "0.2 dB above softmax",
    "linear and convolution": "within 0.05 dB of MHLA and convolution",
    "MHLA and convolution": "within 0.1 dB of softmax and convolution",
}


class Denoiser(nn.Module):
    """Maps noisy images [B,3,S,S] to images."""

    def __init__(self, options):
        super().__init__()
        side, channels = math.isqrt(options.tokens), options.channels
        self.grid = side, side
        self.embed = nn.Conv2d(3, channels, PATCH, PATCH)
        self.positions = nn.Parameter(0.02 * torch.randn(1, side * side, channels))
        self.blocks = nn.Sequential(*(tiny_vit.Block(channels, options.heads)
                                      for _ in range(options.depth)))
        self.norm, self.head = nn.LayerNorm(channels), nn.Linear(channels, 3 * PATCH**2)

    def forward(self, noisy):
        x = self.embed(noisy).flatten(2).mT + self.positions
        noise = self.head(self.norm(self.blocks(x))).mT.unflatten(2, self.grid)
        return noisy - functional.pixel_shuffle(noise, PATCH)


def batch(options):
    """Images of a step."""
    return max(1, options.step_tokens // options.tokens)


def model_of(name, options):
    model = Denoiser(options)
    return trial.over_grid(model, name, model.grid, (options.block,) * 2)


def read_photographs(folder, least):
    """Photographs [3,Y,X] of bytes at half size, which hides the noise of the camera."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in (".jpg", ".jpeg", ".png", ".webp"):
            continue
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB").reduce(2))
        if min(pixels.shape[:2]) >= least:
            found.append(torch.from_numpy(pixels.copy()).permute(2, 0, 1))
    if len(found) < 4:
        raise SystemExit(f"{folder} has {len(found)} photographs of at least {2 * least} pixels, "
                         "expected 4 or more: data.sh fetches them")
    return found


def pieces(photographs, count, side, draw):
    """Random squares [count,3,side,side], numbers in [-1, 1]."""
    cut = []
    for _ in range(count):
        image = photographs[draw.integers(len(photographs))]
        y, x = (int(draw.integers(n - side + 1)) for n in image.shape[1:])
        cut.append(image[:, y:y + side, x:x + side])
    return torch.stack(cut).float() / 127.5 - 1


def loss_of(model, noisy, clean):
    return functional.mse_loss(model(noisy).float(), clean)


def noise_like(clean, draw):
    """Gaussian noise of standard deviation 1."""
    generator = torch.Generator(clean.device).manual_seed(int(draw.integers(1 << 62)))
    return torch.randn(clean.shape, generator=generator, device=clean.device)


def batches_of(photographs, options):
    """The function batch_of(seed, step) -> noisy and clean images."""
    side = PATCH * math.isqrt(options.tokens)

    def batch_of(seed, step):
        draw = np.random.default_rng((seed, step))
        clean = pieces(photographs, batch(options), side, draw)
        strength = torch.from_numpy(draw.uniform(*NOISE, (len(clean), 1, 1, 1))).to(clean)
        return clean + strength * noise_like(clean, draw), clean

    return batch_of


def test_of(photographs, options):
    """The function test(model, seed) -> PSNR."""
    side = PATCH * math.isqrt(options.tokens)

    def test(model, _):
        draw, squares = np.random.default_rng(0), []
        while len(squares) * batch(options) < options.tests:
            clean = pieces(photographs, batch(options), side, draw)
            restored = model(clean + 0.5 * noise_like(clean, draw)).float().clamp(-1, 1)
            squares.append(functional.mse_loss(restored, clean).item())
        return {"PSNR, dB": 10 * math.log10(4 / np.mean(squares))}

    return test


def photographs_of(options):
    """Photographs for training, and held out, on the device."""
    found = [image.to(options.device) for image in
             read_photographs(options.data / "images", PATCH * math.isqrt(options.tokens))]
    return [image for i, image in enumerate(found) if i % 4], found[::4]


def main():
    options = trial.options_of(trial.parser_of(__doc__, "images", **SIZES), **SIZES)
    columns = ["training loss", "PSNR, dB"]
    options.table = lambda rows: trial.table(NAMES, rows, columns, PREDICTIONS)
    rows = []
    if not options.predict:
        training, held_out = photographs_of(options)
        rows = trial.compare(NAMES, lambda name: model_of(name, options), loss_of,
                             batches_of(training, options), test_of(held_out, options), options)
    print(trial.described(options, rows))


if __name__ == "__main__":
    main()
