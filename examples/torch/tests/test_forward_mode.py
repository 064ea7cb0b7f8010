"""Forward mode and its composition with reverse mode, of all functions and modules."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vjp
from torch.utils._pytree import tree_leaves, tree_map

import mhla_torch

GRID, BLOCK, CHANNELS, HEADS = (4, 4), (2, 2), 8, 2
pytestmark = pytest.mark.filterwarnings("ignore::mhla_torch.FormulaWarning")


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


MAPS = {"feature_map": "elu_plus_one"}


def gated(q, k, v, mixing, gate):
    return mhla_torch.bidirectional(q, k, v, mixing * gate, block=(4,), **MAPS)


def learned_map(q, k, v, mixing, *maps):
    return mhla_torch.causal(q, k, v, mixing, block=4, feature_map="hedgehog",
                             query_map=maps[0], key_map=maps[1])


def turned(q, k, v, mixing, angles, gain, gate):
    return mhla_torch.causal(q, k, v, mixing, block=4, query_angles=angles, key_angles=angles,
                             gain=gain, gate=gate, normalizer="none", **MAPS)


def by_distance(q, k, v, table):
    mixing = mhla_torch.distance_matrix(table.exp(), (4,), causal=True)
    return mhla_torch.causal(q, k, v, mixing, block=4, **MAPS)


def decaying(q, k, v, terms):
    return mhla_torch.causal(q, k, v, terms.sigmoid(), block=4, decaying=True, **MAPS)


def steps(q, k, v, mixing):
    return mhla_torch.block_causal(q, k, v, mixing, block=(4,), step=2, **MAPS)


def stream(q, k, v, mixing):
    stream = mhla_torch.BlockStream(mixing, block=(4,), **MAPS)
    state = stream.start()
    pieces = zip(*(t.split(8, 1) for t in (q, k, v)))
    return torch.cat([stream.append(state, *piece) for piece in pieces], 1)


def linear(q, k, v):
    return mhla_torch.linear(q, k, v, **MAPS) + mhla_torch.linear(q, k, v, causal=True, **MAPS)


# Functions of q, k, v and further tensors of these shapes.
FUNCTIONS = {gated: ((4, 4), (2, HEADS, 4, 4)), learned_map: ((HEADS, 4, 4), (20,), (20,)),
             turned: ((4, 4), (16, 4), (4,), (2, 16, HEADS, 4)), by_distance: ((HEADS, 5),),
             decaying: ((2, 3),), steps: ((4, 4),), stream: ((4, 4),), linear: ()}
# Modules of x, or of more tensors.
MODULES = {
    "matrix": DiT, "offsets": lambda: DiT(offsets=(3, 3)),
    "cross_query": lambda: DiT(normalizer="cross_query", eps=1e-3),
    "vision": lambda: mhla_torch.Vision(CHANNELS, HEADS, GRID, BLOCK, "raster", qk_norm=True),
    "video": lambda: mhla_torch.Video(CHANNELS, HEADS, (2, 4, 2), (2, 2, 1), lepe=True),
    "language": lambda: mhla_torch.Language(CHANNELS, HEADS, 4, 4, "elu", convolution=2)}


@pytest.fixture(params=(*FUNCTIONS, *MODULES), ids=lambda case: getattr(case, "__name__", case))
def model(request):
    """A function of tensors, or of the parameters and inputs of a module, with a direction."""
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    case = request.param

    def normal(*shape):
        return torch.randn(shape, generator=draw, dtype=torch.float64)
    if case in FUNCTIONS:
        run = case
        inputs = [normal(2, 16, HEADS, 4) for _ in "qkv"]
        inputs += [1 + normal(*shape) / 8 for shape in FUNCTIONS[case]]
    else:
        module = MODULES[case]().double()
        inputs = [{name: p.detach() for name, p in module.named_parameters()},
                  normal(2, 16, CHANNELS)]
        inputs += [normal(2, CHANNELS)] * isinstance(module, DiT)

        def run(parameters, *tensors):
            return functional_call(module, parameters, tensors)
    return run, inputs, [random_like(x, draw) for x in inputs]


def test_jvp_is_the_derivative(model):
    run, inputs, tangents = model
    out, derivative = jvp(run, tuple(inputs), tuple(tangents))
    torch.testing.assert_close(out, run(*inputs))
    exact = difference(run, inputs, tangents)
    assert (derivative - exact).norm() <= 1e-7 * exact.norm()
    with forward_ad.dual_level():
        duals = tree_map(forward_ad.make_dual, inputs, tangents)
        torch.testing.assert_close(forward_ad.unpack_dual(run(*duals)).tangent, derivative)


def test_jvp_of_a_gradient_is_the_product_with_the_hessian(model):
    run, inputs, tangents = model
    slopes = grad(lambda *inputs: run(*inputs).square().sum(), argnums=tuple(range(len(inputs))))
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
