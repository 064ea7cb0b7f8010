"""Runs the installed package alone, away from its sources: python -I smoke.py"""

import sysconfig
from importlib.metadata import version
from pathlib import Path

import torch

import mhla_torch

place = Path(mhla_torch.__file__).parent
if place.parent != Path(sysconfig.get_path("purelib")):
    raise SystemExit(f"mhla_torch is {place}, expected one that is installed in this environment")

torch.manual_seed(0)
q, k, v = (torch.randn(2, 3, 20, 8, dtype=torch.float64).requires_grad_() for _ in range(3))
attention = mhla_torch.MHLA(20, 5, causal=True).double()
out = attention(q, k, v)  # [B,H,N,D]
blocks = torch.arange(20) // 5
weights = attention.mixing[blocks][:, blocks].tril() * (
    (q.relu() + 1e-6) @ (k.relu() + 1e-6).transpose(-1, -2))
expected = weights @ v / weights.sum(-1, keepdim=True)
torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
leaves = (q, k, v, attention.mixing)
for ours, theirs in zip(*(torch.autograd.grad(y.sin().sum(), leaves) for y in (out, expected))):
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
torch.testing.assert_close(compiled(q, k, v), out, rtol=0, atol=0)
print(f"mhla_torch {version('mhla-torch')} on PyTorch {torch.__version__}: {place}")
