"""Layers and models on a CUDA device: against the CPU, and in training.

All tests are skipped without a device.
"""

import copy

import pytest
import torch

import mhla_torch
from cuda_calls import LAYERS, on_device
from tiny_vit import TinyViT


@on_device
@pytest.mark.parametrize("make, channels, kind", (
    *((*layer, torch.bfloat16) for layer in LAYERS),
    *((*layer, torch.float32) for layer in LAYERS[:4])), ids=range(len(LAYERS) + 4))
def test_layers_equal_the_cpu(make, channels, kind):
    """Outputs and gradients of layers by the kernels, and on the CPU in float64."""
    torch.manual_seed(0)
    layer = make()
    x = torch.randn(2, 64, channels)
    results, most = [], 5e-2 if kind is torch.bfloat16 else 5e-3
    for device, dtype, layer.backend in (("cuda", kind, "kernels"),
                                         ("cpu", torch.float64, "formula")):
        layer.to(device, dtype).zero_grad()
        out = layer(x.to(device, dtype))
        out.double().sin().sum().backward()
        results.append([t.detach().cpu().double() for t in
                        (out, *(p.grad for p in layer.parameters()))])
    for ours, exact in zip(*results):
        assert (ours - exact).norm() < most * exact.norm() + 1e-6


def a_step(model, x):
    """Makes one step of an optimiser under autocast; expects finite gradients of all parameters."""
    with torch.autocast("cuda", torch.bfloat16):
        out = model(x)
    out.float().square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name
    torch.optim.SGD(model.parameters(), lr=0.01).step()


class Attention(torch.nn.Module):
    """MHLA between projections, heads first."""

    def __init__(self, width=64, heads=2, **options):
        super().__init__()
        self.qkv = torch.nn.Linear(32, 3 * heads * width)
        self.heads, self.attention = heads, mhla_torch.MHLA(**options)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.attention(q, k, v).transpose(1, 2).flatten(2)


@on_device
@pytest.mark.filterwarnings("ignore::mhla_torch.FormulaWarning")
@pytest.mark.parametrize("make, tokens", (
    (lambda: Attention(tokens=(8, 8), block=(4, 4)), 64),
    (lambda: Attention(tokens=(8, 8), block=(4, 4), prefix=1), 65),
    (lambda: Attention(tokens=64, block=16, causal=True), 64),
    (lambda: Attention(width=24, tokens=64, block=16, causal=True), 64),
    (lambda: mhla_torch.Vision(32, 2, (8, 8), (4, 4), "raster", qk_norm=True), 64),
    (lambda: mhla_torch.Video(32, 2, (4, 4, 4), (2, 2, 2), lepe=True), 64),
    (lambda: mhla_torch.Language(32, 2, 16, 4, convolution=4), 64)),
    ids=("MHLA", "prefix", "causal", "narrow", "Vision", "Video", "Language"))
def test_trains(make, tokens):
    torch.manual_seed(0)
    model = make().cuda()
    for _ in range(2):
        model.zero_grad()
        a_step(model, torch.randn(2, tokens, 32, device="cuda"))


@on_device
@pytest.mark.parametrize("make, channels", LAYERS, ids=range(len(LAYERS)))
def test_layers_train_by_kernels(make, channels):
    torch.manual_seed(0)
    model = make().cuda()
    model.backend = "kernels"
    for _ in range(2):
        model.zero_grad()
        a_step(model, torch.randn(2, 64, channels, device="cuda"))


@on_device
@pytest.mark.filterwarnings("ignore::mhla_torch.FormulaWarning")
@pytest.mark.parametrize("class_token", (False, True))
def test_lowers_a_loss(class_token):
    torch.manual_seed(0)
    model = mhla_torch.replace_attention(
        TinyViT(size=16, channels=128, class_token=class_token), block=(4, 4)).cuda()
    images = torch.randn(32, 1, 16, 16, device="cuda")
    labels = torch.arange(32, device="cuda") % 10
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(40):
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for module in model.modules():
            if isinstance(module, mhla_torch.MHLA):
                module.constrain_()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0], losses


# ---- decoding -----------------------------------------------------------------------------------

def language(**options):
    """A layer of widths (128, 256) in bfloat16, which the kernels decode, and x of its tokens."""
    torch.manual_seed(0)
    layer = mhla_torch.Language(512, 2, 16, 4, backend="kernels", **options).cuda().bfloat16()
    return layer.requires_grad_(False), torch.randn(3, 64, 512, device="cuda").bfloat16()


def exact_outputs(layer, x):
    """Outputs of whole sequences in float64, on the CPU."""
    double = copy.deepcopy(layer).cpu().double()
    double.backend = "formula"
    return double(x.cpu().double())


@on_device
@pytest.mark.parametrize("options", ({}, {"feature_map": "elu", "convolution": 4}))
@pytest.mark.parametrize("calls", (
    [(None, 40), *[(None, 1)] * 24],
    [([0], 20), ([1, 2], 7), (None, 1), (torch.tensor([2, 0]), 1), (None, 9)]),
    ids=("prompt", "own-positions"))
def test_decodes_what_it_computes_whole(options, calls):
    layer, x = language(**options)
    exact, state, seen = exact_outputs(layer, x), layer.start(3), [0] * 3
    for sequences, count in calls:
        at = list(range(3)) if sequences is None else torch.as_tensor(sequences).tolist()
        tokens = torch.stack([x[b, seen[b]:seen[b] + count] for b in at])
        if isinstance(sequences, torch.Tensor):
            sequences = sequences.cuda()
        for b, out in zip(at, layer.append(state, tokens, sequences)):
            right = exact[b, seen[b]:seen[b] + count]
            assert (out.cpu().double() - right).norm() < 3e-2 * right.norm()
            seen[b] += count
    assert state.positions.tolist() == seen


@on_device
def test_an_append_is_replayed_at_every_position():
    """One graph decodes all tokens after the prompt, and those of a restored state."""
    layer, x = language(convolution=4)
    state, eager = layer.start(3), layer.start(3)
    for each in (state, eager):
        layer.append(each, x[:, :20])
    saved, token = state.clone(), x[:, 20:21].clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        layer.append(state, token)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer.append(state, token)
    assert state.counts is None
    for _ in range(2):
        state.copy_(saved)
        again = eager.clone()
        for t in range(20, 64):
            token.copy_(x[:, t:t + 1])
            graph.replay()
            assert torch.equal(out, layer.append(again, x[:, t:t + 1]))
    graph.replay()
    assert out.isnan().all()  # after the last token of the capacity


@on_device
def test_sequences_are_selected_and_begin_again():
    layer, x = language()
    state = layer.start(3)
    layer.append(state, x[:, :20])
    order = torch.tensor([2, 0, 0], device="cuda")
    best = state.select(order)
    expected = layer.append(state, x[:, 20:21])
    assert torch.equal(layer.append(best, x[order, 20:21]), expected[order])
    state.restart([1])
    out = layer.append(state, x[1:2, :30], [1])
    assert torch.equal(out, layer.append(layer.start(1), x[1:2, :30]))


@on_device
def test_decodes_under_autocast():
    layer, x = language()
    layer.float()
    with torch.autocast("cuda", torch.bfloat16), torch.inference_mode():
        state = layer.start(3)
        y = torch.cat([layer.append(state, part) for part in x.float().split([40, 1, 1], 1)], 1)
    exact = exact_outputs(layer, x)[:, :42]
    assert (y.cpu().double() - exact).norm() < 3e-2 * exact.norm()
