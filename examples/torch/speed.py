"""How fast the operators are, against the same formula in PyTorch and its softmax attention.

Each shape runs forward, and forward and backward, in float32: mhla_torch, the formula (the one that
benchmarks/peers has) eager and compiled, and scaled_dot_product_attention. The formula is checked
against the operator before it is timed. The last row, N = 16, is what a call costs by itself.
"""

import argparse

import torch

import mhla_torch
from peers import torch_peers, workload
from peers.report import measure

SHAPES = {
    "deit_s, N = 256": {"B": 8, "H": 6, "D": 64, "E": 64, "grid": "1x16x16", "block": "1x4x4"},
    "dit_s_512, N = 1024": {"B": 4, "H": 6, "D": 64, "E": 64, "grid": "1x32x32", "block": "1x8x8"},
    "N = 4096": {"B": 1, "H": 6, "D": 64, "E": 64, "grid": "1x64x64", "block": "1x8x8"},
    "N = 16": {"B": 1, "H": 1, "D": 8, "E": 8, "grid": "1x4x4", "block": "1x2x2"},
}
TOLERANCE = 1e-4  # of the largest output


def operators(shape):
    """name: function of q, k [B,N,H,D], v [B,N,H,E] and mixing [M,M]."""
    def ours(q, k, v, mixing):
        return mhla_torch.bidirectional(q, k, v, mixing, grid=shape.grid, block=shape.block)

    def formula(q, k, v, mixing):
        return torch_peers.mhla(q, k, v, mixing, shape)

    torch.compiler.reset()
    return {"mhla_torch": ours, "eager": formula,
            "compiled": torch.compile(formula, dynamic=False),
            "softmax": lambda q, k, v, mixing: torch_peers.softmax(q, k, v)}


def seconds_of(run, tensors):
    """Seconds of a forward without and of one with a backward."""
    with torch.inference_mode():
        forward = measure(lambda: run(*tensors))
    leaves = [t.clone().requires_grad_() for t in tensors]
    dout = torch.ones_like(run(*leaves))

    def both():
        torch.autograd.grad(run(*leaves), leaves, dout, allow_unused=True)

    return forward, measure(both)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    print(f"PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, "
          f"{threads} thread(s), float32; times of the others over ours\n")
    print("| shape | pass | mhla_torch | eager | compiled | softmax |\n|---|---|---|---|---|---|")
    for name, sizes in SHAPES.items():
        shape = workload.Shape(sizes)
        tensors = [torch.from_numpy(x) for x in (*shape.inputs(), shape.mixing())]
        runs = operators(shape)
        exact = runs["eager"](*tensors)
        error = (runs["mhla_torch"](*tensors) - exact).abs().max() / exact.abs().max()
        if not error <= TOLERANCE:
            raise SystemExit(f"{name}: the operator differs from the formula by {error:.1e} of the "
                             f"largest output, expected at most {TOLERANCE}")
        times = {peer: seconds_of(run, tensors) for peer, run in runs.items()}
        for i, what in enumerate(("forward", "forward and backward")):
            ours = times["mhla_torch"][i]
            others = " | ".join(f"{times[peer][i] / ours:.1f}x" for peer in list(times)[1:])
            print(f"| {name} | {what} | {ours * 1e3:.3g} ms | {others} |", flush=True)


if __name__ == "__main__":
    main()
