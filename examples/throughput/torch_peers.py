"""The models of throughput.cpp in PyTorch: torch_peers.py RESULTS.json PEERS.json [--attention A]
[--mode M], each repeatable, and torch_peers.py RESULTS.json --check FOLDER

Times each block with each attention, eager and compiled, with as many threads. A model's time is
its depth times a block's time, plus the time of its ends in this library. Softmax is sampled if
this library sampled it, or if it has over 2e12 flops: the block without attention, and the
attention of 8192 queries, times their share. Ratios are PyTorch's time over this library's. --check
compares the blocks with those that throughput --save wrote. Memory is the growth of the process in
a call, without parameters.
"""

import argparse
import ctypes
import gc
import json
import sys
import time
from pathlib import Path

import torch
import torch_blocks

from peers import torch_layers
from support.results import save

KINDS, MODES = ("softmax", "linear", "mhla"), ("eager", "compiled")
SAMPLE = 8192  # queries
MOST_FLOPS = 2e12  # of softmax in one call
LARGEST_ERROR = 1e-4  # relative to the largest output, float
REPETITIONS, SECONDS = 3, 1.0


def seconds_of(call):
    """Median of calls for a second, at least 3 after a first one; one call if it is long."""
    def once():
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    first = once()
    if first > 3 * SECONDS:
        return first
    times = []
    while len(times) < REPETITIONS or sum(times) < SECONDS:
        times.append(once())
    return sorted(times)[len(times) // 2]


def resident(key):
    """Bytes of VmRSS or VmHWM."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def growth_of(call):
    """Bytes by which a call's peak memory exceeds the memory before it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before


def inputs_of(result, columns):
    channels = result["heads"] * result["values"]
    tokens = 1 if result["model"] == "340M token" else result["tokens"]
    x = torch.rand(result["batch"], tokens, channels)
    return [x, *(torch.rand(result["batch"], c) for c in columns)]


def sampled_seconds(result):
    """Seconds of softmax of a layer from some of its queries, as in throughput/attention.hpp."""
    causal = result["model"] == "340M"
    keys = result["tokens"] // (2 if causal else 1)
    heads = result["heads"]
    q = torch.rand(result["batch"], SAMPLE, heads, result["width"])
    k = torch.rand(result["batch"], keys, heads, result["width"])
    v = torch.rand(result["batch"], keys, heads, result["values"])
    return seconds_of(lambda: torch_blocks.softmax(q, k, v)) * result["tokens"] / SAMPLE


def is_sampled(result, kind):
    if kind != "softmax" or result["model"] == "340M token":
        return False
    flops = (2 * result["batch"] * result["heads"] * result["tokens"]**2
             * (result["width"] + result["values"]))
    return result["softmax_queries"] < result["tokens"] or flops > MOST_FLOPS


@torch.inference_mode()
def measure(result, kind, mode):
    """Seconds and bytes of a model."""
    torch.compiler.reset()
    block, columns = torch_blocks.block_of(result, kind)
    sampled = is_sampled(result, kind)
    if sampled:
        block.get_submodule("" if result["model"] == "Wan layer" else "attn").attend = (
            lambda q, k, v: v)
    run = torch.compile(block, dynamic=False) if mode == "compiled" else block
    inputs = inputs_of(result, columns)
    if mode == "compiled":
        run(*inputs)
    bytes_ = growth_of(lambda: run(*inputs))
    seconds = seconds_of(lambda: run(*inputs))
    if sampled:
        seconds += sampled_seconds(result)
    depth = 1 if result["model"] == "340M token" else result["depth"]
    return {"seconds": depth * seconds + result["ends_seconds"], "bytes": bytes_,
            "sampled": sampled}


def kinds_of(result):
    return KINDS[:1] if result["model"] == "340M token" else KINDS


def compare(results, kinds, modes, path):
    peers = []
    print(f"PyTorch {torch.__version__}, float\n{'model':10} {'input':10} {'T':>2} {'attention':18}"
          f" {'items/s':>9} {'over our softmax':>17} {'over our mhla':>14} {'MiB':>6}")
    for result in results:
        torch.set_num_threads(result["threads"])
        for kind in kinds_of(result):
            for mode in modes:
                if kind not in kinds:
                    continue
                row = {"model": result["model"], "input": result["input"],
                       "threads": result["threads"], "tokens": result["tokens"],
                       "attention": kind, "mode": mode, **measure(result, kind, mode)}
                row["items_per_second"] = result["items"] / row["seconds"]
                ratios = [row["seconds"] / result["seconds"][a] for a in ("softmax", "mhla")]
                row["over_softmax"], row["over_mhla"] = ratios
                print(f"{row['model']:10} {row['input']:10} {row['threads']:2} {kind:8}{mode:9}"
                      f"{'*' if row['sampled'] else ' '} {row['items_per_second']:9.4g}"
                      f" {ratios[0]:16.2f}x {ratios[1]:13.2f}x {row['bytes'] / 2**20:6.0f}",
                      flush=True)
                peers.append(row)
                save(path, json.dumps({"torch": torch.__version__, "peers": peers}, indent=1))


@torch.inference_mode()
def worst_of(result, path):
    """Largest error of a block's output, relative to the largest output."""
    block, _ = torch_blocks.block_of(result, "mhla")
    tensors, _ = torch_layers.read_case(path)
    expected = block.state_dict()
    state = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("block.").removeprefix("blocks.0.")  # of a stage
        for old in (".norm.", ".conv."):  # of norms and of SANA's mix
            if name not in expected:
                name = name.replace(old, ".", 1)
        if name not in ("x", "c", "y"):
            state[name] = tensor.view(expected[name].shape)
    block.load_state_dict(state)
    x, y = (tensors[name].unflatten(0, (result["batch"], -1)) for name in "xy")
    given = block(x, tensors["c"]) if "c" in tensors else block(x)
    return float((given - y).abs().max() / y.abs().max())


def check(results, folder):
    right = True
    for result in results:
        if result["model"] == "340M token":
            continue
        path = folder / (result["model"].replace("/", "_") + ".safetensors")
        worst = worst_of(result, path)
        right &= worst <= LARGEST_ERROR
        print(f"{result['model']:10} {result['input']:10} differs from PyTorch's by {worst:.1e}"
              f"{'' if worst <= LARGEST_ERROR else ': FAILED'}")
    return 0 if right else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("peers", type=Path, nargs="?")
    parser.add_argument("--attention", choices=KINDS, action="append")
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--check", type=Path)
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text(encoding="utf-8"))["results"]
    if arguments.check:
        return check(results, arguments.check)
    compare(results, arguments.attention or KINDS, arguments.mode or MODES, arguments.peers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
