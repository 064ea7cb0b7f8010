"""Gradients on CUDA: torch_cuda_gradients.py RESULTS.json [--quick] [--filter=REGEX] [--seconds=N]

Times a forward, and a forward with its backward, of the cases of benchmarks/cuda in bfloat16. The
arms are mhla_torch by its kernels, the same operator as a formula in PyTorch (eager and compiled),
and softmax attention by the flash and the cuDNN kernels. For causal cases the linear attention of
flash-linear-attention (FLA) is an arm if it is installed: without mixing and denominators, so less
work. The gradients of mhla_torch are compared with the formula in float64 before they are timed.

Times are medians of device time between events on a cold L2; the arms of a case take turns. Writes
RESULTS.json and a table, RESULTS.md. --seconds bounds the whole run: remaining cases have no time
of the compiled formula, or no time at all. Without a GPU it says so and ends.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch

from peers import torch_cuda_peers as peers
from peers.workload import Shape
from support.results import save

# (name, operation, batch, heads, D, E, grid, block) of whole sequences in
# benchmarks/cuda/cases.hpp.
CASES = (
    ("wan_1300m", "bidirectional", 1, 12, 128, 128, "21x30x50", "7x6x5"),
    ("dit_s_256_b256", "bidirectional", 256, 6, 64, 64, "256", "16"),
    ("dit_s_512_b64", "bidirectional", 64, 6, 64, 64, "1024", "64"),
    ("dit_xl_512_b32", "bidirectional", 32, 16, 72, 72, "1024", "64"),
    ("n4096_m64_b8", "bidirectional", 8, 12, 64, 64, "4096", "64"),
    ("t2048_h16_d64_b16", "causal", 16, 16, 64, 64, "2048", "64"),
    ("t2048_h4_e256_b16", "causal", 16, 4, 128, 256, "2048", "64"),
    ("t8192_h16_w64", "causal", 1, 16, 128, 128, "8192", "64"),
    ("t8192_h16_w256", "causal", 1, 16, 128, 128, "8192", "256"),
    ("t32768_h16_w64", "causal", 1, 16, 128, 128, "32768", "64"),
    ("t8192_h96_w64", "causal", 1, 96, 128, 128, "8192", "64"),
    ("t8192_h96_w256", "causal", 1, 96, 128, 128, "8192", "256"),
    ("dit_s_256_b64", "bidirectional", 64, 6, 64, 64, "256", "16"),
    ("dit_s_256_b1", "bidirectional", 1, 6, 64, 64, "256", "16"),
    ("t131072_h16_d64", "causal", 1, 16, 64, 64, "131072", "64"),
)
OURS, EAGER, COMPILED = "mhla_torch", "formula", "compiled"
FLASH, CUDNN, FLA = "softmax, flash", "softmax, cuDNN", "FLA, unmixed"
PASSES = ("forward", "both")
LARGEST_ERROR = 0.05  # relative to the norm of a gradient
HEAD_START = 4_000_000  # clock ticks: a backward in PyTorch is a hundred launches
GRADIENTS = ("dq", "dk", "dv", "dmixing")


class Case:
    """A shape, its tensors and its calls."""

    def __init__(self, row, device="cuda"):
        self.name, operation, batch, heads, width, values, grid, block = row
        three = lambda text: "x".join((["1"] * 2 + text.split("x"))[-3:])
        self.causal = operation == "causal"
        self.shape = Shape({"B": batch, "H": heads, "D": width, "E": values,
                            "grid": three(grid), "block": three(block)})
        torch.manual_seed(11)
        tensors, mixing = peers.random_tensors(self.shape, device)
        self.leaves = [t.requires_grad_() for t in (*tensors, mixing.float())]
        self.dout = torch.randn_like(tensors[2])

    def operator(self, module, **options):
        """The function f(q, k, v, mixing) by the functions of `module`."""
        shape, options = self.shape, {"feature_map": "relu", "normalizer": "key_sum"} | options
        if self.causal:
            return lambda *leaves: module.causal(*leaves, block=shape.block_length, **options)
        return lambda *leaves: module.bidirectional(*leaves, grid=shape.grid, block=shape.block,
                                                    **options)

    def calls(self, compiled):
        """arm: (function of leaves, leaves)"""
        import mhla_torch
        from mhla_torch import formula
        backends = torch.nn.attention.SDPBackend
        tensors = self.leaves[:3]
        plain = self.operator(formula, dtype=torch.bfloat16)
        found = {OURS: (self.operator(mhla_torch, backend="kernels"), self.leaves)}
        if compiled:
            torch.compiler.reset()
            return found | {COMPILED: (torch.compile(plain, dynamic=False), self.leaves)}
        found |= {EAGER: (plain, self.leaves)}
        for name, backend in ((FLASH, backends.FLASH_ATTENTION), (CUDNN, backends.CUDNN_ATTENTION)):
            found[name] = (lambda *t, b=backend: peers.softmax(*t, self.causal, b)), tensors
        if self.causal and importlib.util.find_spec("fla"):
            from fla.ops.linear_attn import chunk_linear_attn
            features = [peers.phi(t.detach()).requires_grad_() for t in tensors[:2]]
            found[FLA] = (lambda *t: chunk_linear_attn(*t, scale=1.0, normalize=False)[0],
                          [*features, tensors[2]])
        return found

    def forward(self, call):
        function, leaves = call
        return lambda: function(*leaves)

    def both(self, call):
        function, leaves = call
        return lambda: torch.autograd.grad(function(*leaves), leaves, self.dout)

    def errors(self, call):
        """The errors of the gradients of the last (batch item, head), over their norms.

        All heads share the mixing matrix, so dout is 0 for all other heads.
        """
        from mhla_torch import formula
        q, k, v, mixing = self.leaves
        one = lambda t: t[-1:, :, -1:].detach().double().requires_grad_()
        exact = [one(q), one(k), one(v), mixing.detach().double().requires_grad_()]
        dout = self.dout[-1:, :, -1:].double()
        wanted = torch.autograd.grad(self.operator(formula)(*exact), exact, dout)
        alone = torch.zeros_like(self.dout)
        alone[-1:, :, -1:] = self.dout[-1:, :, -1:]
        out = call[0](*self.leaves)
        found = torch.autograd.grad(out, self.leaves[:3], self.dout, retain_graph=True)
        found = [t[-1:, :, -1:] for t in found]
        found += torch.autograd.grad(out, self.leaves[3:], alone)
        return {name: float((x.double() - y).norm() / y.norm())
                for name, x, y in zip(GRADIENTS, found, wanted)}


class Cold(peers.ColdCache):
    def prepare(self):
        super().prepare()
        torch.cuda._sleep(HEAD_START)


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def measure(case, cold, runs, rows, compiled=False):
    """Appends a row for each arm of a case; returns whether mhla_torch's gradients were right.

    compiled: times the compiled formula, and mhla_torch again beside it
    """
    ready, right = {}, True
    for arm, call in case.calls(compiled).items():
        row = {"name": case.name, "arm": arm, "beside": COMPILED if compiled else EAGER}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a kernel that refuses says why in warnings
                case.both(call)()
                if arm == OURS and not compiled:
                    row["errors"] = case.errors(call)
        except Exception as error:  # such as no kernel for these widths, or no compiler
            row["absent"] = first_line(error)
            print(f"{case.name:18} {arm:15} absent: {row['absent']}", flush=True)
            rows.append(row)
            continue
        worst = max(row.get("errors", {"": 0}).values())
        if worst <= LARGEST_ERROR:
            ready[arm] = call, row
        else:
            print(f"{case.name:18} {arm:15} ERROR: gradients are wrong: {row['errors']}")
            rows.append(row | {"wrong": True})
            right = False
    for kind in PASSES:
        calls = [getattr(case, kind)(call) for call, _ in ready.values()]
        for (_, row), seconds in zip(ready.values(), peers.median_seconds(calls, cold, runs)):
            row[kind] = seconds
    for _, row in ready.values():
        print(f"{case.name:18} {row['arm']:15} {1e6 * row['forward']:10.1f} {1e6 * row['both']:10.1f}"
              f"  {' '.join(f'{n} {e:.4f}' for n, e in row.get('errors', {}).items())}", flush=True)
        rows.append(row)
    return right


def compile_ahead(cases, seconds, program=__file__):
    """Compiles all cases in parallel processes of a program, for the caches of torch.compile."""
    running = [subprocess.Popen([sys.executable, program, "", f"--compile={row[0]}"],
                                env=os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"},
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
               for row in cases]
    end = time.monotonic() + seconds
    for process in running:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def table(rows):
    """Microseconds of mhla_torch, and other times over them: forward, and with the backward."""
    def found(name, arm, beside):
        return next((r for r in rows if (r["name"], r["arm"], r["beside"]) == (name, arm, beside)), {})

    def cell(row, ours):
        if "both" not in row:
            return ""
        if "both" not in ours:
            return " / ".join(f"{1e6 * row[kind]:.0f} us" for kind in PASSES)
        return " / ".join(f"{row[kind] / ours[kind]:.2f}" for kind in PASSES)

    arms = (EAGER, COMPILED, FLASH, CUDNN, FLA)
    lines = [f"| case | forward, us | and backward, us | worst error | {' | '.join(arms)} |",
             "|---" * (4 + len(arms)) + "|"]
    for name in dict.fromkeys(row["name"] for row in rows):
        ours = found(name, OURS, EAGER)
        times = [f"{1e6 * ours[kind]:.1f}" if kind in ours else "" for kind in PASSES]
        error = f"{max(ours['errors'].values()):.4f}" if "errors" in ours else ""
        cells = [cell(found(name, arm, COMPILED if arm == COMPILED else EAGER),
                      found(name, OURS, COMPILED) if arm == COMPILED else ours) for arm in arms]
        lines.append(f"| {name} | {' | '.join((*times, error, *cells))} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("results")
    parser.add_argument("--quick", action="store_true", help="9 runs of each instead of 31")
    parser.add_argument("--filter", default="", help="a regular expression of names")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--compile", help=argparse.SUPPRESS)  # of compile_ahead
    options = parser.parse_args()
    begin = time.monotonic()
    if not torch.cuda.is_available():
        print("no GPU that PyTorch sees: gradients are not timed")
        return 0
    if options.compile:
        case = Case(next(row for row in CASES if row[0] == options.compile))
        case.both(case.calls(True)[COMPILED])()
        return 0
    left = lambda: options.seconds - (time.monotonic() - begin)
    cases = [row for row in CASES if re.search(options.filter, row[0])]
    device = torch.cuda.get_device_properties(0)
    context = {"gpu": device.name, "torch": torch.__version__, "cuda": torch.version.cuda,
               "cudnn": torch.backends.cudnn.version()}
    print(f"PyTorch {torch.__version__}, cuDNN {context['cudnn']}, {device.name}, bfloat16")
    print(f"{'case':18} {'arm':15} {'forward us':>10} {'both us':>10}", flush=True)
    cold, runs = Cold(device.L2_cache_size), peers.QUICK_RUNS if options.quick else peers.RUNS
    rows, right = [], True
    for compiled in (False, True):
        if compiled:
            compile_ahead(cases, left() / 2)
        for row in cases:
            if left() <= (10 if compiled else 0):
                print(f"{row[0]:18} no time is left for {'compiled' if compiled else 'it'}")
                continue
            right &= measure(Case(row), cold, runs, rows, compiled)
            torch.cuda.empty_cache()
            save(options.results, json.dumps({"context": context, "rows": rows}, indent=1))
    save(Path(options.results).with_suffix(".md"), table(rows) + "\n")
    print(table(rows))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
