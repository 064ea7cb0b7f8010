"""The blocks of examples/throughput in PyTorch, each with each attention, on few tokens."""

import pytest
import torch

import torch_blocks
import torch_peers

VISION = {"heads": 2, "width": 8, "values": 8, "grid": [1, 8, 8], "block": [1, 4, 4], "depth": 1}
RESULTS = (
    *({"model": model, **VISION} for model in torch_blocks.VISION),
    {"model": "Wan layer", **VISION, "grid": [4, 4, 4], "block": [2, 2, 2], "width": 24,
     "values": 24},
    {"model": "340M", "heads": 2, "width": 4, "values": 8, "grid": [1, 1, 64], "block": [1, 1, 16],
     "blocks": 4, "depth": 1},
    {"model": "340M token", "heads": 2, "width": 4, "values": 8, "grid": [1, 1, 64],
     "block": [1, 1, 16], "depth": 3})


@pytest.mark.parametrize("kind", torch_peers.KINDS)
@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result["model"])
def test_runs(result, kind):
    result = result | {"tokens": 64, "batch": 2 if result in RESULTS[:-1] else 1}
    if kind not in torch_peers.kinds_of(result):
        return
    block, columns = torch_blocks.block_of(result, kind)
    inputs = torch_peers.inputs_of(result, columns)
    with torch.inference_mode():
        out = block(*inputs)
    assert out.shape == inputs[0].shape and out.isfinite().all()
