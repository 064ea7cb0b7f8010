"""The bidirectional shapes and the attention layers in PyTorch: torch_peers.py RESULTS.json PEERS.json

The peers are the same operator on the same data with the same number of threads, eager and
compiled, PyTorch's softmax attention, and the gradient of the eager operator (by autograd, of q, k,
v and the mixing matrix, from a graph made before). Outputs are checked before a peer is timed.
Whole layers, eager and compiled, are checked on stored cases of the authors' code; their gradients
are those of x and all parameters. Ratios are to the time of this library in RESULTS.json: above 1
this library is faster.
"""

import functools
import json
import sys
from pathlib import Path

import torch

from peers import reference, torch_layers
from peers.formula import mhla
from peers.report import report
from peers.workload import Shape
from support import results

CAUSAL_SHAPES = ("nlp_340m", "long_causal")  # cases of their gradients have the form's name, too
MOST_FLOPS = 2e11  # of softmax attention: a call takes a few seconds
LAYER_CASES = Path(__file__).parents[2] / "tests" / "data" / "layers"
LARGEST_LAYER_ERROR = 1e-12  # relative to the largest output, in float64


def softmax(q, k, v):
    """Softmax attention softmax(q k^T / sqrt(D)) v of [B,N,H,.] tensors."""
    heads_first = (t.transpose(1, 2) for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)


def row_of(shape, mixing):
    """The definition of a row of MHLA: a function of q, k, v and the token."""
    block_of = shape.block_of()
    coefficients = mixing[:, block_of].astype("float64")  # [M,N]
    return lambda q, k, v, t: reference.mhla_row(shape, coefficients[block_of[t]], q[t], k, v)


def operators(shape, tensors, mixing):
    """A dictionary of name: (call, definition of a row), in the order of the table."""
    mhla_row = row_of(shape, mixing.numpy())

    def softmax_row(q, k, v, t):
        return reference.softmax_row(shape, q[t], k, v)

    found = {"MHLA eager": (lambda: mhla(*tensors, mixing, shape), mhla_row)}
    if hasattr(torch, "compile"):  # from PyTorch 2 on
        torch.compiler.reset()
        compiled = torch.compile(mhla, dynamic=False)
        found["MHLA compiled"] = (lambda: compiled(*tensors, mixing, shape), mhla_row)
    flops = 2 * shape.batch * shape.heads * shape.tokens**2 * (shape.width + shape.values)
    if flops <= MOST_FLOPS:
        found["softmax (SDPA)"] = (lambda: softmax(*tensors), softmax_row)
    return found


def comparable(case):
    """True for cases of the bidirectional operator or of a layer on a model's shape."""
    other = case.shape.startswith("growth") or case.shape in CAUSAL_SHAPES
    other |= case.shape.endswith("_token")
    return case.scalar == "float" and not other


@torch.inference_mode()
def compare(case, rows):
    """Times all peers of a case and appends a row per peer; returns whether all were right."""
    shape = Shape(case.sizes)
    inputs = shape.inputs()
    tensors = [torch.from_numpy(x) for x in inputs]
    torch.set_num_threads(case.threads)
    right = True
    for peer, (call, row) in operators(shape, tensors, torch.from_numpy(shape.mixing())).items():
        try:
            out = call().numpy()
        except RuntimeError as error:  # such as a compiler that torch.compile does not find
            name = f"{case.shape}/threads:{case.threads}"
            print(f"{name:28} {peer:23} does not run: {str(error).splitlines()[0]}")
            continue
        worst = reference.worst_of_samples(shape, inputs, out, row)
        right &= report(case, peer, worst, call, rows)
    return right


def compare_gradient(case, rows):
    """Times the gradient of the eager operator; returns whether its outputs were right."""
    shape = Shape(case.sizes)
    inputs, dout, mixing = shape.inputs(), shape.dout(), shape.mixing()
    torch.set_num_threads(case.threads)
    leaves = [torch.from_numpy(x).requires_grad_() for x in (*inputs, mixing)]
    out = mhla(*leaves, shape)
    call = lambda: torch.autograd.grad(out, leaves, torch.from_numpy(dout), retain_graph=True)
    worst = reference.worst_of_samples(shape, inputs, out.detach().numpy(), row_of(shape, mixing))
    return report(case, "eager backward", worst, call, rows)


def layer_of(case, shape):
    """The layer that a case ran, as in layer_run.hpp."""
    channels = shape.heads * shape.values
    if case.shape.startswith("vision"):
        deit = case.shape == "vision_deit_s"
        return torch_layers.Vision(channels, shape.heads, shape.grid[1:], shape.block[1:],
                                   "blocks", lepe=5 if deit else 3, qk_norm=deit, qkv_bias=not deit)
    if case.shape.startswith("video"):
        return torch_layers.Video(channels, shape.heads, shape.grid, shape.block_grid)
    return torch_layers.Language(channels, shape.heads, shape.block_length, shape.blocks)


@functools.cache
def worst_layer_error():
    """The largest error of all stored cases, which are read once."""
    return max(torch_layers.error_of(path) for path in sorted(LAYER_CASES.glob("*.safetensors")))


def compare_layer(case, rows):
    """Times a layer, or its gradient from a graph made before, eager and compiled."""
    shape = Shape(case.sizes)
    torch.set_num_threads(case.threads)
    torch.compiler.reset()
    torch._functorch.config.donated_buffer = False  # backward runs more than once per graph
    layer = layer_of(case, shape)
    x = torch.rand(shape.batch, shape.tokens, shape.heads * shape.values)
    worst, right = worst_layer_error() / LARGEST_LAYER_ERROR, True
    for peer, run in (("layer eager", layer), ("layer compiled", torch.compile(layer, dynamic=False))):
        if case.form == "Layer":
            with torch.inference_mode():
                right &= report(case, peer, worst, lambda: run(x), rows)
            continue
        leaves = [x.requires_grad_(), *layer.parameters()]
        y = run(x)
        dy = torch.rand_like(y)
        call = lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)
        right &= report(case, peer + " backward", worst, call, rows)
    return right


def main():
    context, cases = results.load(sys.argv[1])
    compare_form = {"Bidirectional": compare, "Backward": compare_gradient, "Layer": compare_layer,
                    "LayerBackwardKept": compare_layer}
    chosen = {}
    for case in cases:
        if case.form in compare_form and comparable(case):
            layer = case.shape if case.form.startswith("Layer") else ""
            key = (case.form, layer, *case.sizes.items(), case.threads)
            chosen.setdefault(key, case)  # equal shapes once
    if not chosen:
        print("no bidirectional case or layer in float ran: nothing to compare with",
              file=sys.stderr)
        return 0
    print(f"PyTorch {torch.__version__}, {context['cpu_model']}, float")
    print(f"{'shape':28} {'peer':23} {'its time':>13} {'mhla':>13} {'ratio':>8}")
    rows = []
    right = [compare_form[case.form](case, rows) for case in chosen.values()]
    context = {**context, "torch": torch.__version__}
    results.save(sys.argv[2], json.dumps({"context": context, "peers": rows}, indent=1))
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
