"""The operators of the library as functions of tensors, with gradients and shapes for tracing.

q [B,N,H,D], k [B,N,H,D] and v [B,N,H,E], or (layout "bhnd") [B,H,N,.], lie at any strides: slices
of a packed qkv are read where they are. The output has the layout of q; in memory it is [B,N,H,E],
so that merging its heads copies nothing. All functions take, by name:

    feature_map    "relu" (max(x, 0) + 1e-6), "elu_plus_one", "identity" or "exp"
    normalizer     "key_sum", "none" or "cross_query" (not causal), with eps added to the sums
    scale          of the queries
    normalizer_q, normalizer_k     queries and keys of the denominator, if it has its own
    query_mask, key_mask           bool [B,N]: False tokens take no part
    query_offsets, key_offsets     int64 [S + 1]: S sequences packed into B = 1

Types: float32, float64, bfloat16 and float16; 16 bit tensors have float32 sums. The mixing matrix
[M,M] takes part in float32, beside float64 tensors in float64, also under autocast. On CUDA there
are forwards of bfloat16 and float16 with (D, E) of (64, 64), (72, 72), (128, 128) and (128, 256),
of relu, elu_plus_one and identity, without masks, packed sequences, a prefix or a denominator's own
queries and keys; rows lie dense and begin at multiples of 16 bytes. Nothing but the
inputs is saved for the backward: it computes the summaries again. There are no second derivatives
and no forward-mode ones. ValueError or RuntimeError says what was expected and what came.
"""

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


def bidirectional(q, k, v, mixing, *, grid=(), block, prefix=0, **options):
    """Every query reads every key; cost 4 B H N D E + 2 B H M^2 D E flops. -> [B,N,H,E]

    grid, block: tokens along one to three axes, in raster order, and those of a block; without a
    grid, a sequence of any length in blocks of block[0], which uses the leading part of mixing.
    prefix: tokens before these, such as a class token: the first block.
    """
    blocks = (list(grid), list(block), prefix)
    return _call(torch.ops.mhla.bidirectional.default, q, k, v, mixing, *blocks, **options)


def causal(q, k, v, mixing, *, block, **options):
    """A token reads itself and the past, in blocks of `block` tokens. -> [B,N,H,E]

    mixing: at least [M,M], of which the lower triangle is read.
    """
    return _call(torch.ops.mhla.causal.default, q, k, v, mixing, block, **options)


def linear(q, k, v, *, causal=False, **options):
    """Plain linear attention: MHLA with one block. -> [B,N,H,E]"""
    return _call(torch.ops.mhla.linear.default, q, k, v, None, causal, **options)


_NAMES = ("q", "k", "v", "normalizer_q", "normalizer_k")


def _call(operator, q, k, v, mixing, *blocks, normalizer_q=None, normalizer_k=None, **options):
    """Calls an operator with tensors of the types that it takes."""
    tensors = (q, k, v, normalizer_q, normalizer_k)
    for name, tensor in zip(_NAMES, tensors):
        if tensor is not None and not (tensor.is_cpu or tensor.is_meta):
            _expect_kernels(operator, name, tensor)
    if not torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        _refuse_tangents(operator, tensors)
    device = "cuda" if q.is_cuda else "cpu"
    if device == "cuda":
        _refuse_gradients(operator, tensors, mixing)
    if torch.is_autocast_enabled(device):
        low = torch.get_autocast_dtype(device)
        tensors = [t.to(low) if t is not None and _autocasts(t) else t for t in tensors]
    if mixing is not None:
        blocks = (mixing.to(torch.float64 if q.dtype is torch.float64 else torch.float32), *blocks)
    q, k, v, normalizer_q, normalizer_k = tensors
    return operator(q, k, v, *blocks, normalizer_q=normalizer_q, normalizer_k=normalizer_k,
                    **options)


def _expect_kernels(operator, name, tensor):
    """Refuses a tensor of a device that nothing was built for."""
    if not tensor.is_cuda:
        raise ValueError(f"{operator.name()}: {name} is on {tensor.device}, expected cpu or cuda")
    if _WITHOUT_CUDA:
        raise ValueError(f"{operator.name()}: {name} is on {tensor.device}, but {_WITHOUT_CUDA}")


def _refuse_gradients(operator, tensors, mixing):
    """On CUDA there is a forward alone."""
    if torch.is_grad_enabled():
        for name, tensor in zip((*_NAMES, "mixing"), (*tensors, mixing)):
            if tensor is not None and tensor.requires_grad:
                raise RuntimeError(f"{operator.name()}: {name} requires a gradient, expected none: "
                                   "there are no gradients on CUDA yet (torch.no_grad())")


def _refuse_tangents(operator, tensors):
    """PyTorch would go on with tangents of zero."""
    for name, tensor in zip(_NAMES, tensors):
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


def _register(name):
    """Shapes and gradients of the operator mhla::name."""
    forward = getattr(torch.ops.mhla, name).default
    backward = getattr(torch.ops.mhla, name + "_backward").default
    names = [argument.name for argument in forward._schema.arguments]

    def output(*args, **kwargs):
        named = _named(forward, args, kwargs)
        return _dense(named["q"], named["v"].shape[-1], named["layout"])

    def gradients(*args, **kwargs):
        named = _named(backward, args, kwargs)

        def of(argument):
            if named.get(argument) is None:
                return named["q"].new_empty(0)
            if argument == "mixing":
                return torch.empty_like(named[argument], memory_format=torch.contiguous_format)
            return _dense(named[argument], named[argument].shape[-1], named["layout"])

        return tuple(of(argument)
                     for argument in ("q", "k", "v", "mixing", "normalizer_q", "normalizer_k"))

    def save(ctx, inputs, output):
        tensors = [isinstance(value, torch.Tensor) for value in inputs]
        ctx.save_for_backward(*(value for value, is_tensor in zip(inputs, tensors) if is_tensor))
        ctx.tensors = tensors
        ctx.others = [None if is_tensor else value for value, is_tensor in zip(inputs, tensors)]

    def differentiate(ctx, dout):
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if is_tensor else other
                  for other, is_tensor in zip(ctx.others, ctx.tensors)]
        computed = dict(zip(("q", "k", "v", "mixing", "normalizer_q", "normalizer_k"),
                            backward(dout, *inputs)))
        return tuple(computed.get(argument) if value is not None else None
                     for argument, value in zip(names, inputs))

    def refuse(ctx, *_):
        raise RuntimeError(f"mhla::{name}_backward: has been differentiated, expected not to be: "
                           "there are no second derivatives")

    torch.library.register_fake(f"mhla::{name}", output)
    torch.library.register_fake(f"mhla::{name}_backward", gradients)
    torch.library.register_autograd(f"mhla::{name}", differentiate, setup_context=save)
    torch.library.register_autograd(f"mhla::{name}_backward", refuse)


for _name in ("bidirectional", "causal", "linear"):
    _register(_name)
