"""The trials in their small form on made-up data, without expecting them to learn."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mhla_torch

TRIALS = Path(__file__).parents[1] / "trials"
sys.path.insert(0, str(TRIALS))

import convert  # noqa: E402
import images  # noqa: E402
import language  # noqa: E402
import trial  # noqa: E402
import video  # noqa: E402

PROGRAMS = {language: language.NAMES, images: images.NAMES, video: video.NAMES,
            convert: convert.STARTS}


@pytest.fixture(name="data", scope="module")
def fixture_data(tmp_path_factory):
    """A folder as data.sh makes it."""
    folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name in ("text", "images", "frames"):
        (folder / name).mkdir()
    (folder / "text/words.txt").write_bytes(draw.integers(97, 123, 20000, np.uint8).tobytes())

    def picture(path, *sizes):
        Image.fromarray(draw.integers(0, 256, (*sizes, 3), np.uint8)).save(path)

    for i in range(4):
        picture(folder / f"images/{i}.png", 80, 90)
    for i in range(60):
        picture(folder / f"frames/{i:04}.png", 24, 32)
    return folder


@pytest.fixture(name="run")
def fixture_run(monkeypatch, capsys):
    """A function run(program, *arguments) -> what it prints."""
    def run(program, *arguments):
        monkeypatch.setattr(sys, "argv", [program.__name__, *map(str, arguments)])
        program.main()
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_each_attention_is_trained(run, program, data, tmp_path):
    printed = run(program, "--device=cpu", f"--data={data}", f"--output={tmp_path}/trial",
                  "--seeds=2", "--seconds=0.01")
    results = json.loads((tmp_path / "trial.json").read_text())
    rows = results["rows"]
    assert [(row["seed"], row["name"]) for row in rows] == [
        (seed, name) for seed in (1, 2) for name in PROGRAMS[program]]
    assert {row["steps"] for row in rows} == {1 if program is convert else 2}  # the least
    assert all(np.isfinite(row["losses"]).all() and len(row["losses"]) == row["steps"]
               for row in rows)
    assert "card: none, a CPU" in printed and "not measured" not in printed
    assert (tmp_path / "trial.md").read_text().strip() in printed


def written_in_part(path, *_, **__):
    path.write_bytes(b"{")
    raise OSError


def test_a_table_is_written_after_each_row(monkeypatch, tmp_path):
    saved = []
    monkeypatch.setattr(trial, "described", lambda _, rows: saved.append(len(rows)) or "")
    options = trial.argparse.Namespace(device="cpu", rate=0.1, seeds=2, seconds=None, steps=2,
                                       output=tmp_path / "trial", context={})
    trial.compare(("a", "b"), lambda _: torch.nn.Linear(1, 1), lambda model, x: model(x).sum(),
                  lambda *_: (torch.ones(1, 1),), lambda *_: {}, options)
    assert saved == [1, 2, 3, 4] and (tmp_path / "trial.md").exists()
    before = (tmp_path / "trial.json").read_text()
    monkeypatch.setattr(trial.Path, "write_text", written_in_part)
    with pytest.raises(OSError):
        trial.save(options, [])
    assert (tmp_path / "trial.json").read_text() == before


def test_the_time_of_tests_is_not_that_of_steps(monkeypatch):
    clock = [0]

    def takes(seconds, result):
        clock[0] += seconds
        return result

    monkeypatch.setattr(trial, "now", lambda _: clock[0])
    options = trial.argparse.Namespace(device="cpu", rate=0.1, test=lambda _: takes(100, 7))
    _, tested, seconds = trial.fit(torch.nn.Linear(1, 1), lambda model, x: model(x).sum(),
                                   lambda _: takes(1, (torch.ones(1, 1),)), 3, options, at=(0, 2))
    assert tested == {0: 7, 2: 7} and seconds == 3


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_prediction_stands_beside_every_row(run, program, tmp_path):
    printed = run(program, "--predict", f"--output={tmp_path}/trial")
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[1:]] == list(PROGRAMS[program])
    assert all(row[1] and set(row[2:]) == {"not measured"} for row in rows[1:])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_trained():
    done = subprocess.run([sys.executable, TRIALS / "language.py"], capture_output=True, text=True,
                          check=True)
    assert done.stdout == "no GPU that PyTorch sees: nothing is trained\n"


def test_a_fit_finds_the_matrix_of_its_target():
    grid, block = (8, 8), (4, 4)
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, 64, 8, generator=draw) for _ in range(3))
    wanted = torch.rand(4, 4, generator=draw)
    wanted /= wanted.sum(1, keepdim=True)
    target = mhla_torch.bidirectional(q, k, v, wanted, grid=grid, block=block, layout="bhnd",
                                      backend="formula")
    found = convert.fit_mixing(q, k, v, target, torch.full((4, 4), 0.25), grid, block)
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=0)


def test_a_fit_is_the_best_of_nonnegative_rows():
    factors, right = torch.rand(3, 6, 5, dtype=torch.float64), torch.rand(3, 5).double() - 0.3
    gram = factors.mT @ factors
    m = convert.solved(gram, right, torch.ones(3, 5, dtype=torch.float64))
    scale = (m * right).sum(1) / torch.einsum("ib,ibc,ic->i", m, gram, m)  # of rows that sum to 1
    slope = torch.einsum("ibc,ic->ib", gram, m * scale[:, None]) - right
    assert (m >= 0).all() and (slope > -1e-6).all() and (slope * m).abs().max() < 1e-6


def test_decaying_terms_are_a_matrix_of_distances():
    decay = trial.Decay(2)
    with torch.no_grad():
        decay.weights.copy_(torch.tensor([0.5, 0.25]))
        decay.decays.copy_(torch.tensor([1.0, 0.5]))
    assert decay.matrix(3).tolist() == [[0.75, 0, 0], [0.625, 0.75, 0], [0.5625, 0.625, 0.75]]


def test_a_fact_stands_twice():
    rows = np.full((2, 4097), 32, np.uint8)
    for b, place, distance in language.with_facts(rows, np.random.default_rng(3)):
        first, second = (rows[b, at:at + language.LETTERS].tobytes()
                         for at in (place - distance, place))
        assert first == second and first.isalpha()
        assert rows[b, place - 1] == 32 and rows[b, place + language.LETTERS] == ord(".")


def test_bits_per_byte_of_equal_chances_are_eight():
    options = trial.argparse.Namespace(tokens=1024, tests=2, batch=2, device="cpu")
    text = np.zeros(5000, np.uint8)
    numbers = language.test_of(text, options)(lambda x: torch.zeros(*x.shape, 256), 1)
    assert {key: value for key, value in numbers.items() if "bits" in key} == pytest.approx(
        dict.fromkeys(("bits per byte", "bits to 128", "bits to 512", "bits to 1024"), 8.0))


def test_holes_show_the_nearest_frame():
    patches = torch.arange(6.)[:, None] + 1  # three frames of two patches
    mask = torch.tensor([[[True, False]], [[True, True]], [[False, True]]])
    assert video.fill(patches, mask)[:, 0].tolist() == [5, 2, 5, 2, 5, 2]
    assert video.fill(patches, torch.ones(3, 1, 2, dtype=bool)).abs().max() == 0


def test_blocks_of_clips():
    assert video.block_of((32, 18, 24)) == (4, 9, 6)
    assert video.block_of((3, 1, 1)) == (3, 1, 1)
