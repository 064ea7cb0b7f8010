"""How fast the operators are, against the same formula in PyTorch and its softmax attention.

Each shape runs forward, and forward and backward, in float32: mhla_torch, the formula eager and
compiled, and scaled_dot_product_attention. The formula is checked against the operator before it is
timed. The last row, N = 16, shows the cost of a call itself.
"""

import argparse
import functools

import torch

import mhla_torch
from peers import workload
from peers.report import measure


def shape(batch, heads, width, values, grid, block, form="bidirectional"):
    """A shape with its form, "bidirectional" or "causal"."""
    sizes = {"B": batch, "H": heads, "D": width, "E": values, "grid": grid, "block": block}
    return workload.Shape(sizes), form


# The shapes of benchmarks/support/shapes.hpp.
SHAPES = {
    "deit_s": shape(8, 6, 64, 64, "1x1x256", "1x1x16"),
    "dit_s_512": shape(4, 6, 64, 64, "1x1x1024", "1x1x64"),
    "dit_xl_512": shape(1, 16, 72, 72, "1x1x1024", "1x1x64"),
    "n4096_m64": shape(1, 6, 64, 64, "1x1x4096", "1x1x64"),
    "vlt_t_1": shape(1, 1, 64, 64, "1x1x3136", "1x1x64"),
    "wan_1300m": shape(1, 12, 128, 128, "21x30x50", "7x6x5"),
    "nlp_340m": shape(1, 4, 128, 256, "1x1x2048", "1x1x64", "causal"),
    "long_causal": shape(1, 4, 64, 64, "1x1x131072", "1x1x256", "causal"),
    "N = 16": shape(1, 1, 8, 8, "1x4x4", "1x2x2"),
}
TOLERANCE = 1e-4  # relative to the largest output
MOST_FLOPS = 4e11  # of softmax attention: a call takes less than about 20 s


def softmax(q, k, v, causal):
    heads_first = (t.transpose(1, 2) for t in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=causal)
    return out.transpose(1, 2)


def operators(of, form):
    """A dictionary of name: function of q, k [B,N,H,D], v [B,N,H,E] and mixing [M,M]."""
    def call(q, k, v, mixing, **options):
        if form == "causal":
            return mhla_torch.causal(q, k, v, mixing, block=of.block_length, **options)
        return mhla_torch.bidirectional(q, k, v, mixing, grid=of.grid, block=of.block, **options)

    formula = functools.partial(call, backend="formula")
    torch.compiler.reset()
    runs = {"mhla_torch": functools.partial(call, backend="kernels"),
            "summaries": functools.partial(call, backend="kernels", save="summaries"),
            "eager": formula, "compiled": torch.compile(formula, dynamic=False)}
    flops = 2 * of.batch * of.heads * of.tokens**2 * (of.width + of.values)
    if flops <= MOST_FLOPS:
        runs["softmax"] = lambda q, k, v, mixing: softmax(q, k, v, form == "causal")
    return runs


def seconds_of(runs, tensors):
    """Seconds of each run: of a forward alone, and of a forward and its backward."""
    with torch.inference_mode():
        forward = measure(*(functools.partial(run, *tensors) for run in runs.values()))
    leaves = [t.clone().requires_grad_() for t in tensors]
    dout = torch.ones_like(runs["eager"](*tensors))

    def both(run):
        torch.autograd.grad(run(*leaves), leaves, dout, allow_unused=True)

    backward = measure(*(functools.partial(both, run) for run in runs.values()))
    return dict(zip(runs, forward)), dict(zip(runs, backward))


def saved_bytes(run, tensors):
    """Bytes that a forward saves for its backward."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda t: t):
        run(*(t.clone().requires_grad_() for t in tensors))
    return sum(t.nbytes for t in saved)


def cells_of(name, threads):
    """Cells of a shape on `threads` threads: of its forward, and of its forward and backward."""
    torch.set_num_threads(threads)
    of, form = SHAPES[name]
    tensors = [torch.from_numpy(x) for x in (*of.inputs(), of.mixing())]
    runs = operators(of, form)
    exact = runs["eager"](*tensors)
    error = (runs["mhla_torch"](*tensors) - exact).abs().max() / exact.abs().max()
    if not error <= TOLERANCE:
        raise SystemExit(f"{name}: the operator differs from the formula by {error:.1e} of the "
                         f"largest output, expected at most {TOLERANCE}")
    more = saved_bytes(runs["summaries"], tensors) / saved_bytes(runs["mhla_torch"], tensors)
    for times, saved in zip(seconds_of(runs, tensors), ("", f" ({more:.1f}x the bytes)")):
        ours = times["mhla_torch"]
        others = [f"{times[peer] / ours:.1f}x" if peer in times else ""
                  for peer in ("eager", "compiled", "softmax")]
        kept = f"{times['summaries'] / ours:.2f}x{saved}" if saved else ""
        yield " | ".join([f"{ours * 1e3:.3g} ms", *others, kept])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    options = parser.parse_args()
    print(f"PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, float32; times "
          "of the others over ours\n")
    head = ["shape", "pass"]
    for threads in options.threads:
        head += [f"{threads} thread(s)", "eager", "compiled", "softmax", "summaries saved"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for name in options.shapes:
        cells = zip(*(cells_of(name, threads) for threads in options.threads))
        for what, row in zip(("forward", "and backward"), cells):
            print(f"| {name} | {what} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
