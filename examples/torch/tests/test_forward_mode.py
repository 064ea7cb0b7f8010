"""Forward mode and its composition with reverse mode, of a whole diffusion transformer."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vjp
from torch.utils._pytree import tree_leaves, tree_map

import mhla_torch

GRID, BLOCK, CHANNELS, HEADS = (4, 4), (2, 2), 8, 2


class Block(nn.Module):
    """A DiT block: shift, scale and gate of both branches follow from the condition."""

    def __init__(self, **options):
        super().__init__()
        self.modulation = nn.Linear(CHANNELS, 6 * CHANNELS)
        self.norm = nn.LayerNorm(CHANNELS, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(CHANNELS, 3 * CHANNELS), nn.Linear(CHANNELS, CHANNELS)
        self.attention = mhla_torch.MHLA(GRID, BLOCK, feature_map="elu_plus_one", **options)
        self.mlp = nn.Sequential(nn.Linear(CHANNELS, 2 * CHANNELS), nn.GELU(),
                                 nn.Linear(2 * CHANNELS, CHANNELS))

    def forward(self, x, c):
        shift, scale, gate, *second = self.modulation(nn.functional.silu(c))[:, None].chunk(6, -1)
        n = self.norm(x) * (1 + scale) + shift
        q, k, v = self.qkv(n).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + gate * self.proj(self.attention(q, k, v).transpose(1, 2).flatten(2))
        shift, scale, gate = second
        return x + gate * self.mlp(self.norm(x) * (1 + scale) + shift)


class DiT(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.blocks = nn.ModuleList(Block(**options) for _ in range(2))

    def forward(self, x, c):
        for block in self.blocks:
            x = block(x, c)
        return x


def difference(f, inputs, tangents, h=1e-6):
    """The central difference of f along tangents."""
    ahead, behind = (f(*(tree_map(lambda x, t: x + s * h * t, x, t)
                         for x, t in zip(inputs, tangents))) for s in (1, -1))
    return tree_map(lambda a, b: (a - b) / (2 * h), ahead, behind)


def random_like(tree, draw):
    return tree_map(
        lambda x: torch.randn(x.shape, generator=draw, dtype=x.dtype), tree)


@pytest.fixture(params=({}, {"offsets": (3, 3)}, {"normalizer": "cross_query", "eps": 1e-3}),
                ids=("matrix", "offsets", "cross_query"))
def model(request):
    """A DiT as a function of parameters, images and conditions, with inputs and a direction."""
    torch.manual_seed(0)
    dit = DiT(backend="formula", **request.param).double()
    draw = torch.Generator().manual_seed(1)
    parameters = {name: p.detach() for name, p in dit.named_parameters()}
    inputs = [parameters, *(torch.randn(2, *shape, generator=draw, dtype=torch.float64)
                            for shape in ((16, CHANNELS), (CHANNELS,)))]

    def run(parameters, x, c):
        return functional_call(dit, parameters, (x, c))
    return run, inputs, [random_like(x, draw) for x in inputs]


def test_jvp_is_the_derivative(model):
    run, inputs, tangents = model
    out, derivative = jvp(run, tuple(inputs), tuple(tangents))
    assert out.equal(run(*inputs))
    exact = difference(run, inputs, tangents)
    assert (derivative - exact).norm() <= 1e-7 * exact.norm()
    with forward_ad.dual_level():
        duals = tree_map(forward_ad.make_dual, inputs, tangents)
        torch.testing.assert_close(forward_ad.unpack_dual(run(*duals)).tangent, derivative)


def test_jvp_of_a_gradient_is_the_product_with_the_hessian(model):
    run, inputs, tangents = model
    slopes = grad(lambda *inputs: run(*inputs).square().sum(), argnums=(0, 1, 2))
    product = jvp(slopes, tuple(inputs), tuple(tangents))[1]
    exact = difference(slopes, inputs, tangents)
    for a, b in zip(*(tree_leaves(t) for t in (product, exact))):
        assert (a - b).norm() <= 1e-6 * max(1, b.norm())


def test_jvp_is_the_transpose_of_vjp(model):
    run, inputs, tangents = model
    out, back = vjp(run, *inputs)
    weights = random_like(out, torch.Generator().manual_seed(2))
    pairs = zip(*(tree_leaves(t) for t in (back(weights), tangents)))
    by_reverse = sum((slope * tangent).sum() for slope, tangent in pairs)
    by_forward = (jvp(run, tuple(inputs), tuple(tangents))[1] * weights).sum()
    torch.testing.assert_close(by_forward, by_reverse)
