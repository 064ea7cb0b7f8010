"""Trains a small vision transformer on Fashion-MNIST, with softmax attention and with MHLA.

Both start from the same weights and see the same images. They differ in one line, which calls
replace_attention. Prints the ends of both curves and writes OUTPUT.json and OUTPUT.png: losses, and
the initial and the learned mixing matrices.

--device cuda trains a larger transformer in bfloat16, with heads of 64 channels, and with linear
attention too. It prints a table of accuracies, images per second and memory. Without a GPU it says
so and ends.
"""

import argparse
import copy
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import mhla_torch
from mhla_torch import MHLA, replace_attention
from tiny_vit import Attention, TinyViT

CHART = Path(__file__).parents[1] / "train_images" / "chart.py"
SIDE = 32  # pixels
# patch: pixels; block: patches along each axis, so 16 blocks of 16 or of 64
DEFAULTS = {
    "cpu": {"images": 10000, "epochs": 1, "batch": 20, "rate": 4e-3, "patch": 2, "block": 4,
            "model": {}, "attentions": ("softmax", "mhla")},
    "cuda": {"images": 20000, "epochs": 5, "batch": 100, "rate": 1e-3, "patch": 1, "block": 8,
             "model": {"channels": 256, "heads": 4, "depth": 4},
             "attentions": ("softmax", "linear", "mhla")},
}


def read_idx(path, axes, count):
    """The first `count` items of a gzipped IDX file: 4 bytes, 4 per axis, then bytes of data."""
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


def linear(q, k, v):
    """Linear attention of q, k, v [B,H,N,D]."""
    return mhla_torch.linear(q, k, v, layout="bhnd")


def model_of(name, options):
    """A transformer with softmax attention, linear attention or MHLA, from the same weights."""
    torch.manual_seed(options.seed)
    model = TinyViT(SIDE, options.patch, **options.model).to(options.device)
    if name == "mhla":
        return replace_attention(model, block=(options.block, options.block))
    for module in model.modules():
        if name == "linear" and isinstance(module, Attention):
            module.attend = linear
    return model


def precision(options):
    """bfloat16 by autocast on CUDA, float32 on the CPU."""
    return torch.autocast("cuda", torch.bfloat16, enabled=options.device == "cuda")


def step(model, optimizer, images, labels, options):
    """One step of the optimiser; returns the loss."""
    with precision(options):
        loss = functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for module in model.modules():
        if isinstance(module, MHLA):
            module.constrain_()
    return loss.detach()


def now(options):
    """Seconds on the clock after the device has finished its work."""
    if options.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds_per_step(model, training, options):
    """Seconds per step of a copy of the model, after steps that load kernels."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for timed in (5, 10):
        begin = now(options)
        for _ in range(timed):
            step(model, optimizer, *(t[:options.batch] for t in training), options)
    return (now(options) - begin) / timed


def train(name, training, test, options):
    """Trains one model; returns the results that chart.py draws, images per second and memory."""
    model = model_of(name, options)
    start = mixing_of(model)
    steps = options.epochs * options.images // options.batch
    if options.seconds:
        bound = options.seconds / seconds_per_step(model, training, options)
        steps = min(steps, max(20, int(bound)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=steps)
    shuffle = torch.Generator().manual_seed(options.seed)
    order = torch.cat([torch.randperm(options.images, generator=shuffle)
                       for _ in range(options.epochs)])[:steps * options.batch].to(options.device)
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    losses, begin = [], now(options)
    for chosen in order.view(steps, options.batch):
        losses.append(step(model, optimizer, training[0][chosen], training[1][chosen], options))
        schedule.step()
    seconds = now(options) - begin
    memory = torch.cuda.max_memory_allocated() if options.device == "cuda" else None
    losses = torch.stack(losses).tolist()
    model.eval()
    with torch.inference_mode(), precision(options):
        right = sum((model(x).argmax(1) == y).sum().item()
                    for x, y in zip(test[0].split(250), test[1].split(250)))
    accuracy = right / len(test[1])
    last = losses[-max(1, steps // 10):]
    print(f"{name:8} training loss {sum(losses[:len(last)]) / len(last):.3f} -> "
          f"{sum(last) / len(last):.3f}, test accuracy {100 * accuracy:.1f} %, {seconds:.0f} s",
          flush=True)
    return {"settings": {"attention": name}, "losses": losses, "test_accuracy": accuracy,
            "initial_mixing": start, "learned_mixing": mixing_of(model), "steps": steps,
            "images_per_second": steps * options.batch / seconds, "peak_memory": memory}


def print_table(results):
    print(f"{'attention':10} {'test accuracy':>13} {'images/s':>10} {'peak memory':>12} {'steps':>7}")
    for result in results:
        print(f"{result['settings']['attention']:10} {100 * result['test_accuracy']:11.1f} % "
              f"{result['images_per_second']:10.0f} {result['peak_memory'] / 1e6:9.0f} MB "
              f"{result['steps']:7}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--data", type=Path, default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--images", type=int, help="training images: 10000, on CUDA 20000")
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--epochs", type=int, help="times an image is seen: 1, on CUDA 5")
    parser.add_argument("--seconds", type=float, help="of training per model, at most")
    parser.add_argument("--batch", type=int, help="images of a step: 20, on CUDA 100")
    parser.add_argument("--rate", type=float, help="largest learning rate: 4e-3, on CUDA 1e-3")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="torch", help="prefix of the .json and the .png")
    options = parser.parse_args()
    for name, value in DEFAULTS[options.device].items():
        if getattr(options, name, None) is None:
            setattr(options, name, value)
    return options


def main():
    options = arguments()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU that PyTorch sees: nothing is trained")
        return
    training, test = ([t.to(options.device) for t in read_images(options.data, part, count)]
                      for part, count in (("train", options.images), ("t10k", options.test_images)))
    results = [train(name, training, test, options) for name in options.attentions]
    if options.device == "cuda":
        print_table(results)
    with open(options.output + ".json", "w", encoding="utf-8") as file:
        json.dump({"images": options.images, "epochs": options.epochs, "results": results,
                   "schedule": {"batch": options.batch}}, file)
    drawn = subprocess.run([sys.executable, CHART, options.output + ".json",
                            options.output + ".png"], check=False).returncode
    if drawn not in (0, 3):  # 3: no matplotlib
        sys.exit(drawn)
    print(f"written: {options.output}.json" + (f", {options.output}.png" if drawn == 0 else
                                               "; no picture without matplotlib"))


if __name__ == "__main__":
    main()
