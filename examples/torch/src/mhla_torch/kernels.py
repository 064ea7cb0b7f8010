"""The kernels of the library: what is loaded, the calls that they refuse, and the warning that says
why a call takes the formula in PyTorch.
"""

import warnings
from pathlib import Path

import torch
from torch.autograd import forward_ad

from mhla_torch import built

FOLDER = Path(built.__file__).parent  # an editable install has its libraries beside built.py alone
torch.ops.load_library(FOLDER / "libmhla_torch.so")


def load_cuda():
    """Loads the kernels for CUDA. -> the reason if there are none, or nothing"""
    if built.WITHOUT_CUDA:
        return f"this mhla_torch was built without CUDA ({built.WITHOUT_CUDA})"
    of_torch = torch.version.cuda
    if of_torch is None or of_torch.split(".")[0] != built.CUDA.split(".")[0]:
        return f"this mhla_torch was built for CUDA {built.CUDA}, and PyTorch for {of_torch}"
    torch.ops.load_library(FOLDER / "libmhla_torch_cuda.so")
    return ""


WITHOUT_CUDA = load_cuda()


class FormulaWarning(UserWarning):
    """Warns that a call takes the formula in PyTorch, because the kernels do not accept it."""


@torch.compiler.assume_constant_result  # compilers run it as they trace
def warn(message):
    if message not in WARNED:
        warnings.warn(message, FormulaWarning, stacklevel=4)
        WARNED.add(message)


WARNED = set()


# ---- calls that kernels refuse ----------------------------------------------------------------

_CUDA_WIDTHS = ((32, 32), (48, 48), (48, 96), (64, 64), (72, 72), (96, 48), (96, 96), (128, 128),
                (128, 256), (256, 256))


def refusal(name, tensors, weights, blocks, options):
    """The reason why the kernels refuse a call; nothing if they accept it or raise an error."""
    q = tensors["q"]
    if _in_transform():
        return "the call is in a transform of torch.func, expected none"
    if forward_ad._current_level >= 0:
        for argument, tensor in (tensors | weights).items():
            if forward_ad.unpack_dual(tensor).tangent is not None:
                return f"{argument} has a tangent, expected none: kernels have reverse mode alone"
    if q.is_cpu or q.is_meta:
        mixing = weights.get("mixing") if q.is_cpu else None
        if mixing is not None and mixing.dim() == 4:
            return "mixing has 4 axes, expected 2 or 3 on the CPU"
        if mixing is not None and mixing.dim() == 3 and blocks.get("decaying"):
            return "mixing has 3 axes, expected 2 of decaying terms on the CPU"
        heads = q.shape[1 if options.get("layout") == "bhnd" else 2] if q.dim() == 4 else 0
        if mixing is not None and mixing.dim() == 3 and len(mixing) != heads:
            return f"mixing has {len(mixing)} matrices, expected {heads}, one per head of q"
        return ""
    if not q.is_cuda:
        return f"q is on {q.device}, expected cpu or cuda"
    if WITHOUT_CUDA:
        return f"q is on {q.device}, but {WITHOUT_CUDA}"
    return _cuda_refusal(name, tensors, weights, blocks, options)


def on_cuda(tensor):
    """True for tensors that the kernels for CUDA take."""
    return tensor.is_cuda


def around(q, v):
    """Arguments that PyTorch's operations take around the kernels for tensors such as q and v."""
    angles = "query_angles", "key_angles"
    if on_cuda(q) and q.dtype is not torch.float32:
        return ()
    in_halves = v.shape[-1] > 128  # outputs, which kernels for CUDA then cannot normalise
    return angles if on_cuda(q) and not in_halves else (*angles, "gain", "gate")


@torch.compiler.assume_constant_result
def _in_transform():
    return torch._C._functorch.peek_interpreter_stack() is not None


def _cuda_refusal(name, tensors, weights, blocks, options):
    """The reason why the kernels for CUDA refuse a call, or nothing."""
    q, v = tensors["q"], tensors["v"]
    four_axes = q.dim() == v.dim() == 4
    reason = _kind_refusal(q.dtype, (q.shape[3], v.shape[3]) if four_axes else None, floats=True)
    if reason or not four_axes:
        return reason
    tokens = 2 if options.get("layout") == "bhnd" else 1
    for argument in ("q", "k") if options.get("query_offsets") is None else ():
        if tensors[argument].shape[tokens] == 0:
            return f"{argument} has no tokens, expected some on CUDA"
    for argument in ("normalizer_q", "normalizer_k", "query_map", "key_map"):
        if (tensors | weights | options).get(argument) is not None:
            return f"{argument} is given, expected none on CUDA"
    if options.get("feature_map") == "exp":
        return 'feature_map is "exp", expected relu, elu_plus_one or identity on CUDA'
    reason = _terms_refusal(max((0, *weights["mixing"].shape[-1:])) if blocks.get("decaying") else 0)
    if reason:
        return reason
    if "gain" in weights and _is_causal(name, blocks) and q.shape[3] > 128:
        return "gain is given with a width of 256, expected none in causal forms on CUDA"
    if "query_angles" in weights or "key_angles" in weights:
        reason = _rotary_refusal(name, tensors, weights, blocks, options)
        if reason:
            return reason
    if options.get("query_offsets") is not None and options.get("key_offsets") is not None:
        reason = _packed_refusal(name, q, weights, blocks, options)
        if reason:
            return reason
    # PyTorch makes rows of rotated q and k in float32, and reads the gate.
    around = q.dtype is torch.float32 and weights.keys() & {"query_angles", "key_angles"}
    for argument, tensor in tensors.items():
        if not (around and argument != "v") and not _has_whole_rows(tensor):
            return f"{argument} has other rows than dense ones at multiples of 16 bytes"
    if is_old(q.device.index):
        return "the device is older than compute capability 8.0"
    return ""


def _kind_refusal(dtype, widths, floats=False):
    """The reason why the kernels for CUDA refuse tensors of a type and of widths, or nothing.

    floats: tensors may be float32
    """
    is_float = floats and dtype is torch.float32
    if dtype not in (torch.bfloat16, torch.float16) and not is_float:
        types = "bfloat16, float16 or float32" if floats else "bfloat16 or float16"
        return f"q has type {dtype}, expected {types} on CUDA"
    pairs = [pair for pair in _CUDA_WIDTHS if pair[0] <= 128 or not is_float]
    if widths is not None and widths not in pairs:
        known = ", ".join(map(str, pairs)) + " in float32" * is_float
        return f"q and v have widths {widths}, expected one of {known} on CUDA"
    return ""


def _terms_refusal(terms):
    return f"mixing has {terms} decaying terms, expected at most 32 on CUDA" * (terms > 32)


def _is_causal(name, blocks):
    return name == "causal" or blocks.get("causal")


def _rotary_refusal(name, tensors, weights, blocks, options):
    """The reason why the kernels for CUDA refuse rotary angles, or nothing."""
    normed = options.get("normalizer", "key_sum") != "none"
    if tensors["q"].dtype is torch.float32:  # which PyTorch's operations rotate and divide
        packed = options.get("query_offsets") is not None
        return ("query_angles is given with a normalizer and packed sequences, expected none in "
                "float32 on CUDA") * (normed and packed)
    width = tensors["q"].shape[3]
    if width % 16 != 0:
        return f"query_angles is given with a width of {width}, expected a multiple of 16 on CUDA"
    if _is_causal(name, blocks) and normed:
        return "query_angles is given with a normalizer, expected none in causal forms on CUDA"
    for argument in ("query_angles", "key_angles") if torch.is_grad_enabled() else ():
        if argument in weights and weights[argument].requires_grad:
            return f"{argument} requires a gradient, expected none on CUDA"
    return ""


def _packed_refusal(name, q, weights, blocks, options):
    """The reason why the kernels for CUDA refuse packed sequences, or nothing."""
    rotated = "query_angles" in weights or "key_angles" in weights
    if rotated and q.dtype is not torch.float32:
        return "query_angles is given with packed sequences, expected none on CUDA"
    if _is_causal(name, blocks) and options["key_offsets"] is not options["query_offsets"]:
        return ("key_offsets is another tensor than query_offsets, expected the same in causal "
                "forms on CUDA")
    grids = blocks.get("grid"), blocks.get("key_grid" if blocks.get("key_block") else "grid")
    for argument, grid in zip(("max_queries", "max_keys"), grids):
        if argument not in options and not grid:
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
def is_old(device):
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0)


# ---- decoding -----------------------------------------------------------------------------------

def stream_refusal(device, dtype, widths, terms=0):
    """The reason why the kernels for CUDA cannot decode tensors of a layer there, or nothing."""
    if device.type != "cuda":
        return f"the layer is on {device}, expected cuda"
    if WITHOUT_CUDA:
        return f"the layer is on {device}, but {WITHOUT_CUDA}"
    return _kind_refusal(dtype, widths) or _terms_refusal(terms) or (
        "the device is older than compute capability 8.0" if is_old(device.index) else "")


def takes_streams(name, backend, device, dtype, widths, terms=0):
    """True if kernels decode a layer. Warns where a CUDA layer takes PyTorch's operations instead.

    name: of the layer
    terms: decaying terms of its mixing matrix, or 0
    """
    if backend not in ("auto", "kernels", "formula"):
        raise ValueError(f'{name}: backend is "{backend}", expected auto, kernels or formula')
    reason = stream_refusal(device, dtype, widths, terms)
    if reason and backend == "kernels" and device.type == "cuda":
        raise ValueError(f'{name}: {reason}; backend="formula" decodes in PyTorch')
    if reason and backend == "auto" and device.type == "cuda":
        warn(f"mhla_torch.{name} decodes in PyTorch: {reason} "
             '(backend="formula" says that this is wanted)')
    return not reason and backend != "formula"
