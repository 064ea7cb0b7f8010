"""Runs the training example to its end on a made-up data set, without expecting it to learn."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mhla_torch

TRAIN = Path(__file__).parents[1] / "train.py"
on_device = pytest.mark.skipif(not (mhla_torch.cuda_built() and torch.cuda.is_available()),
                               reason="no CUDA device or no kernels for it")


@pytest.fixture(name="run")
def fixture_run(tmp_path):
    """A function run(*arguments) -> text and results of train.py on 60 images of two classes."""
    draw = np.random.default_rng(0)
    for part in ("train", "t10k"):
        labels = draw.integers(0, 2, 60).astype(np.uint8)
        pixels = draw.integers(0, 100, (60, 28, 28)).astype(np.uint8) + 100 * labels[:, None, None]
        for kind, data in (("images-idx3", pixels.astype(np.uint8)), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, data.ndim]) + np.array(data.shape, ">u4").tobytes()
            with gzip.open(tmp_path / f"{part}-{kind}-ubyte.gz", "wb") as file:
                file.write(head + data.tobytes())

    def run(*arguments):
        output = tmp_path / "result"
        done = subprocess.run([sys.executable, TRAIN, "--data", tmp_path, "--output", output,
                               "--images=60", "--test-images=60", "--batch=20", *arguments],
                              capture_output=True, text=True, check=True)
        results = Path(f"{output}.json")
        return done.stdout, json.loads(results.read_text())["results"] if results.exists() else None

    return run


def test_both_attentions_are_trained(run):
    printed, results = run("--epochs=2")
    assert [result["settings"]["attention"] for result in results] == ["softmax", "mhla"]
    assert all(len(result["losses"]) == result["steps"] == 6 for result in results)
    assert len(results[1]["learned_mixing"]) == 2
    assert results[1]["learned_mixing"] != results[1]["initial_mixing"]
    assert printed.count("test accuracy") == 2


def test_seconds_bound_the_steps(run):
    _, results = run("--epochs=1000", "--seconds=0.1")
    assert all(20 <= result["steps"] < 3000 for result in results)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_trained_on_cuda(run):
    assert run("--device=cuda") == ("no GPU that PyTorch sees: nothing is trained\n", None)


@on_device
def test_three_attentions_are_trained_on_cuda(run):
    printed, results = run("--device=cuda", "--epochs=2")
    assert [r["settings"]["attention"] for r in results] == ["softmax", "linear", "mhla"]
    assert all(np.isfinite(r["losses"]).all() and r["peak_memory"] > 0 for r in results)
    assert results[2]["learned_mixing"] != results[2]["initial_mixing"]
    assert "images/s" in printed
