"""What the trials share: attentions, training with several seeds, and tables.

A trial trains one model with each attention. All see the same data in the same order, take as many
steps and begin from the same weights. Seeds change data, order and weights.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import mhla_torch
import tiny_vit
import torch
from peers.context import context_of, listed
from support import results
from torch import nn
from torch.nn import functional
from train import now, precision


# ---- attentions ----------------------------------------------------------------------------------

class Decay(nn.Module):
    """A causal mixing matrix of decaying terms: m_ib = sum_r a_r lambda_r^(i-b)."""

    def __init__(self, terms=4):
        super().__init__()
        self.weights = nn.Parameter(torch.full((terms,), 1 / terms))
        self.decays = nn.Parameter(1 - torch.logspace(-4, -1, terms, base=2))

    def matrix(self, blocks):
        """m [M,M]."""
        return mhla_torch.decay_matrix(torch.stack([self.weights, self.decays]), blocks)

    @torch.no_grad()
    def constrain_(self):
        self.weights.clamp_(min=0)
        self.decays.clamp_(0, 1)


def image_attention(name, grid, block):
    """Attention of q, k, v [B,H,N,D] over a grid of tokens."""
    if name.startswith("softmax"):
        return functional.scaled_dot_product_attention
    if name.startswith("linear"):
        return lambda *t: mhla_torch.linear(*t, layout="bhnd")
    blocks = mhla_torch.attention.blocks_along(grid, block)
    offsets = tuple(2 * min(m, 4) - 1 for m in blocks) if "by distance" in name else ()
    return mhla_torch.MHLA(grid, block, offsets=offsets)


class Convolved(nn.Module):
    """Attention plus a depthwise convolution of the values over the grid, as in the paper."""

    def __init__(self, attend, grid, channels):
        super().__init__()
        self.attend, self.grid = attend, tuple(grid)
        kind = nn.Conv2d if len(grid) == 2 else nn.Conv3d
        self.local = kind(channels, channels, 3, padding=1, groups=channels)

    def forward(self, q, k, v):
        image = v.transpose(2, 3).flatten(1, 2).unflatten(2, self.grid)
        local = self.local(image).flatten(2).unflatten(1, (v.shape[1], -1)).transpose(2, 3)
        return self.attend(q, k, v) + local


def over_grid(model, name, grid, block):
    """Gives each block of a model an attention; returns the model."""
    for module in model.modules():
        if isinstance(module, tiny_vit.Attention):
            attend = image_attention(name, grid, block)
            if "convolution" in name:
                attend = Convolved(attend, grid, module.qkv.in_features)
            module.attend = attend
    return model


# ---- training ------------------------------------------------------------------------------------

def step(model, optimizer, loss_of, batch, options):
    """One step of the optimiser; returns the loss."""
    with precision(options):
        loss = loss_of(model, *batch)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    constrain_(model)
    return loss.detach()


def constrain_(model):
    """Keeps mixing matrices in their range."""
    for module in model.modules():
        if isinstance(module, (mhla_torch.MHLA, Decay)):
            module.constrain_()


def fit(model, loss_of, batch_of, steps, options, at=()):
    """Trains a model with batches batch_of(step).

    at: steps before which the model is tested by options.test.
    -> losses, {step: result}, seconds without those of tests
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=steps + 1)
    losses, tested, begin = [], {}, now(options)
    for i in range(steps):
        if i in at:
            paused = now(options)
            tested[i] = options.test(model)
            begin += now(options) - paused
        losses.append(step(model, optimizer, loss_of, batch_of(i), options))
        schedule.step()
    return torch.stack(losses).tolist(), tested, now(options) - begin


def seconds_per_step(model, loss_of, batch_of, options):
    """Seconds of a step after others that load kernels."""
    fit(model, loss_of, batch_of, 2, options)
    return fit(model, loss_of, batch_of, 3, options)[2] / 3


def seconds_left(options):
    """Seconds of --seconds that are left."""
    return options.seconds - (time.perf_counter() - options.begin)


def compare(names, model_of, loss_of, batch_of, test, options):
    """Trains and tests a model for each name and seed. -> rows

    model_of(name): a model; batch_of(seed, step): tensors of a step, after `model`, for loss_of
    test(model, seed): a dictionary of numbers
    """
    def made(name, seed):
        torch.manual_seed(seed)
        return model_of(name).to(options.device)

    costs = {name: seconds_per_step(made(name, 0), loss_of, lambda i: batch_of(0, i), options)
             for name in names}
    steps = options.steps
    if options.seconds:
        share = 0.85 * seconds_left(options) / options.seeds  # the rest is tests
        most = share / sum(costs.values())
        steps = max(2, min(steps, int(most)))
    rows = []
    for seed in range(1, options.seeds + 1):
        for name in names:
            model = made(name, seed)
            losses, _, seconds = fit(model, loss_of, lambda i: batch_of(seed, i), steps, options)
            model.eval()
            with torch.inference_mode(), precision(options):
                numbers = test(model, seed)
            last = losses[-max(1, steps // 10):]
            rows.append({"name": name, "seed": seed, "steps": steps, "losses": losses,
                         "numbers": {"training loss": statistics.mean(last)} | numbers,
                         "steps_per_second": steps / seconds})
            shown = ", ".join(f"{key} {value:.4g}" for key, value in rows[-1]["numbers"].items())
            print(f"seed {seed}, {name}: {shown}, {steps / seconds:.2f} steps/s", flush=True)
            save(options, rows)
    return rows


# ---- results -------------------------------------------------------------------------------------

def spread(values):
    """The mean and the range."""
    if len(values) == 1:
        return f"{values[0]:.4g}"
    return f"{statistics.mean(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def table(names, rows, columns, predictions):
    """A row per attention: the prediction, then mean and range of the seeds, or "not measured"."""
    lines = [f"| attention | predicted | {' | '.join(columns)} | steps/s |",
             "|---" * (len(columns) + 3) + "|"]
    for name in names:
        of = [row for row in rows if row["name"] == name]
        cells = [spread([row["numbers"][column] for row in of]) if of else "not measured"
                 for column in columns]
        speed = spread([row["steps_per_second"] for row in of]) if of else "not measured"
        lines.append(f"| {name} | {predictions[name]} | {' | '.join(cells)} | {speed} |")
    return "\n".join(lines)


def described(options, rows):
    """The table of a trial, after what it ran on."""
    return f"{listed(options.context)}\n\n{options.table(rows)}\n"


def save(options, rows):
    """Replaces the files of the rows so far, and of their table."""
    for suffix, text in (("json", json.dumps({"context": options.context, "rows": rows}, indent=1)),
                         ("md", described(options, rows))):
        results.save(f"{options.output}.{suffix}", text)


# ---- the command line ----------------------------------------------------------------------------

def parser_of(documentation, output, **defaults):
    """The options of all trials. defaults: of the sizes, on CUDA and on the CPU."""
    parser = argparse.ArgumentParser(description=documentation.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--data", type=Path, default="trials-data", help="folder of data.sh")
    parser.add_argument("--output", default=output, help="prefix of the .json and the .md")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="of the whole trial of 2 steps or more")
    parser.add_argument("--rate", type=float, default=1e-3, help="largest learning rate")
    parser.add_argument("--predict", action="store_true", help="prints the predictions alone")
    for name, (on_cuda, on_cpu) in defaults.items():
        parser.add_argument(f"--{name}", type=int, help=f"{on_cuda}, on the CPU {on_cpu}")
    return parser


def options_of(parser, **defaults):
    """Parsed options. Without a GPU says so and ends, unless the device is the CPU."""
    options = parser.parse_args()
    options.begin = time.perf_counter()
    for name, values in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, values[options.device == "cpu"])
    if options.device == "cuda" and not options.predict and not torch.cuda.is_available():
        print("no GPU that PyTorch sees: nothing is trained")
        sys.exit()
    options.context = context_of(options.device if torch.cuda.is_available() else "cpu")
    return options
