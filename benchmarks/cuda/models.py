"""Whole models on CUDA: models.py RESULTS.json [--filter=REGEX] [--seconds=N] [--predict]

Times a forward, and a forward with its backward, of the models of peers/torch_models.py in bfloat16
with random weights, eager and compiled. The arms are MHLA by mhla_torch, MHLA in plain PyTorch,
softmax attention by the flash and the cuDNN kernels, linear attention as two products, and causal
linear attention of flash-linear-attention (FLA) if it is installed. Models that decode are captured
in a graph instead of compiled. Sampled rows of each attention are compared with its formula in
float32 before it is timed.

A step has 65,536 tokens. Two cases are one sequence: Wan2.1 of 31,500 tokens and the prefill of
131,072. Times are medians between events on a cold L2, and the arms of a case take turns. A
backward is timed through up to 4 blocks, times the depth over 4. Writes RESULTS.json and a table,
RESULTS.md, where a prediction for an H100 stands beside every row.

--seconds bounds the whole run. Cases for which no time is left are "not measured", and --filter runs
them in another call. --predict measures nothing. Without a GPU nothing is timed, except with
--device=cpu, which takes models of a few tokens.
"""

import argparse
import contextlib
import copy
import gc
import json
import re
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch

from peers import torch_cuda_gradients, torch_cuda_peers, torch_models
from peers.context import context_of, listed
from peers.torch_models import ARMS, CASES, CUDNN, FLA, FLASH, LINEAR, OURS, PLAIN
from support.results import save

MODES, PASSES = ("compiled", "eager"), ("forward", "both")
LARGEST_ERROR = 0.05  # of an attention layer, relative to a row's norm
MOST_BLOCKS = 4  # through which a backward is timed
SAMPLES, LEAST_RUNS, MOST_RUNS, WARM_UPS = 16, 3, 9, 2
TURNS_SECONDS = 4.0  # for the turns of a case, mode and pass


# ---- predictions ---------------------------------------------------------------------------------

PRODUCTS, COPY = 500e12, 2.85e12  # flops/s of products in a block, and bytes/s, on an H100
MOVES = {"compiled": 25, "eager": 75}  # times that a block reads or writes its tokens
CONVOLVED = 20  # more such times, of the convolution of a SANA block
SOFTMAX = {  # flops/s of attention by the width of a head: device times of README.md
    FLASH: {32: 145e12, 64: 290e12, 72: 215e12, 128: 330e12},
    CUDNN: {32: 225e12, 64: 450e12, 72: 350e12, 128: 620e12}}
OF_A_COPY = {"wan": 0.55, "dit": 0.55, "sana": 0.55, "prefill": 0.25}  # MHLA's share
SHORT, SHORT_SOFTMAX, SHORT_SHARE = 256, 0.7, 0.77  # so many tokens: softmax is slower, MHLA faster
BACKWARD = {"rest": 3, FLASH: 3.5, CUDNN: 3.2, OURS: 9}  # both passes over the forward
LAUNCH = 2.5e-6  # seconds per kernel of a graph
WEIGHTS = {"dit": 12, "sana": 11.5, "wan": 2 * 35 / 6 + 7, "prefill": 12.25}  # over C^2


def predicted_seconds(case, arm, mode, kind):
    """Seconds of a block on an H100, from flops, bytes and measured rates."""
    n, c = case.batch * case.tokens, case.channels
    if case.kind == "decode":
        kernels = 14 * LAUNCH * (1 if mode == "compiled" else 3)
        state = 3 * 4 * 4 * 128 * 256 * case.batch if arm == OURS else 2 * 2 * c * n
        return kernels + (2 * 12.25 * c**2 + state) / (0.8 * COPY)
    moves = MOVES[mode] + (CONVOLVED if case.kind == "sana" else 0)
    rest = 2 * n * c**2 * WEIGHTS[case.kind] / PRODUCTS + moves * 2 * n * c / COPY
    if arm == OURS:
        share = SHORT_SHARE if case.tokens <= SHORT else OF_A_COPY[case.kind]
        attention = 4 * 2 * n * c / (share * 3.04e12)
    else:
        # The language model reads half the keys, and has twice the heads for its wide values.
        rate = SOFTMAX[arm][case.width] * (SHORT_SOFTMAX if case.tokens <= SHORT else 1)
        attention = 4 * n * case.tokens * c / rate
    if kind == "both":
        return BACKWARD["rest"] * rest + BACKWARD[arm] * attention
    return rest + attention


def predicted(case, arm, mode, kind):
    """The time of a softmax arm over this library's on an H100."""
    return (predicted_seconds(case, arm, mode, kind) / predicted_seconds(case, OURS, mode, kind))


# ---- measurements --------------------------------------------------------------------------------

class Device:
    """Seconds and bytes of calls on CUDA; seconds alone on a CPU."""

    def __init__(self, name):
        self.name, self.cold = name, None
        if name == "cuda":
            properties = torch.cuda.get_device_properties(0)
            self.cold = torch_cuda_peers.ColdCache(properties.L2_cache_size)

    def seconds(self, call):
        if self.cold:
            return torch_cuda_peers.seconds_of(call, self.cold)
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    def held(self):
        """Bytes of all tensors, such as those of earlier arms."""
        gc.collect()
        return torch.cuda.memory_allocated() if self.cold else 0

    def peak(self, call, before):
        """The most bytes of all tensors in a call, without those held before, or None."""
        if not self.cold:
            call()
            return None
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def median_seconds(self, calls):
        """Median seconds of each call; the calls take turns."""
        times, begin = [[] for _ in calls], time.monotonic()
        while len(times[0]) < LEAST_RUNS + WARM_UPS or (
                len(times[0]) < MOST_RUNS + WARM_UPS and time.monotonic() - begin < TURNS_SECONDS):
            for call, of_call in zip(calls, times):
                of_call.append(self.seconds(call))
        return [statistics.median(of_call[WARM_UPS:]) for of_call in times]


def error_of(case, arm, block):
    """The largest error of sampled rows of a block's attention, over the rows' norms."""
    attention = block.attn
    exact = torch_models.block_of(case, arm, exact=True).to(next(block.parameters()).device).attn
    exact.load_state_dict(attention.state_dict(), strict=True)
    torch.manual_seed(3)
    like = next(block.parameters())
    x = torch_models.tokens_of(case, case.batch if case.kind == "decode" else 1, like)
    if case.kind == "decode":
        for layer in (attention, exact):
            layer.prepare(x.to(next(layer.parameters()).dtype))
        x = x[:, -1:]
    out, expected = attention(x), exact(x.float())
    rows = torch.randint(out.shape[1], (SAMPLES,), device=out.device)
    out, expected = out[-1, rows].float(), expected[-1, rows]
    worst = ((out - expected).norm(dim=1) / expected.norm(dim=1)).max()
    return float(worst) if worst.isfinite() else float("inf")


def model_of(case, arm, device, blocks=1):
    """A model in bfloat16 with random weights. All blocks have equal ones in their own memory."""
    torch.manual_seed(11)
    block = torch_models.block_of(case, arm).to(device, torch.bfloat16)
    return torch_models.Model([block, *(copy.deepcopy(block) for _ in range(blocks - 1))],
                              case.depth)


def captured(model, inputs):
    """A call that replays a graph of model(*inputs)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            model(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(*inputs)
    return graph.replay


def checked_calls(case, arm, mode, device):
    """The error of an arm, and its calls if it is right."""
    model = model_of(case, arm, device, case.depth if case.kind == "decode" else 1)
    with torch.inference_mode():
        error = error_of(case, arm, model.blocks[0])
    return error, calls_of(case, model, mode) if error <= LARGEST_ERROR else {}


def calls_of(case, model, mode):
    """Calls of a model: {"forward": call, "both": call}."""
    inputs = torch_models.inputs_of(case, next(model.parameters()))
    if case.kind == "decode":
        with torch.inference_mode():
            prompt = torch_models.tokens_of(case, case.batch, inputs[0])
            for block in model.blocks:
                block.attn.prepare(prompt)
            replay = captured(model, inputs) if mode == "compiled" else lambda: model(*inputs)
        return {"forward": torch.inference_mode()(replay)}
    if mode == "compiled":
        model.blocks[0] = torch.compile(model.blocks[0], dynamic=False)
    part = torch_models.Model(model.blocks, min(case.depth, MOST_BLOCKS))
    x, *conditions = inputs
    x.requires_grad_()
    leaves, gradient = [x, *part.parameters()], torch.randn_like(x)
    used = lambda out: torch.autograd.grad(out, leaves, gradient, allow_unused=True)
    return {"forward": torch.no_grad()(lambda: model(x.detach(), *conditions)),
            "both": lambda: used(part(x, *conditions))}


def compile_case(case, device):
    """Compiles a block with each attention, for the caches of torch.compile."""
    for arm in ARMS:
        with contextlib.suppress(Exception):  # the run says why an arm is absent
            model = model_of(case._replace(depth=1), arm, device)
            for call in calls_of(case._replace(depth=1), model, "compiled").values():
                call()


def measure(case, mode, device, rows):
    """Appends a row for each arm of a case; returns whether all were right."""
    ready, right = [], True
    torch.compiler.reset()
    for arm in ARMS:
        row = {"name": case.name, "arm": arm, "mode": mode}
        rows.append(row)
        before = device.held()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a kernel that refuses says why in warnings
                row["error"], calls = checked_calls(case, arm, mode, device.name)
                row["peak"] = {kind: device.peak(call, before) for kind, call in calls.items()}
        except Exception as error:  # such as no kernel for these widths, or no memory
            row["absent"] = torch_cuda_gradients.first_line(error)
            print(f"{case.name:16} {mode:9} {arm:15} absent: {row['absent']}", flush=True)
            continue
        if calls:
            ready.append((row, calls))
        else:
            row["wrong"], right = True, False
            print(f"{case.name:16} {mode:9} {arm:15} ERROR: rows differ from the formula by "
                  f"{row['error']:.4f} of their norms", flush=True)
    for kind in PASSES:
        there = [(row, calls[kind]) for row, calls in ready if kind in calls]
        times = device.median_seconds([call for _, call in there]) if there else []
        blocks = min(case.depth, MOST_BLOCKS) if kind == "both" else case.depth
        for (row, _), seconds in zip(there, times):
            row[kind] = seconds * case.depth / blocks
    for row, _ in ready:
        print(f"{case.name:16} {mode:9} {row['arm']:15} {1e3 * row['forward']:10.2f} "
              f"{1e3 * row['both'] if 'both' in row else float('nan'):10.2f} {row['error']:8.4f}",
              flush=True)
    return right


# ---- tables --------------------------------------------------------------------------------------

def cell(row, ours, kind):
    """The time of an arm over this library's."""
    if kind in row and kind in ours:
        return f"{row[kind] / ours[kind]:.2f}"
    return "wrong" if "wrong" in row else "none" if "absent" in row else "not measured"


def gibibytes(row, kind):
    peak = row.get("peak", {}).get(kind)
    return f"{peak / 2**30:.2f}" if peak else ""


def table(cases, rows):
    """A row for each case, mode and pass: milliseconds, times over them, predictions, memory."""
    found = {(row["name"], row["arm"], row["mode"]): row for row in rows}
    lines = ["| model | mode | pass | MHLA, ms | flash, predicted | flash | cuDNN, predicted | "
             "cuDNN | PyTorch | linear | FLA | GiB | GiB, flash | faster than MHLA |",
             "|---" * 14 + "|"]
    for case in cases:
        for mode in MODES:
            for kind in PASSES[:1] if case.kind == "decode" else PASSES:
                of = {arm: found.get((case.name, arm, mode), {}) for arm in ARMS}
                ours = of[OURS]
                cells = {arm: cell(of[arm], ours, kind) for arm in ARMS}
                faster = [arm for arm in ARMS if re.match(r"0\.\d", cells[arm])]
                guess = {arm: f"{predicted(case, arm, mode, kind):.3g}" if case in CASES else ""
                         for arm in (FLASH, CUDNN)}
                ms = f"{1e3 * ours[kind]:.2f}" if kind in ours else cell(ours, ours, kind)
                lines.append("| " + " | ".join((
                    case.title, "graph" if (case.kind, mode) == ("decode", "compiled") else mode,
                    "forward" if kind == "forward" else "and backward", ms, guess[FLASH],
                    cells[FLASH], guess[CUDNN], cells[CUDNN], cells[PLAIN], cells[LINEAR],
                    cells[FLA], gibibytes(ours, kind), gibibytes(of[FLASH], kind),
                    "; ".join(faster))) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--filter", default="", help="a regular expression of names")
    parser.add_argument("--seconds", type=float, default=470)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--predict", action="store_true", help="prints the table of predictions")
    parser.add_argument("--compile", help=argparse.SUPPRESS)  # of compile_ahead
    options = parser.parse_args()
    if not (options.results or options.predict or options.compile):
        parser.error("RESULTS.json is missing")
    torch._dynamo.config.recompile_limit = 4 * len(ARMS)  # blocks of all arms share their code
    begin = time.monotonic()
    left = lambda: options.seconds - (time.monotonic() - begin)
    cases = torch_models.SMALLEST if options.device == "cpu" else CASES
    cases = [case for case in cases if re.search(options.filter, case.name)]
    if options.predict:
        print(table(cases, []))
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU that PyTorch sees: no model is timed")
        return 0
    if options.compile:
        compile_case(next(case for case in cases if case.name == options.compile), options.device)
        return 0
    context, rows, right = context_of(options.device), [], True
    print(", ".join(f"{name} {value}" for name, value in context.items()))
    print(f"{'case':16} {'mode':9} {'arm':15} {'forward ms':>10} {'both ms':>10} {'error':>8}")
    device = Device(options.device)
    if options.device == "cuda":
        torch_cuda_gradients.compile_ahead(
            [case for case in cases if case.kind != "decode" and case.name != "wan_block"],
            left() / 3, __file__)
    for mode in options.mode or MODES:
        for case in cases:
            if left() <= 0:
                print(f"{case.name:16} {mode:9} no time is left for it", flush=True)
                continue
            right &= measure(case, mode, device, rows)
            if options.device == "cuda":
                torch.cuda.empty_cache()
            text = f"{listed(context)}\n\n{table(cases, rows)}\n"
            save(options.results, json.dumps({"context": context, "rows": rows}, indent=1))
            save(options.results.with_suffix(".md"), text)
    print(table(cases, rows))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
