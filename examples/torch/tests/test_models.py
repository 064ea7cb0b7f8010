"""Whole models on the CPU: benchmarks/cuda/models.py in its small form, and its predictions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from peers import torch_models
from peers.torch_models import ARMS, CUDNN, FLA, FLASH, LINEAR, OURS, PLAIN, SMALLEST

MODELS = Path(__file__).parents[3] / "benchmarks/cuda/models.py"
sys.path.insert(0, str(MODELS.parent))

import models  # noqa: E402


@pytest.fixture(name="outcome", scope="module")
def fixture_outcome(tmp_path_factory):
    """The results and the table of all small models."""
    results = tmp_path_factory.mktemp("models") / "models.json"
    done = subprocess.run([sys.executable, MODELS, results, "--device=cpu", "--mode=eager"],
                          capture_output=True, text=True, check=False,
                          env=os.environ | {"MHLA_COMMIT": "0123456789ab"})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(results.read_text()), results.with_suffix(".md").read_text()


@pytest.mark.parametrize("case", SMALLEST, ids=lambda case: case.name)
def test_each_small_model_is_timed_with_each_attention(outcome, case):
    rows = {row["arm"]: row for row in outcome[0]["rows"] if row["name"] == case.name}
    assert list(rows) == list(ARMS)
    for arm in (OURS, PLAIN, FLASH, LINEAR):
        assert rows[arm]["error"] <= models.LARGEST_ERROR, rows[arm]
        assert rows[arm]["forward"] > 0
        assert (rows[arm].get("both", 0) > 0) == (case.kind != "decode")
    assert "absent" in rows[CUDNN] and "absent" in rows[FLA]


def test_the_table_names_what_ran(outcome):
    results, table = outcome
    assert results["context"]["commit"] == "0123456789ab"
    for name in ("card: none, a CPU", "driver: none", "PyTorch: ", "command: models.py"):
        assert name in table
    lines = [line for line in table.splitlines() if line.startswith("| DiT")]
    assert len(lines) == 4 and all("not measured" in line for line in lines[:2])  # not compiled
    assert all("not measured" not in line for line in lines[2:])


@pytest.mark.parametrize("arm", (OURS, PLAIN, FLASH, LINEAR))
@pytest.mark.parametrize("case", SMALLEST, ids=lambda case: case.name)
def test_wrong_rows_are_found(case, arm):
    block = models.model_of(case, arm, "cpu").blocks[0]
    with torch.inference_mode():
        block.attn.register_forward_hook(lambda _, __, out: 1.1 * out)
        assert models.error_of(case, arm, block) > models.LARGEST_ERROR


def test_predictions_of_dit_s():
    cases = [case for case in torch_models.CASES if case.name.startswith("dit_s_")]
    for arm, expected in ((FLASH, (1.04, 1.27, 2.2, 6.6, 24)), (CUDNN, (1.00, 1.14, 1.7, 4.5, 15))):
        found = [models.predicted(case, arm, "compiled", "forward") for case in cases]
        assert found == pytest.approx(expected, rel=0.06)


def test_a_prediction_stands_beside_every_row():
    table = models.table(torch_models.CASES, []).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    assert len(rows) == sum(2 if case.kind == "decode" else 4 for case in torch_models.CASES)
    assert all(float(row[4]) > 0 and float(row[6]) > 0 for row in rows)
    assert all(row[i] == "not measured" for row in rows for i in (3, 5, 7, 8, 9, 10))


def test_the_page_has_these_predictions():
    lines = (MODELS.parent / "README.md").read_text(encoding="utf-8").splitlines()
    for case in torch_models.CASES:
        forward, both = (", ".join(f"{models.predicted(case, arm, 'compiled', kind):.3g}"
                                   for arm in (FLASH, CUDNN)) for kind in models.PASSES)
        row = next(line for line in lines if line.startswith(f"| {case.title} | {forward} |"))
        assert row.split(" | ")[3].strip() == ("" if case.kind == "decode" else both)


def test_peaks_leave_out_what_earlier_arms_hold(monkeypatch):
    for name, result in (("memory_allocated", 100), ("max_memory_allocated", 130),
                         ("reset_peak_memory_stats", None), ("synchronize", None)):
        monkeypatch.setattr(torch.cuda, name, lambda result=result: result)
    device = models.Device("cpu")
    device.cold = True
    assert device.peak(lambda: None, device.held()) == 30


def test_a_missing_name_of_results_is_named():
    done = subprocess.run([sys.executable, MODELS], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.endswith("error: RESULTS.json is missing\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_timed(tmp_path):
    done = subprocess.run([sys.executable, MODELS, tmp_path / "r.json"], capture_output=True,
                          text=True, check=True)
    assert done.stdout == "no GPU that PyTorch sees: no model is timed\n"
    assert not (tmp_path / "r.json").exists()
