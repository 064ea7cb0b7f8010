"""The operators of the library as functions of tensors, with gradients and shapes for tracing.

q [B,N,H,D], k [B,N,H,D] and v [B,N,H,E], or (layout "bhnd") [B,H,N,.], lie at any strides: slices
of a packed qkv are read where they are. The output has the layout of q; in memory it is [B,N,H,E],
so that merging its heads copies nothing. All functions take, by name:

    feature_map    "relu" (max(x, 0) + 1e-6), "elu_plus_one", "identity" or "exp"; with weights
                   "hedgehog" (softmax of [2 y, -2 y], y = W x + b), "t2r" (max(W x, 0)) or
                   "elementwise_product" ((W1 x + b1) (W2 x + b2))
    query_map, key_map    those weights, one after another: [D D] (W), [D D + D] (W, b) or, of two
                   layers, twice that
    normalizer     "key_sum", "none" or "cross_query" (not causal), with eps added to the sums
    scale          of the queries
    normalizer_q, normalizer_k     queries and keys of the denominator, if it has its own
    query_mask, key_mask           bool [B,N]: False tokens take no part
    query_offsets, key_offsets     int64 [S + 1]: S sequences packed into B = 1

and all but linear
    save           what a forward leaves for the backward: its "inputs", or the "summaries" of the
                   blocks too, B H M D (E + 1) sums, which the backward then need not compute again

Types: float32, float64, bfloat16 and float16; 16 bit tensors have float32 sums. The mixing matrix
[M,M] and the weights of feature maps take part in float32, beside float64 tensors in float64, also
under autocast. On CUDA there are forwards of bfloat16 and float16 with (D, E) of (64, 64), (72, 72),
(128, 128) and (128, 256), of relu, elu_plus_one and identity, without masks, packed sequences, a
prefix or a denominator's own queries and keys; rows lie dense and begin at multiples of 16 bytes.
There are no second derivatives and no forward-mode ones. ValueError or RuntimeError says what was
expected and what came.
"""

import math
from pathlib import Path

import torch
from torch.autograd import forward_ad

from mhla_torch import built

torch.ops.load_library(Path(__file__).with_name("libmhla_torch.so"))


def _load_cuda():
    """Loads the kernels for CUDA. -> why there are none, or nothing"""
    if built.WITHOUT_CUDA:
        return f"this mhla_torch was built without CUDA ({built.WITHOUT_CUDA})"
    of_torch = torch.version.cuda
    if of_torch is None or of_torch.split(".")[0] != built.CUDA.split(".")[0]:
        return f"this mhla_torch was built for CUDA {built.CUDA}, and PyTorch for {of_torch}"
    torch.ops.load_library(Path(__file__).with_name("libmhla_torch_cuda.so"))
    return ""


_WITHOUT_CUDA = _load_cuda()


def cuda_built():
    """Whether there are kernels for CUDA; there need not be a device."""
    return not _WITHOUT_CUDA


def locality(blocks, columns=False):
    """The mixing matrix [M,M] (float64) to start from: near blocks weigh more.

    blocks: blocks along each axis. Rows sum to 1, or columns, as in the released vision models.
    """
    return torch.ops.mhla.locality(blocks, columns)


def bidirectional(q, k, v, mixing, *, grid=(), block, prefix=0, save="inputs", **options):
    """Every query reads every key; cost 4 B H N D E + 2 B H M^2 D E flops. -> [B,N,H,E]

    grid, block: tokens along one to three axes, in raster order, and those of a block; without a
    grid, a sequence of any length in blocks of block[0], which uses the leading part of mixing.
    prefix: tokens before these, such as a class token: the first block.
    """
    blocks = (list(grid), list(block), prefix)
    return _call("bidirectional", save, q, k, v, mixing, *blocks, **options)


def causal(q, k, v, mixing, *, block, save="inputs", **options):
    """A token reads itself and the past, in blocks of `block` tokens. -> [B,N,H,E]

    mixing: at least [M,M], of which the lower triangle is read.
    """
    return _call("causal", save, q, k, v, mixing, block, **options)


def linear(q, k, v, *, causal=False, **options):
    """Plain linear attention: MHLA with one block. -> [B,N,H,E]"""
    return _call("linear", "inputs", q, k, v, None, causal, **options)


def sums_of(dtype):
    """The type of sums of tensors."""
    return torch.float64 if dtype is torch.float64 else torch.float32


_NAMES = ("q", "k", "v", "normalizer_q", "normalizer_k")
_PARAMETERS = ("mixing", "query_map", "key_map")
_DIFFERENTIATED = ("q", "k", "v", "mixing", "normalizer_q", "normalizer_k", "query_map", "key_map")


def _call(name, save, q, k, v, mixing, *blocks, normalizer_q=None, normalizer_k=None,
          query_map=None, key_map=None, **options):
    """Calls an operator with tensors of the types that it takes."""
    operator = getattr(torch.ops.mhla, name).default
    tensors = (q, k, v, normalizer_q, normalizer_k)
    parameters = (mixing, query_map, key_map)
    if not (q.is_cpu or q.is_meta):
        _expect_kernels(operator, "q", q)
    _expect_one_device(operator, q, dict(zip((*_NAMES, *_PARAMETERS), (*tensors, *parameters)))
                       | options)
    if forward_ad._current_level >= 0:
        _refuse_tangents(operator, (*tensors, *parameters))
    device = "cuda" if q.is_cuda else "cpu"
    if device == "cuda":
        _refuse_gradients(operator, (*tensors, *parameters))
    keep = save != "inputs" and _keeps(operator, save, (*tensors, *parameters), options)
    if torch.is_autocast_enabled(device):
        low = torch.get_autocast_dtype(device)
        tensors = [t.to(low) if t is not None and _autocasts(t) else t for t in tensors]
    q, k, v, normalizer_q, normalizer_k = tensors
    sums = sums_of(q.dtype)
    if mixing is not None:
        blocks = (mixing if mixing.dtype is sums else mixing.to(sums), *blocks)
    if query_map is not None:
        options["query_map"] = query_map.to(sums)
    if key_map is not None:
        options["key_map"] = key_map.to(sums)
    if keep:
        operator = getattr(torch.ops.mhla, name + "_kept").default
    if normalizer_q is not None or normalizer_k is not None:
        options |= {"normalizer_q": normalizer_q, "normalizer_k": normalizer_k}
    out = operator(q, k, v, *blocks, **options)
    return out[0] if keep else out


def _keeps(operator, save, tensors, options):
    """Whether a call with save="summaries" has a backward to keep them for."""
    if save != "summaries":
        raise ValueError(f'{operator.name()}: save is "{save}", expected inputs or summaries')
    if options.get("query_offsets") is not None:
        raise ValueError(f'{operator.name()}: save is "summaries", expected inputs: how many '
                         "summaries packed sequences have is not in their shape")
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _expect_kernels(operator, name, tensor):
    """Refuses a tensor of a device that nothing was built for."""
    if not tensor.is_cuda:
        raise ValueError(f"{operator.name()}: {name} is on {tensor.device}, expected cpu or cuda")
    if _WITHOUT_CUDA:
        raise ValueError(f"{operator.name()}: {name} is on {tensor.device}, but {_WITHOUT_CUDA}")


def _expect_one_device(operator, q, arguments):
    """Without it an operator is run by the device of one of them, on the memory of all."""
    for name, tensor in arguments.items():
        if isinstance(tensor, torch.Tensor) and tensor.device != q.device:
            raise ValueError(f"{operator.name()}: {name} is on {tensor.device}, expected "
                             f"{q.device} as q")


def _refuse_gradients(operator, tensors):
    """On CUDA there is a forward alone."""
    if torch.is_grad_enabled():
        for name, tensor in zip((*_NAMES, *_PARAMETERS), tensors):
            if tensor is not None and tensor.requires_grad:
                raise RuntimeError(f"{operator.name()}: {name} requires a gradient, expected none: "
                                   "there are no gradients on CUDA yet (torch.no_grad())")


def _refuse_tangents(operator, tensors):
    """PyTorch would go on with tangents of zero."""
    for name, tensor in zip((*_NAMES, *_PARAMETERS), tensors):
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise RuntimeError(f"{operator.name()}: {name} has a tangent, expected none: "
                               "there are no forward-mode derivatives")


def _autocasts(tensor):
    """Autocast leaves float64 and all that is not floating alone."""
    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def _named(operator, args, kwargs):
    """The arguments of a call by name, with the defaults of the schema."""
    schema = operator._schema.arguments
    named = {argument.name: argument.default_value for argument in schema}
    return named | {argument.name: value for argument, value in zip(schema, args)} | kwargs


def _dense(like, width, layout):
    """A new tensor with the tokens and heads of `like`, [B,N,H,width] in memory."""
    if layout == "bhnd":
        batch, heads, tokens, _ = like.shape
        return like.new_empty(batch, tokens, heads, width).transpose(1, 2)
    return like.new_empty(*like.shape[:3], width)


def _kept(named, blocks):
    """The summaries of so many blocks of keys.   # uint8 [B,H,M,bytes]"""
    q, k, v, own = (named[name] for name in ("q", "k", "v", "normalizer_k"))
    wider = 2 if named["feature_map"] == "hedgehog" else 1
    features, sums = (wider * int(t.shape[-1]) for t in (k, k if own is None else own))
    size = torch.ops.mhla.summary_bytes(features, int(v.shape[-1]), sums, q.dtype is torch.float64)
    batch, heads = q.shape[0], q.shape[1 if named["layout"] == "bhnd" else 2]
    return q.new_empty(batch, heads, blocks, size, dtype=torch.uint8)


def _key_blocks(named):
    """Blocks that the keys of a call of bidirectional or causal are in."""
    def count(tokens, width):
        return (tokens + width - 1) // width

    tokens = named["k"].shape[2 if named["layout"] == "bhnd" else 1]
    if "grid" not in named:
        return count(tokens, named["block"])
    prefix, grid, block = named["prefix"], named["grid"], named["block"]
    sizes = zip(grid, block) if grid else [(tokens - prefix, block[0])]
    return math.prod(count(n, w) for n, w in sizes) + (prefix > 0)


def _register(name, keeps):
    """Shapes and gradients of the operator mhla::name, and of the one that keeps summaries."""
    forward = getattr(torch.ops.mhla, name).default
    backward = getattr(torch.ops.mhla, name + "_backward").default
    names = [argument.name for argument in forward._schema.arguments]

    def output(*args, **kwargs):
        named = _named(forward, args, kwargs)
        return _dense(named["q"], named["v"].shape[-1], named["layout"])

    def output_and_kept(*args, **kwargs):
        named = _named(forward, args, kwargs)
        return output(*args, **kwargs), _kept(named, _key_blocks(named))

    def gradients(*args, **kwargs):
        named = _named(backward, args, kwargs)

        def of(argument):
            if named.get(argument) is None:
                return named["q"].new_empty(0)
            if argument in ("mixing", "query_map", "key_map"):
                return torch.empty_like(named[argument], memory_format=torch.contiguous_format)
            return _dense(named[argument], named[argument].shape[-1], named["layout"])

        return tuple(of(argument) for argument in _DIFFERENTIATED)

    def save(ctx, inputs, output):
        values = inputs if isinstance(output, torch.Tensor) else (*inputs, output[1])
        tensors = [isinstance(value, torch.Tensor) for value in values]
        ctx.save_for_backward(*(value for value, is_tensor in zip(values, tensors) if is_tensor))
        ctx.tensors = tensors
        ctx.others = [None if is_tensor else value for value, is_tensor in zip(values, tensors)]

    def differentiate(ctx, dout, *_):
        saved = iter(ctx.saved_tensors)
        values = [next(saved) if is_tensor else other
                  for other, is_tensor in zip(ctx.others, ctx.tensors)]
        computed = dict(zip(_DIFFERENTIATED, backward(dout, *values)))
        return tuple(computed.get(argument) if value is not None else None
                     for argument, value in zip(names, values))

    def refuse(ctx, *_):
        raise RuntimeError(f"mhla::{name}_backward: has been differentiated, expected not to be: "
                           "there are no second derivatives")

    shapes = {name: output, name + "_backward": gradients}
    derivatives = {name: differentiate, name + "_backward": refuse}
    if keeps:
        shapes[name + "_kept"], derivatives[name + "_kept"] = output_and_kept, differentiate
    for operator, shape in shapes.items():
        torch.library.register_fake(f"mhla::{operator}", shape)
    for operator, derivative in derivatives.items():
        torch.library.register_autograd(f"mhla::{operator}", derivative, setup_context=save)


for _name, _keep in (("bidirectional", True), ("causal", True), ("linear", False)):
    _register(_name, _keep)
