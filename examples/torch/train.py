"""Trains a small vision transformer on Fashion-MNIST, with softmax attention and with MHLA.

Both start from the same weights and see the same images; the one line that differs calls
replace_attention. Prints the ends of both curves and writes OUTPUT.json and OUTPUT.png: losses, and
the mixing matrices at the start and as learned.
"""

import argparse
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from mhla_torch import MHLA, replace_attention
from tiny_vit import TinyViT

CHART = Path(__file__).parents[1] / "train_images" / "chart.py"
PATCH, SIDE = 2, 32  # pixels
BLOCK = (4, 4)  # patches: 16 blocks of 16


def read_idx(path, axes, count):
    """The first `count` items of a gzipped IDX file of bytes: 4 bytes and 4 an axis, then data."""
    if not path.is_file():
        sys.exit(f"{path} is not there: expected a file of Fashion-MNIST (Debian: "
                 "dataset-fashion-mnist)")
    with gzip.open(path) as file:
        head = file.read(4 + 4 * axes)
        sizes = [int.from_bytes(head[i:i + 4], "big") for i in range(4, len(head), 4)]
        if head[:4] != bytes([0, 0, 8, axes]) or sizes[0] < count:
            sys.exit(f"{path} begins with {list(head[:4])} and holds {sizes[0]} items, expected "
                     f"[0, 0, 8, {axes}] and at least {count}")
        data = file.read(count * int(np.prod(sizes[1:])))
    return torch.from_numpy(np.frombuffer(data, np.uint8).reshape(count, *sizes[1:]).copy())


def read_images(folder, part, count):
    """Images [count,1,32,32], standardised, and their labels [count]."""
    pixels = read_idx(folder / f"{part}-images-idx3-ubyte.gz", 3, count).float() / 255
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", 1, count).long()
    margin = (SIDE - pixels.shape[-1]) // 2
    return (functional.pad(pixels, (margin,) * 4)[:, None] - 0.2860) / 0.3530, labels


def mixing_of(model):
    """The mixing matrices of all layers, as lists."""
    return [m.mixing.tolist() for m in model.modules() if isinstance(m, MHLA)]


def train(name, training, test, options):
    """Trains one model; returns what chart.py draws."""
    torch.manual_seed(options.seed)
    model = TinyViT(SIDE, PATCH)
    if name == "mhla":
        model = replace_attention(model, block=BLOCK)
    start = mixing_of(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.01)
    steps = options.epochs * options.images // options.batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=steps)
    shuffle = torch.Generator().manual_seed(options.seed)
    order = torch.cat([torch.randperm(options.images, generator=shuffle)
                       for _ in range(options.epochs)])
    losses, begin = [], time.perf_counter()
    for chosen in order[:steps * options.batch].view(steps, options.batch):
        loss = functional.cross_entropy(model(training[0][chosen]), training[1][chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        for module in model.modules():
            if isinstance(module, MHLA):
                module.constrain_()
        losses.append(loss.item())
    seconds = time.perf_counter() - begin
    model.eval()
    with torch.inference_mode():
        right = sum((model(x).argmax(1) == y).sum().item()
                    for x, y in zip(test[0].split(250), test[1].split(250)))
    accuracy = right / len(test[1])
    last = losses[-max(1, steps // 10):]
    print(f"{name:8} training loss {sum(losses[:len(last)]) / len(last):.3f} -> "
          f"{sum(last) / len(last):.3f}, test accuracy {100 * accuracy:.1f} %, {seconds:.0f} s",
          flush=True)
    return {"settings": {"attention": name}, "losses": losses, "test_accuracy": accuracy,
            "initial_mixing": start, "learned_mixing": mixing_of(model)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--images", type=int, default=10000, help="training images")
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=1, help="times an image is seen")
    parser.add_argument("--batch", type=int, default=20, help="images of a step")
    parser.add_argument("--rate", type=float, default=4e-3, help="largest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="torch", help="prefix of the .json and the .png")
    options = parser.parse_args()
    training = read_images(options.data, "train", options.images)
    test = read_images(options.data, "t10k", options.test_images)
    results = [train(name, training, test, options) for name in ("softmax", "mhla")]
    with open(options.output + ".json", "w", encoding="utf-8") as file:
        json.dump({"images": options.images, "results": results,
                   "schedule": {"epochs": options.epochs, "batch": options.batch}}, file)
    drawn = subprocess.run([sys.executable, CHART, options.output + ".json",
                            options.output + ".png"], check=False).returncode
    if drawn not in (0, 3):  # 3: no matplotlib
        sys.exit(drawn)
    print(f"written: {options.output}.json" + (f", {options.output}.png" if drawn == 0 else
                                               "; no picture without matplotlib"))


if __name__ == "__main__":
    main()
