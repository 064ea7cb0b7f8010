"""The cases of the CUDA benchmarks in PyTorch: torch_cuda_peers.py RESULTS.json PEERS.json [--quick]

The arms are the same operator, eager and compiled, and softmax attention by the flash and the cuDNN
kernels of PyTorch. For causal cases the linear attention of flash-linear-attention is an arm if fla
is installed (without mixing, features and denominators: less work). All have the same shapes in
bfloat16, and are checked on sampled rows before they are timed. Times are medians of device time
between events on a cold L2; the arms of a case take turns. Ratios are to the time of this library
in RESULTS.json: above 1 this library is faster.
"""

import functools
import importlib.util
import json
import statistics
import sys
import warnings

import torch

from peers.formula import mhla
from peers.workload import Shape
from support.results import save

RUNS, QUICK_RUNS, WARM_UPS = 31, 9, 3
HEAD_START = 1_000_000  # clock ticks that the device waits, so that launches are not timed
LARGEST_ERROR = 0.02  # relative to a row's norm: definition.hpp
SAMPLES = 8


def phi(x):
    """The feature map of queries and keys."""
    return torch.relu(x) + 1e-6


def softmax(q, k, v, causal, backend):
    """Attention softmax(q k^T / sqrt(D)) v of [B,N,H,.] tensors by one of PyTorch's kernels."""
    heads_first = (t.transpose(1, 2) for t in (q, k, v))
    with torch.nn.attention.sdpa_kernel([backend]):
        out = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=causal)
    return out.transpose(1, 2)


def exact_mhla(q, k, v, coefficients):
    """The output row of query q [D] by the definition with coefficients [N], in float64."""
    weights = coefficients * (phi(k.double()) @ phi(q.double()))
    return weights @ v.double() / weights.sum()


def exact_unmixed(q, k, v, readable):
    """The row of linear attention without denominators; readable [N] is 0 for unread keys."""
    return ((readable != 0) * (phi(k.double()) @ phi(q.double()))) @ v.double()


def exact_softmax(q, k, v, readable):
    """The row of softmax attention; readable [N] is 0 for unread keys."""
    scores = k.double() @ q.double() / q.shape[0] ** 0.5
    return torch.softmax(scores.masked_fill(readable == 0, -torch.inf), 0) @ v.double()


def sampled_rows(shape):
    """Places (b, h, t): the last token of the last head, and some more."""
    draw = torch.Generator().manual_seed(7)
    sizes = (shape.batch, shape.heads, shape.tokens)
    rows = [tuple(int(torch.randint(n, (), generator=draw)) for n in sizes)
            for _ in range(SAMPLES)]
    return [tuple(n - 1 for n in sizes), *rows]


def worst_error(shape, causal, tensors, mixing, out, exact):
    """Largest error of a sampled row of out [B,N,H,E] over the row's norm.

    exact(q, k, v, c) is the definition; c [N] are the coefficients of the keys, 0 for unread keys.
    """
    q, k, v = tensors
    if not torch.isfinite(out).all():
        return float("inf")
    block_of = torch.from_numpy(shape.block_of()).to(q.device)
    worst = 0.0
    for b, h, t in sampled_rows(shape):
        coefficients = mixing.double()[block_of[t], block_of]
        if causal:
            coefficients = coefficients * (torch.arange(shape.tokens, device=q.device) <= t)
        row = exact(q[b, t, h], k[b, :, h], v[b, :, h], coefficients)
        worst = max(worst, float((out[b, t, h].double() - row).norm() / row.norm()))
    return worst


class ColdCache:
    """Writes and reads twice the size of L2 between runs."""

    def __init__(self, cache_bytes):
        words = 2 * int(cache_bytes) // 4
        self.written = torch.empty(words, dtype=torch.int32, device="cuda")
        self.read = torch.randint(1 << 30, (words,), dtype=torch.int32, device="cuda")
        self.seed = 1

    def prepare(self):
        """Clears L2; call it before a run."""
        self.seed += 1
        torch.bitwise_xor(self.read, self.seed, out=self.written)
        self.read.sum()
        torch.cuda._sleep(HEAD_START)


def seconds_of(call, cold):
    """Device seconds of a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cold.prepare()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def median_seconds(calls, cold, runs):
    """Median seconds of each call; the calls take turns."""
    times = [[] for _ in calls]
    for run in range(-WARM_UPS, runs):
        for call, of_call in zip(calls, times):
            seconds = seconds_of(call, cold)
            if run >= 0:
                of_call.append(seconds)
    return [statistics.median(of_call) for of_call in times]


def unmixed(q, k, v):
    """A call of chunk_linear_attn of flash-linear-attention on features made before."""
    from fla.ops.linear_attn import chunk_linear_attn
    features = phi(q), phi(k)
    return lambda: chunk_linear_attn(*features, v, scale=1.0, normalize=False)[0]


def arms(shape, causal, tensors, mixing):
    """A dictionary of name: (call, definition of a row)."""
    operator = functools.partial(mhla, causal=causal)
    torch.compiler.reset()
    compiled = torch.compile(operator, dynamic=False)
    backends = torch.nn.attention.SDPBackend
    peers = {
        "MHLA eager": (lambda: operator(*tensors, mixing, shape), exact_mhla),
        "MHLA compiled": (lambda: compiled(*tensors, mixing, shape), exact_mhla),
        "softmax, flash": (lambda: softmax(*tensors, causal, backends.FLASH_ATTENTION),
                           exact_softmax),
        "softmax, cuDNN": (lambda: softmax(*tensors, causal, backends.CUDNN_ATTENTION),
                           exact_softmax),
    }
    if causal and importlib.util.find_spec("fla"):
        peers["FLA, unmixed"] = (unmixed(*tensors), exact_unmixed)
    return peers


def random_tensors(shape, device):
    """Random q, k, v in bfloat16, uniform in [-1, 1), and a mixing matrix in [0.25, 1)."""
    lead = (shape.batch, shape.tokens, shape.heads)
    draw = lambda width: (2 * torch.rand(*lead, width, device=device) - 1).bfloat16()
    mixing = 0.25 + 0.75 * torch.rand(shape.blocks, shape.blocks, device=device)
    return [draw(shape.width), draw(shape.width), draw(shape.values)], mixing.bfloat16()


@torch.inference_mode()
def compare(case, cold, runs, rows):
    """Times all peers of a case and appends a row per peer; returns whether all were right."""
    shape, causal = Shape(case), case["operation"] == "causal"
    torch.manual_seed(11)
    tensors, mixing = random_tensors(shape, "cuda")
    right, found = True, {}
    for peer, (call, exact) in arms(shape, causal, tensors, mixing).items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a kernel that refuses says why in warnings
                out = call()
        except Exception as error:  # such as no kernel for these widths, or no compiler
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            print(f"{case['name']:20} {peer:16} absent: {reason}", flush=True)
            rows.append({"name": case["name"], "peer": peer, "absent": reason})
            continue
        worst = worst_error(shape, causal, tensors, mixing, out, exact)
        del out
        if worst <= LARGEST_ERROR:
            found[peer] = call, worst
        else:
            print(f"{case['name']:20} {peer:16} ERROR: wrong by {worst} of a row's norm")
            right = False
    times = median_seconds([call for call, _ in found.values()], cold, runs)
    for (peer, (_, worst)), seconds in zip(found.items(), times):
        ratio = seconds / case["seconds"]
        print(f"{case['name']:20} {peer:16} {seconds * 1e6:11.1f} {case['seconds'] * 1e6:11.1f}"
              f" {ratio:8.2f} {worst:9.4f}", flush=True)
        rows.append({"name": case["name"], "peer": peer, "seconds": seconds,
                     "mhla_seconds": case["seconds"], "ratio": ratio, "relative_error": worst})
    return right


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        results = json.load(file)
    context, runs = results["context"], QUICK_RUNS if "--quick" in sys.argv[3:] else RUNS
    cases = [case for case in results["cases"] if case["right"] and case["operation"] != "step"]
    if not cases:
        print("no case of a whole sequence was right: nothing to compare with", file=sys.stderr)
        return 0
    context = {**context, "torch": torch.__version__,
               "cudnn": torch.backends.cudnn.version()}
    print(f"PyTorch {torch.__version__}, cuDNN {context['cudnn']}, {context['gpu']}, bfloat16")
    print(f"{'case':20} {'peer':16} {'its us':>11} {'mhla us':>11} {'ratio':>8} {'error':>9}")
    cold = ColdCache(context["cache_bytes"])
    rows, right = [], True
    for case in cases:
        right &= compare(case, cold, runs, rows)
        torch.cuda.empty_cache()
        save(sys.argv[2], json.dumps({"context": context, "peers": rows}, indent=1))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
