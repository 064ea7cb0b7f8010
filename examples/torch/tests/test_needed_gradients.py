"""A backward computes the gradients that autograd needs, with the bits that all of them have."""

import functools

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode

import cuda_calls
import test_operators
from mhla_torch.registration import DIFFERENTIATED
from test_emulated import run
from test_feature_maps import weights_of

KINDS = test_operators.KINDS
FEW = ((0,), (1,), (2,), (3,), (0, 2), (0, 1, 2), (1, 3))  # of q, k, v and the mixing matrix


class Computed(TorchDispatchMode):
    """Collects the names of the gradients that backwards compute."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        if function.namespace == "mhla" and "_backward" in function.name():
            self.names += [name for name, t in zip(DIFFERENTIATED, results) if t.numel()]
        return results


def expect_needed_gradients(call, kind, tensors, options, floats=()):
    """Differentiates with respect to some of the tensors, and of the options `floats`."""
    names = ("q", "k", "v", "mixing", *floats)
    values = [*tensors, *(options[name] for name in floats)]
    used = [i for i in range(len(values)) if i != 3 or not kind.startswith("linear")]

    def gradients(needed):
        leaves = [t.detach().clone().requires_grad_(i in needed) for i, t in enumerate(values)]
        out = call(kind, *leaves[:4], **(options | dict(zip(floats, leaves[4:]))))
        with Computed() as computed:
            found = torch.autograd.grad(out.sum(), [leaves[i] for i in needed])
        assert computed.names == [names[i] for i in needed]
        return dict(zip(needed, found))

    everything = gradients(used)
    for few in (*FEW, *((i,) for i in range(4, len(values)))):
        needed = [i for i in few if i in used]
        if needed:
            assert all(torch.equal(t, everything[i]) for i, t in gradients(needed).items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("save", ("inputs", "summaries"))
def test_on_the_cpu(kind, save):
    options = {} if kind.startswith("linear") else {"save": save}
    tensors = test_operators.tensors()
    expect_needed_gradients(test_operators.call, kind, tensors, options)
    own = dict(zip(("normalizer_q", "normalizer_k"), test_operators.tensors(seed=1)[:2]))
    expect_needed_gradients(test_operators.call, kind, tensors, options | own, tuple(own))


@pytest.mark.parametrize("kind", KINDS)
def test_of_learned_feature_maps(kind):
    maps = weights_of("hedgehog", True)
    expect_needed_gradients(test_operators.call, kind, test_operators.tensors(),
                            {"feature_map": "hedgehog", **maps}, tuple(maps))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", (24, 280))
@pytest.mark.usefixtures("emulated")
def test_of_emulated_kernels_for_cuda(kind, tokens):
    made = cuda_calls.extras(tokens=(tokens, tokens), heads=1)
    more = {name: made[name] for name in ("gain", "gate")}
    tensors = cuda_calls.tensors(tokens=(tokens, tokens), heads=1)
    expect_needed_gradients(run, kind, tensors, {})
    expect_needed_gradients(run, kind, tensors, more, tuple(more))


def test_in_a_compiled_function():
    graphs = []
    backend = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph),
                           bw_compiler=lambda graph, _: (graphs.append(graph) or
                                                            make_boxed_func(graph)))
    torch.compiler.reset()
    call = functools.partial(test_operators.call, "causal")
    q, k, v, mixing = test_operators.tensors()
    leaves = [q.requires_grad_(), k, v.requires_grad_(), mixing]
    ours, theirs = (torch.autograd.grad(f(*leaves).sum(), [q, v])
                    for f in (torch.compile(call, fullgraph=True, backend=backend), call))
    assert all(map(torch.equal, ours, theirs))
    operator = torch.ops.mhla.causal_backward.default
    node, = (node for node in graphs[0].graph.nodes if node.target is operator)
    assert node.args[-1] == 0b1111111010  # unwanted
