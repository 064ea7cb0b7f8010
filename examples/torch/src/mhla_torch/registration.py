"""Registers shapes for tracing and gradients of the operators with torch.library."""

import torch

from mhla_torch import formula
from mhla_torch.block_sizes import block_counts

DIFFERENTIATED = ("q", "k", "v", "mixing", "normalizer_q", "normalizer_k", "query_map", "key_map",
                  "gain", "gate")


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
    q, k, v, separate = (named[name] for name in ("q", "k", "v", "normalizer_k"))
    wider = 2 if named["feature_map"] == "hedgehog" else 1
    features, sums = (wider * int(t.shape[-1]) for t in (k, k if separate is None else separate))
    size = torch.ops.mhla.summary_bytes(features, int(v.shape[-1]), sums, q.dtype is torch.float64)
    batch, heads = q.shape[0], q.shape[1 if named["layout"] == "bhnd" else 2]
    return q.new_empty(batch, heads, blocks, size, dtype=torch.uint8)


ARGUMENTS = {}  # operator: its arguments in order, with their defaults
RECORDED = {}  # operator: the function that records it for autograd


def _recorded(operator, save, differentiate):
    """An operator with its gradient for eager mode. The gradient of register_autograd takes 0.3 ms
    per call to name the arguments.
    """
    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *values):
            output = operator(*values)  # heads first it is a view, which autograd lets nobody change
            output = (output.detach() if isinstance(output, torch.Tensor) else
                      tuple(t.detach() for t in output))
            save(ctx, values, output)
            ctx.set_materialize_grads(False)  # zeros for summaries
            return output

        @staticmethod
        def backward(ctx, *gradients):
            return differentiate(ctx, *gradients)

    return Recorded


def _register(name, keeps):
    """Registers shapes and gradients of the operator mhla::name, and of the operator that keeps
    summaries. In transforms of torch.func the operator is its formula.
    """
    forward = getattr(torch.ops.mhla, name).default
    backward = getattr(torch.ops.mhla, name + "_backward").default
    names = [argument.name for argument in forward._schema.arguments]
    gain, angles, normalizer = map(names.index, ("gain", "query_angles", "normalizer"))

    def output(*args, **kwargs):
        named = _named(forward, args, kwargs)
        return _dense(named["q"], named["v"].shape[-1], named["layout"])

    def output_and_kept(*args, **kwargs):
        named = _named(forward, args, kwargs)
        return output(*args, **kwargs), _kept(named, block_counts(named)[1])

    def gradients(*args, **kwargs):
        named = _named(backward, args, kwargs)

        def of(bit, argument):
            if named.get(argument) is None or named["unwanted"] >> bit & 1:
                return named["q"].new_empty(0)
            if argument in ("mixing", "query_map", "key_map", "gain"):
                return torch.empty_like(named[argument], memory_format=torch.contiguous_format)
            return _dense(named[argument], named[argument].shape[-1], named["layout"])

        return tuple(of(bit, argument) for bit, argument in enumerate(DIFFERENTIATED))

    def save(ctx, inputs, output):
        out, *kept = (output,) if isinstance(output, torch.Tensor) else output
        values = (*inputs, *kept)
        ctx.has_out = out.is_cuda and inputs[gain] is None and inputs[normalizer] != "none"
        if ctx.has_out:
            values = (*values, out)  # which the backward there reads
        tensors = [isinstance(value, torch.Tensor) for value in values]
        ctx.save_for_backward(*(value for value, is_tensor in zip(values, tensors) if is_tensor))
        ctx.tensors = tensors
        ctx.others = [None if is_tensor else value for value, is_tensor in zip(values, tensors)]

    def differentiate(ctx, dout, *_):
        if any(ctx.needs_input_grad[angles:angles + 2]):
            raise RuntimeError(f"mhla::{name}_backward: query_angles or key_angles requires a "
                               'gradient, expected none: backend="formula" has it')
        if dout is None:
            return (None,) * len(names)
        saved = iter(ctx.saved_tensors)
        values = [next(saved) if is_tensor else other
                  for other, is_tensor in zip(ctx.others, ctx.tensors)]
        out = {"out": values.pop()} if ctx.has_out else {}
        needed = {argument for argument, is_needed in zip(names, ctx.needs_input_grad) if is_needed}
        unwanted = sum(1 << bit for bit, argument in enumerate(DIFFERENTIATED)
                       if argument not in needed)
        computed = dict(zip(DIFFERENTIATED, backward(dout, *values, **out, unwanted=unwanted)))
        return tuple(computed[argument] if argument in needed else None for argument in names)

    def refuse(ctx, *_):
        raise RuntimeError(f"mhla::{name}_backward: has been differentiated, expected not to be: "
                           'kernels have no second derivatives, backend="formula" has them')

    def transformed(*args, **kwargs):
        return getattr(formula, name)(**_named(forward, args, kwargs))

    shapes = {name: output, name + "_backward": gradients}
    derivatives = {name: differentiate}
    if keeps:
        shapes[name + "_kept"], derivatives[name + "_kept"] = output_and_kept, differentiate
    for operator, shape in shapes.items():
        torch.library.register_fake(f"mhla::{operator}", shape)
    torch.library.register_fake(f"mhla::{name}_form", lambda *_, **__: "kernels")
    for operator, derivative in derivatives.items():
        torch.library.register_autograd(f"mhla::{operator}", derivative, setup_context=save)
        RECORDED[operator] = _recorded(getattr(torch.ops.mhla, operator).default, save, derivative)
        ARGUMENTS[operator] = {argument.name: argument.default_value for argument in
                                getattr(torch.ops.mhla, operator).default._schema.arguments}
    torch.library.register_autograd(f"mhla::{name}_backward", refuse)
    torch.library.impl(f"mhla::{name}", "FuncTorchDynamicLayerFrontMode", transformed)


def _register_streams():
    """Registers shapes of the operators that decode. They have no gradients."""
    def output(state, q, k, v, *_, **__):
        return q.new_empty(*q.shape[:3], v.shape[3])

    for name in ("stream_prefill", "stream_step"):
        torch.library.register_fake(f"mhla::{name}", output)


def register():
    """Registers all operators; their library has to be loaded."""
    _register_streams()
    for name, keeps in (("bidirectional", True), ("causal", True), ("linear", False)):
        _register(name, keeps)
