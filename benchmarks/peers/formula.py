"""The operator in plain PyTorch: the formula of mhla_torch, from its source file."""

import importlib.util
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "examples/torch/src/mhla_torch/formula.py"


def load():
    """The module examples/torch/src/mhla_torch/formula.py, which needs PyTorch alone."""
    spec = importlib.util.spec_from_file_location("mhla_formula", SOURCE)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # for torch.compile
    spec.loader.exec_module(module)
    return module


FORMULA = load()


def mhla(q, k, v, mixing, shape, causal=False):
    """MHLA with Relu{1e-6} and KeySum, products in the type of the tensors.

    q, k [B,N,H,D], v [B,N,H,E], mixing [M,M] -> [B,N,H,E]
    """
    if causal:
        return FORMULA.causal(q, k, v, mixing, block=shape.block_length, dtype=q.dtype)
    return FORMULA.bidirectional(q, k, v, mixing, grid=shape.grid, block=shape.block,
                                 dtype=q.dtype)
