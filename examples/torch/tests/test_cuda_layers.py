"""Layers and models on a CUDA device: against the CPU, and in training.

All tests are skipped without a device.
"""

import pytest
import torch

import mhla_torch
from cuda_calls import LAYERS, on_device
from tiny_vit import TinyViT


@on_device
@pytest.mark.parametrize("make, channels", LAYERS, ids=range(len(LAYERS)))
def test_layers_equal_the_cpu(make, channels):
    """Outputs and gradients of layers of bfloat16 by the kernels, and on the CPU in float64."""
    torch.manual_seed(0)
    layer = make()
    x = torch.randn(2, 64, channels)
    results = []
    for device, dtype, layer.backend in (("cuda", torch.bfloat16, "kernels"),
                                         ("cpu", torch.float64, "formula")):
        layer.to(device, dtype).zero_grad()
        out = layer(x.to(device, dtype))
        out.double().sin().sum().backward()
        results.append([t.detach().cpu().double() for t in
                        (out, *(p.grad for p in layer.parameters()))])
    for ours, exact in zip(*results):
        assert (ours - exact).norm() < 5e-2 * exact.norm() + 1e-6


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
