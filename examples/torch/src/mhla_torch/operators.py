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

The mixing matrix is [M,M], [H,M,M] with a matrix per head, or [B,H,M,M] with a matrix per batch item
and head. Packed sequences share the matrices of one item. Its gradient has its shape. All functions
except linear take its pattern:

    pattern        bool [M,M]: where matrices have coefficients, such as a band. Other coefficients
                   are 0 and get no gradient. On CUDA, calls in three stages skip strips of 64 x 32
                   of them. The words that kernels read are made on the device

Types are float32, float64, bfloat16 and float16; 16-bit tensors have float32 sums. The mixing
matrix, the weights of feature maps, angles and the gain are used in float32, or in float64
with float64 tensors, also under autocast.

There are two backends. "kernels" are the library's kernels. On the CPU they accept all of the above
but [B,H,M,M], and PyTorch applies angles, gain and gate around them, in the type of the sums. On
CUDA they accept bfloat16 and float16 with (D, E) of (32, 32), (48, 48), (48, 96), (64, 64),
(72, 72), (96, 48), (96, 96), (128, 128), (128, 256) and (256, 256), float32 with those but (256,
256), and the feature maps relu, elu_plus_one and identity. There they apply angles, gain and gate
themselves. Angles have D that is a multiple of 16, and causal calls with angles have no normaliser.
In float32 PyTorch applies angles, of any even D, and the denominators of calls with angles, with
(128, 256) also gain and gate. Causal calls of (256, 256) have no gain. On CUDA they accept no normalizer_q or normalizer_k; rows are dense
and begin at multiples of 16 bytes. Packed sequences there have max_queries and max_keys, or a grid.
In 16 bits they have no angles, in float32 no angles with a normaliser. Causal calls pass one tensor
as query_offsets and key_offsets. Rows outside of all sequences, and rows after the first max_queries
of a sequence, get outputs and gradients of 0. Masked and packed tensors, and those with a prefix,
are copied once.
Kernels have gradients in reverse mode, of first order, of all but the angles.
"formula" is plain PyTorch (mhla_torch.formula), for any device, argument and kind of derivative.
"auto", the default, takes the kernels if they accept the call, and otherwise the formula, with a
FormulaWarning that gives the reason, once per reason. explain names the backend without computing.
Wrong arguments raise ValueError or RuntimeError.
"""

import functools
from dataclasses import dataclass

import torch

from mhla_torch import block_sizes, checks, formula, kernels, registration
from mhla_torch import pattern as patterns

registration.register()


def cuda_built():
    """True if there are kernels for CUDA, with or without a device."""
    return not kernels.WITHOUT_CUDA


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


def distance_matrix(table, blocks, *, causal=False, rows_sum_to_one=True):
    """Mixing matrices that depend on the offset between blocks alone, for any grid. -> [..,M,M]

    table: [..,2 R + 1] for each of one to three axes: f of the offsets from -R to R, the place of
        the query block minus that of the key block. Larger offsets read the border. Leading axes,
        such as heads, stay
    blocks: blocks along each axis
    causal: keys of later blocks have no coefficients
    rows_sum_to_one: rows are divided by their sums other than 0, so that larger grids have outputs
        of equal size

    Gradients are those of indexing. A model that is trained on one grid runs on others.
    """
    axes = len(blocks)
    sizes = table.shape[max(0, table.dim() - axes):]
    if not 1 <= axes <= 3 or len(sizes) < axes or any(size % 2 == 0 for size in sizes):
        raise ValueError(f"distance_matrix: table has shape {list(table.shape)}, expected an odd "
                         f"number of offsets for each axis of blocks {tuple(blocks)}")
    if min(blocks) < 1:
        raise ValueError(f"distance_matrix: blocks is {tuple(blocks)}, expected at least 1 each")
    places = torch.cartesian_prod(*(torch.arange(count, device=table.device) for count in blocks))
    at = 0
    for along, size in zip(places.view(-1, axes).T, sizes):
        offsets = along[:, None] - along
        at = at * size + offsets.clamp(-(size // 2), size // 2) + size // 2
    matrix = table.flatten(-axes)[..., at]
    matrix = matrix.tril() if causal else matrix
    if not rows_sum_to_one:
        return matrix
    sums = matrix.sum(-1, keepdim=True)
    return matrix / sums.masked_fill(sums == 0, 1)


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


def bidirectional(q, k, v, mixing, *, grid=(), block, prefix=0, key_grid=(), key_block=(),
                  key_prefix=0, pattern=None, save="inputs", backend="auto", **options):
    """Bidirectional attention: every query reads every key. -> [B,N,H,E]

    grid, block: tokens along one to three axes, in raster order, and tokens of a block along each
        axis. Without a grid, a sequence of any length in blocks of block[0], which uses the leading
        part of mixing
    prefix: tokens before the grid, such as a class token: the first block
    key_grid, key_block, key_prefix: those of the keys, with a key_block, if they differ; mixing is
        then [Mq,Mk]

    Cost: 4 B H N D E + 2 B H M^2 D E flops.
    """
    blocks = {"grid": list(grid), "block": list(block), "prefix": prefix}
    keys = {"key_grid": list(key_grid), "key_block": list(key_block), "key_prefix": key_prefix}
    block_sizes.expect_sizes("mhla::bidirectional", {"q": q, "k": k} | options | blocks | keys)
    blocks |= keys if key_block else {}
    return _call("bidirectional", backend, save, q, k, v, mixing, blocks, pattern, **options)


def block_causal(q, k, v, mixing, *, block, step=1, key_step=None, **options):
    """Attention in steps of `step` consecutive blocks, such as those of a frame: every query reads
    its own step and earlier steps whole. -> [B,N,H,E]

    key_step: blocks of a step of the keys, with a key_block; by default step
    options: those of bidirectional, which runs with 0 in the place of coefficients of later steps.
        They get no gradient. A NaN in later tokens may reach earlier outputs. A prefix belongs to
        the first step

    BlockStream appends one step at a time. Cost: that of bidirectional.
    """
    if options.get("normalizer") == "cross_query":
        raise ValueError('mhla::block_causal: normalizer is "cross_query", expected key_sum or '
                         "none: it reads later queries")
    steps, prefixes = [step, key_step or step], [options.get("prefix", 0)] * 2
    if options.get("key_block"):
        prefixes[1] = options.get("key_prefix", 0)
    block_sizes.expect_steps("mhla::block_causal", step, key_step,
                             {"q": q, "k": k, "block": block} | options)
    # A prefix is the block before the first step, which reads it.
    rows, columns = ((torch.arange(n, device=mixing.device) - int(prefix > 0)).clamp(min=0) // blocks
                     for n, prefix, blocks in zip(mixing.shape[-2:], prefixes, steps))
    earlier = mixing.masked_fill(columns > rows[:, None], 0)
    return bidirectional(q, k, v, earlier, block=block, **options)


def causal(q, k, v, mixing, *, block, decaying=False, pattern=None, save="inputs", backend="auto",
           **options):
    """Causal attention in blocks of `block` tokens: a token reads itself and the past. -> [B,N,H,E]

    mixing: at least [M,M] each; only the lower triangle is read
    decaying: mixing has terms [2,R] in place of a matrix, R weights a_r and then R decays lambda_r,
        for any number of blocks: m_ib = sum_r a_r lambda_r^(i-b). Decays are from 0 to 1, which
        kernels on CUDA and the formula do not check. Heads and batch items may have terms of their
        own, [H,2,R] and [B,H,2,R], which the CPU's kernels lack. On CUDA R is at most 32

    Cost: 4 B H N D E + B H M^2 D E flops, or with terms 4 B H M R D E in place of the second. The
    formula builds a matrix of terms (decay_matrix).
    """
    if decaying and pattern is not None:
        raise ValueError("mhla::causal: pattern is given with decaying terms, expected either")
    return _call("causal", backend, save, q, k, v, mixing, {"block": block, "decaying": decaying},
                 pattern, **options)


def linear(q, k, v, *, causal=False, backend="auto", **options):
    """Plain linear attention: MHLA with one block. -> [B,N,H,E]"""
    for argument in {"pattern", "save"} & options.keys():
        raise ValueError(f"mhla::linear: {argument} is given, expected none in linear attention")
    return _call("linear", backend, "inputs", q, k, v, None, {"causal": causal}, None, **options)


def sums_of(dtype):
    """The type of sums of tensors."""
    return torch.float64 if dtype is torch.float64 else torch.float32


_TENSORS = ("normalizer_q", "normalizer_k", "gate")
_PARAMETERS = ("query_map", "key_map", "query_angles", "key_angles", "gain")
_PACKED = ("query_offsets", "max_queries", "key_offsets", "max_keys")


def _call(name, backend, save, q, k, v, mixing, blocks, pattern, *, explain=False, **options):
    """Runs an operator by its kernels or its formula, or explains which of them it would run.

    blocks: the arguments between mixing and the pattern, by name, in the order of the schema
    """
    if backend not in ("auto", "kernels", "formula"):
        raise ValueError(f'mhla::{name}: backend is "{backend}", expected auto, kernels or formula')
    if save not in ("inputs", "summaries"):
        raise ValueError(f'mhla::{name}: save is "{save}", expected inputs or summaries')
    checks.expect_numbers(f"mhla::{name}", options)
    tensors = {"q": q, "k": k, "v": v} | {argument: options.pop(argument, None)
                                          for argument in _TENSORS}
    parameters = {"mixing": mixing} | {argument: options.pop(argument, None)
                                       for argument in _PARAMETERS}
    _expect_one_device(name, q, tensors | parameters | {"pattern": pattern} | options)
    if pattern is not None:
        parameters["mixing"] = patterns.masked(f"mhla::{name}", mixing, pattern)
    options = _with_offsets(name, q, options)
    tensors = autocast(tensors)
    given = {argument: t for argument, t in tensors.items() if t is not None}
    weights = {argument: t.to(sums_of(given["q"].dtype)) for argument, t in parameters.items()
               if t is not None}
    reason = kernels.refusal(name, given, weights, blocks, options)
    if reason and backend == "kernels":
        raise ValueError(f'mhla::{name}: {reason}; backend="formula" takes the call')
    if reason and backend == "auto" and not explain:
        kernels.warn(f"mhla_torch.{name} runs as a formula in PyTorch: {reason} "
                     '(backend="formula" says that this is wanted)')
    if reason or backend == "formula":
        if explain:
            return Explanation("formula", "", reason or 'backend is "formula"')
        return without_autocast(q, getattr(formula, name), **given, **weights, **blocks, **options)
    if pattern is not None and q.is_cuda:
        rows, columns = block_sizes.block_counts(given | blocks | options)
        blocks = blocks | {"pattern": patterns.words(pattern[:rows, :columns], empty=explain)}
    if explain:
        return Explanation("kernels", _form(name, given, weights, blocks, options), "")
    keep = save != "inputs" and _keeps(name, (*tensors.values(), *parameters.values()), options)

    def by_kernels(named):
        out = _run(name + "_kept" if keep else name, named)
        return out[0] if keep else out

    named = given | weights | options
    if not named.keys() & kernels.around(given["q"], given["v"]):
        return by_kernels(named | blocks)
    inner = blocks | ({"mixing": named["mixing"]} if "mixing" in named else {})
    rotates = named.keys() & {"query_angles", "key_angles"}
    if rotates and kernels.on_cuda(q) and options.get("normalizer") != "none":
        run = functools.partial(getattr(formula, name), **blocks, numerators=lambda *t: by_kernels(
            dict(zip("qkv", t)) | inner | formula.NUMERATORS))
    else:
        named.pop("mixing", None)
        run = functools.partial(formula.around, f"mhla::{name}", lambda **t: by_kernels(t | inner))
    return without_autocast(q, run, **named)


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
    options["query_offsets"] = queries.to(dtype).contiguous()
    options["key_offsets"] = (
        options["query_offsets"] if keys is queries else keys.to(dtype).contiguous())
    if keys is queries and "max_queries" in options:
        options.setdefault("max_keys", options["max_queries"])
    return options


def _autocast_device(tensor):
    return tensor.device.type if torch.amp.is_autocast_available(tensor.device.type) else "cpu"


def autocast(tensors):
    """Tensors by name, of the type of autocast where it is enabled. Others and None stay."""
    device = _autocast_device(tensors["q"])
    if not torch.is_autocast_enabled(device):
        return tensors
    low = torch.get_autocast_dtype(device)
    return {argument: t.to(low) if isinstance(t, torch.Tensor) and _autocasts(t) else t
            for argument, t in tensors.items()}


def without_autocast(tensor, run, *arguments, **named):
    """Calls a function of PyTorch's operations, whose products autocast would round.

    tensor: any on the device of the operations
    """
    device = _autocast_device(tensor)
    if not torch.is_autocast_enabled(device):
        return run(*arguments, **named)
    with torch.autocast(device, enabled=False):
        return run(*arguments, **named)


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
    if tensors[0].is_cuda:
        return False
    if options.get("query_offsets") is not None:
        raise ValueError(f'mhla::{name}: save is "summaries", expected inputs: how many '
                         "summaries packed sequences have is not in their shape")
    return _needs_gradients(tensors)


def _needs_gradients(tensors):
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _form(name, tensors, weights, blocks, options):
    """The form of the kernels for a call: "cpu", or the form that the plan picks on CUDA."""
    if not tensors["q"].is_cuda:
        return "cpu"
    ask = getattr(torch.ops.mhla, name + "_form")
    left_out = kernels.around(tensors["q"], tensors["v"])
    if weights.keys() & left_out:  # PyTorch makes rows of q and k, and applies gain and gate
        left_out += "gain", "gate"
        tensors = {argument: t if argument == "v" else torch.empty_like(
            t, memory_format=torch.contiguous_format) for argument, t in tensors.items()}
    tensors, weights = ({argument: t for argument, t in given.items() if argument not in left_out}
                        for given in (tensors, weights))
    return ask(**tensors, **weights, **blocks, **options)


def _expect_one_device(name, q, arguments):
    """Refuses tensors on several devices: kernels of one device would read the memory of others."""
    for argument, tensor in arguments.items():
        if isinstance(tensor, torch.Tensor) and tensor.device != q.device:
            raise ValueError(f"mhla::{name}: {argument} is on {tensor.device}, expected "
                             f"{q.device} as q")


def _autocasts(tensor):
    """True for floating types except float64, which autocast does not cast."""
    return tensor.is_floating_point() and tensor.dtype is not torch.float64
