"""The operators of the library as functions of tensors, with gradients and shapes for tracing.

Tensors q [B,N,H,D], k [B,N,H,D] and v [B,N,H,E], or (layout "bhnd") [B,H,N,.], have any strides, so
slices of a packed qkv are not copied. The output has the layout of q. In memory it is [B,N,H,E], so
merging its heads copies nothing. All functions take, by name:

    feature_map    "relu" (max(x, 0) + 1e-6), "elu_plus_one", "identity" or "exp"; with weights
                   "hedgehog" (softmax of [2 y, -2 y], y = W x + b), "t2r" (max(W x, 0)) or
                   "elementwise_product" ((W1 x + b1) (W2 x + b2))
    query_map, key_map    weights of the feature map, one after another: [D D] (W), [D D + D] (W, b)
                   or, for two layers, twice as many
    normalizer     "key_sum", "none" or "cross_query" (not causal), with eps added to the sums
    scale          factor of the queries
    normalizer_q, normalizer_k     queries and keys of the denominator, if they differ from q and k
    query_mask, key_mask           bool [B,N]: False tokens take no part
    query_offsets, key_offsets     int32 or int64 [S + 1]: S sequences packed into B = 1
    max_queries, max_keys          tokens of the longest packed sequence, which kernels on CUDA need,
                   as the host does not read offsets there. max_keys is by default max_queries if
                   query_offsets and key_offsets are one tensor
    relu_eps       what "relu" adds, 1e-6
    query_angles, key_angles       [N,D], both: the cosine and the sine of each pair of adjacent
                   features, by which phi(q) and phi(k) rotate; denominators read them unrotated
    gain           [E]: outputs o of a head become o gain / sqrt(mean of o^2 + norm_eps)
    gate           [B,N,H,E], with a gain: outputs are multiplied by silu(gate)
    norm_eps       1e-6

    backend        "auto", "kernels" or "formula", see below

All functions except linear also take:

    save           tensors that a forward of kernels saves for the backward: its "inputs", or on the
                   CPU also the "summaries" of the blocks, B H M D (E + 1) sums

Types are float32, float64, bfloat16 and float16; 16-bit tensors have float32 sums. The mixing
matrix [M,M], the weights of feature maps, angles and the gain are used in float32, or in float64
with float64 tensors, also under autocast.

There are two backends. "kernels" are the library's kernels. On the CPU they accept all of the
above, and PyTorch applies angles, gain and gate around them, in the type of the sums. On CUDA they
accept bfloat16 and float16 with (D, E) of (64, 64), (72, 72), (128, 128) and (128, 256), and the
feature maps relu, elu_plus_one and identity. There they apply angles, gain and gate themselves;
angles have D of 64 or 128, and causal calls with angles have no normaliser. On CUDA they accept no
prefix, normalizer_q or normalizer_k; rows are dense and begin at multiples of 16 bytes. Packed
sequences there have max_queries and max_keys, or a grid, and no angles. Causal calls pass one tensor
as query_offsets and key_offsets. Rows outside of all sequences, and rows after the first
max_queries of a sequence, get outputs and gradients of 0. Masked and packed tensors are copied once.
Kernels have gradients in reverse mode, of first order, of all but the angles.
"formula" is plain PyTorch (mhla_torch.formula), for any device, argument and kind of derivative.
"auto", the default, takes the kernels if they accept the call, and otherwise the formula, with a
FormulaWarning that gives the reason, once per reason. explain names the backend without computing.
Wrong arguments raise ValueError or RuntimeError.
"""

import functools
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.autograd import forward_ad

from mhla_torch import built, formula, registration

torch.ops.load_library(Path(__file__).with_name("libmhla_torch.so"))


def _load_cuda():
    """Loads the kernels for CUDA. -> the reason if there are none, or nothing"""
    if built.WITHOUT_CUDA:
        return f"this mhla_torch was built without CUDA ({built.WITHOUT_CUDA})"
    of_torch = torch.version.cuda
    if of_torch is None or of_torch.split(".")[0] != built.CUDA.split(".")[0]:
        return f"this mhla_torch was built for CUDA {built.CUDA}, and PyTorch for {of_torch}"
    torch.ops.load_library(Path(__file__).with_name("libmhla_torch_cuda.so"))
    return ""


_WITHOUT_CUDA = _load_cuda()
registration.register()


def cuda_built():
    """True if there are kernels for CUDA, with or without a device."""
    return not _WITHOUT_CUDA


def locality(blocks, columns=False):
    """The initial mixing matrix [M,M] (float64): near blocks have larger coefficients.

    blocks: blocks along each axis
    columns: columns sum to 1, as in the released vision models, instead of rows
    """
    return torch.ops.mhla.locality(blocks, columns)


def resize(mixing, from_blocks, to_blocks, *, unit="extent", sum_to_one="rows"):
    """A mixing matrix for another grid of blocks. -> [M',M'], of the type and device of mixing

    from_blocks, to_blocks: blocks along each axis, of mixing [M,M] and of the result
    unit: length that both grids share: "extent", the same image in more or fewer blocks, or
        "block", a larger or smaller image in blocks of the same size
    sum_to_one: "rows", "columns" or "nothing": the sums that the result keeps

    The result is a nonnegative function of the distance between blocks, fitted to mixing by least
    squares. Its kept sums are the mean of mixing's sums. There is no gradient.
    """
    resized, _ = torch.ops.mhla.resize(mixing.detach().to("cpu", torch.float64), from_blocks,
                                       to_blocks, unit, sum_to_one)
    return resized.to(mixing)


class FormulaWarning(UserWarning):
    """Warns that a call takes the formula in PyTorch, because the kernels do not accept it."""


@dataclass(frozen=True)
class Explanation:
    """The backend that a call would take, and the reason."""

    backend: str  # "kernels" or "formula"
    form: str  # form that the library's plan picks, of kernels on CUDA
    reason: str  # why the kernels refuse the call; empty if they take it


def explain(function, *arguments, **options):
    """Explains which backend function(*arguments, **options) would take, without computing.

    function: bidirectional, causal, linear or an MHLA module. -> Explanation
    """
    return function(*arguments, **options, explain=True)


def bidirectional(q, k, v, mixing, *, grid=(), block, prefix=0, save="inputs", backend="auto",
                  **options):
    """Bidirectional attention: every query reads every key. -> [B,N,H,E]

    grid, block: tokens along one to three axes, in raster order, and tokens of a block along each
        axis. Without a grid, a sequence of any length in blocks of block[0], which uses the leading
        part of mixing
    prefix: tokens before the grid, such as a class token: the first block

    Cost: 4 B H N D E + 2 B H M^2 D E flops.
    """
    blocks = {"grid": list(grid), "block": list(block), "prefix": prefix}
    return _call("bidirectional", backend, save, q, k, v, mixing, blocks, **options)


def causal(q, k, v, mixing, *, block, save="inputs", backend="auto", **options):
    """Causal attention in blocks of `block` tokens: a token reads itself and the past. -> [B,N,H,E]

    mixing: at least [M,M]; only the lower triangle is read
    """
    return _call("causal", backend, save, q, k, v, mixing, {"block": block}, **options)


def linear(q, k, v, *, causal=False, backend="auto", **options):
    """Plain linear attention: MHLA with one block. -> [B,N,H,E]"""
    return _call("linear", backend, "inputs", q, k, v, None, {"causal": causal}, **options)


def takes_streams(name, backend, device, dtype, widths):
    """True if kernels decode a layer. Warns where a CUDA layer takes PyTorch's operations instead.

    name: of the layer
    """
    if backend not in ("auto", "kernels", "formula"):
        raise ValueError(f'{name}: backend is "{backend}", expected auto, kernels or formula')
    reason = stream_refusal(device, dtype, widths)
    if reason and backend == "kernels" and device.type == "cuda":
        raise ValueError(f'{name}: {reason}; backend="formula" decodes in PyTorch')
    if reason and backend == "auto" and device.type == "cuda":
        _warn(f"mhla_torch.{name} decodes in PyTorch: {reason} "
              '(backend="formula" says that this is wanted)')
    return not reason and backend != "formula"


def sums_of(dtype):
    """The type of sums of tensors."""
    return torch.float64 if dtype is torch.float64 else torch.float32


_TENSORS = ("normalizer_q", "normalizer_k", "gate")
_PARAMETERS = ("query_map", "key_map", "query_angles", "key_angles", "gain")
_AROUND = ("query_angles", "key_angles", "gain", "gate")  # which kernels of the CPU lack
_PACKED = ("query_offsets", "max_queries", "key_offsets", "max_keys")
_WITH_AUTOCAST = ("cpu", "cuda", "xpu", "mps")


def _call(name, backend, save, q, k, v, mixing, blocks, *, explain=False, **options):
    """Runs an operator by its kernels or its formula, or explains which of them it would run.

    blocks: the arguments between mixing and the options, by name, in the order of the schema
    """
    if backend not in ("auto", "kernels", "formula"):
        raise ValueError(f'mhla::{name}: backend is "{backend}", expected auto, kernels or formula')
    if save not in ("inputs", "summaries"):
        raise ValueError(f'mhla::{name}: save is "{save}", expected inputs or summaries')
    tensors = {"q": q, "k": k, "v": v} | {argument: options.pop(argument, None)
                                          for argument in _TENSORS}
    parameters = {"mixing": mixing} | {argument: options.pop(argument, None)
                                       for argument in _PARAMETERS}
    _expect_one_device(name, q, tensors | parameters | options)
    options = _with_offsets(name, q, options)
    device = q.device.type if q.device.type in _WITH_AUTOCAST else "cpu"
    autocast = torch.is_autocast_enabled(device)
    if autocast:
        low = torch.get_autocast_dtype(device)
        tensors = {argument: t.to(low) if t is not None and _autocasts(t) else t
                   for argument, t in tensors.items()}
    given = {argument: t for argument, t in tensors.items() if t is not None}
    weights = {argument: t.to(sums_of(given["q"].dtype)) for argument, t in parameters.items()
               if t is not None}
    reason = _refusal(name, given, weights, blocks, options)
    if reason and backend == "kernels":
        raise ValueError(f'mhla::{name}: {reason}; backend="formula" takes the call')
    if reason and backend == "auto" and not explain:
        _warn(f"mhla_torch.{name} runs as a formula in PyTorch: {reason} "
              '(backend="formula" says that this is wanted)')
    if reason or backend == "formula":
        if explain:
            return Explanation("formula", "", reason or 'backend is "formula"')
        return _without_autocast(device, autocast, getattr(formula, name),
                                 given | weights | blocks | options)
    if explain:
        return Explanation("kernels", _form(name, given, weights, blocks, options), "")
    keep = save != "inputs" and _keeps(name, (*tensors.values(), *parameters.values()), options)

    def kernels(named):
        out = _run(name + "_kept" if keep else name, named)
        return out[0] if keep else out

    named = given | weights | options
    if q.is_cuda or not any(argument in named for argument in _AROUND):
        return kernels(named | blocks)
    inner = blocks | ({"mixing": named.pop("mixing")} if "mixing" in named else {})
    run = functools.partial(formula.around, f"mhla::{name}", lambda **t: kernels(t | inner))
    return _without_autocast(device, autocast, run, named)


def _with_offsets(name, q, options):
    """Options whose offsets have the kernels' type, without lengths that are not known."""
    if not any(argument in options for argument in _PACKED):
        return options
    options = options.copy()
    for offsets, most in (_PACKED[:2], _PACKED[2:]):
        ends, tokens = options.get(offsets), options.pop(most, None)
        if ends is not None and ends.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"mhla::{name}: {offsets} has type {ends.dtype}, expected torch.int32 "
                             "or torch.int64")
        if tokens is None:
            continue
        if ends is None:
            raise ValueError(f"mhla::{name}: {most} is given without {offsets}, expected both")
        if tokens < 1:
            raise ValueError(f"mhla::{name}: {most} is {tokens}, expected at least 1")
        options[most] = tokens
    queries, keys = (options.get(argument) for argument in ("query_offsets", "key_offsets"))
    if queries is None or keys is None:
        return options
    dtype = torch.int32 if q.is_cuda else torch.int64
    options["query_offsets"] = queries.to(dtype)
    options["key_offsets"] = options["query_offsets"] if keys is queries else keys.to(dtype)
    if keys is queries and "max_queries" in options:
        options.setdefault("max_keys", options["max_queries"])
    return options


def _without_autocast(device, autocast, run, named):
    """Calls a function of PyTorch's operations, whose products autocast would round."""
    if not autocast:
        return run(**named)
    with torch.autocast(device, enabled=False):
        return run(**named)


def _run(name, named):
    """Calls an operator with its arguments by name."""
    arguments = registration.ARGUMENTS[name]
    eager = not torch.compiler.is_compiling() and named.keys() <= arguments.keys()
    if eager and _needs_gradients(t for t in named.values() if isinstance(t, torch.Tensor)):
        values = (named.get(argument, default) for argument, default in arguments.items())
        return registration.RECORDED[name].apply(*values)
    return getattr(torch.ops.mhla, name).default(**named)


def _keeps(name, tensors, options):
    """True if a call with save="summaries" has a backward that reads the summaries."""
    if options.get("query_offsets") is not None:
        raise ValueError(f'mhla::{name}: save is "summaries", expected inputs: how many '
                         "summaries packed sequences have is not in their shape")
    return not tensors[0].is_cuda and _needs_gradients(tensors)


def _needs_gradients(tensors):
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _form(name, tensors, weights, blocks, options):
    """The form of the kernels for a call: "cpu", or the form that the plan picks on CUDA."""
    if not tensors["q"].is_cuda:
        return "cpu"
    ask = getattr(torch.ops.mhla, name + "_form")
    return ask(**tensors, **weights, **blocks, **options)


@torch.compiler.assume_constant_result  # compilers run it as they trace
def _warn(message):
    if message not in _WARNED:
        _WARNED.add(message)
        warnings.warn(message, FormulaWarning, stacklevel=4)


_WARNED = set()


# ---- calls that kernels refuse ----------------------------------------------------------------

_CUDA_WIDTHS = ((64, 64), (72, 72), (128, 128), (128, 256))


def _refusal(name, tensors, weights, blocks, options):
    """The reason why the kernels refuse a call; nothing if they accept it or raise an error."""
    q = tensors["q"]
    if _in_transform():
        return "the call is in a transform of torch.func, expected none"
    if forward_ad._current_level >= 0:
        for argument, tensor in (tensors | weights).items():
            if forward_ad.unpack_dual(tensor).tangent is not None:
                return f"{argument} has a tangent, expected none: kernels have reverse mode alone"
    if q.is_cpu or q.is_meta:
        return ""
    if not q.is_cuda:
        return f"q is on {q.device}, expected cpu or cuda"
    if _WITHOUT_CUDA:
        return f"q is on {q.device}, but {_WITHOUT_CUDA}"
    return _cuda_refusal(name, tensors, weights, blocks, options)


@torch.compiler.assume_constant_result
def _in_transform():
    return torch._C._functorch.peek_interpreter_stack() is not None


def _cuda_refusal(name, tensors, weights, blocks, options):
    """The reason why the kernels for CUDA refuse a call, or nothing."""
    q, v = tensors["q"], tensors["v"]
    four_axes = q.dim() == v.dim() == 4
    reason = _kind_refusal(q.dtype, (q.shape[3], v.shape[3]) if four_axes else None)
    if reason or not four_axes:
        return reason
    if blocks.get("prefix", 0) > 0:
        return "prefix is set, expected 0 on CUDA"
    for argument in ("normalizer_q", "normalizer_k", "query_map", "key_map"):
        if (tensors | weights | options).get(argument) is not None:
            return f"{argument} is given, expected none on CUDA"
    if options.get("feature_map") == "exp":
        return 'feature_map is "exp", expected relu, elu_plus_one or identity on CUDA'
    if "query_angles" in weights or "key_angles" in weights:
        reason = _rotary_refusal(name, tensors, weights, blocks, options)
        if reason:
            return reason
    if options.get("query_offsets") is not None and options.get("key_offsets") is not None:
        reason = _packed_refusal(name, weights, blocks, options)
        if reason:
            return reason
    for argument, tensor in tensors.items():
        if not _has_whole_rows(tensor):
            return f"{argument} has other rows than dense ones at multiples of 16 bytes"
    if _is_old(q.device.index):
        return "the device is older than compute capability 8.0"
    return ""


def _kind_refusal(dtype, widths):
    """The reason why the kernels for CUDA refuse tensors of a type and of widths, or nothing."""
    if dtype not in (torch.bfloat16, torch.float16):
        return f"q has type {dtype}, expected bfloat16 or float16 on CUDA"
    if widths is not None and widths not in _CUDA_WIDTHS:
        known = ", ".join(map(str, _CUDA_WIDTHS))
        return f"q and v have widths {widths}, expected one of {known} on CUDA"
    return ""


def stream_refusal(device, dtype, widths):
    """The reason why the kernels for CUDA cannot decode tensors of a layer there, or nothing."""
    if device.type != "cuda":
        return f"the layer is on {device}, expected cuda"
    if _WITHOUT_CUDA:
        return f"the layer is on {device}, but {_WITHOUT_CUDA}"
    return _kind_refusal(dtype, widths) or (
        "the device is older than compute capability 8.0" if _is_old(device.index) else "")


def _rotary_refusal(name, tensors, weights, blocks, options):
    """The reason why the kernels for CUDA refuse rotary angles, or nothing."""
    width = tensors["q"].shape[3]
    if width == 72:
        return "query_angles is given with a width of 72, expected 64 or 128 on CUDA"
    causal = name == "causal" or blocks.get("causal")
    if causal and options.get("normalizer", "key_sum") != "none":
        return "query_angles is given with a normalizer, expected none in causal forms on CUDA"
    for argument in ("query_angles", "key_angles"):
        if argument in weights and weights[argument].requires_grad:
            return f"{argument} requires a gradient, expected none on CUDA"
    return ""


def _packed_refusal(name, weights, blocks, options):
    """The reason why the kernels for CUDA refuse packed sequences, or nothing."""
    if "query_angles" in weights or "key_angles" in weights:
        return "query_angles is given with packed sequences, expected none on CUDA"
    causal = name == "causal" or blocks.get("causal")
    if causal and options["key_offsets"] is not options["query_offsets"]:
        return ("key_offsets is another tensor than query_offsets, expected the same in causal "
                "forms on CUDA")
    for argument in ("max_queries", "max_keys"):
        if argument not in options and not blocks.get("grid"):
            return f"{argument} is absent, expected the tokens of the longest sequence on CUDA"
    return ""


def _has_whole_rows(tensor):
    """True if rows are dense and begin at multiples of 16 bytes."""
    *steps, step = tensor.stride()
    steps = [s for s, n in zip(steps, tensor.shape) if n > 1]
    if not torch.compiler.is_compiling():  # compilers do not trace where a tensor begins
        steps.append(tensor.storage_offset())
    return step == 1 and all(s * tensor.element_size() % 16 == 0 for s in steps)


@torch.compiler.assume_constant_result
def _is_old(device):
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0)


def _expect_one_device(name, q, arguments):
    """Refuses tensors on several devices: kernels of one device would read the memory of others."""
    for argument, tensor in arguments.items():
        if isinstance(tensor, torch.Tensor) and tensor.device != q.device:
            raise ValueError(f"mhla::{name}: {argument} is on {tensor.device}, expected "
                             f"{q.device} as q")


def _autocasts(tensor):
    """True for floating types except float64, which autocast does not cast."""
    return tensor.is_floating_point() and tensor.dtype is not torch.float64
