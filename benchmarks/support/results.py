"""Reads results of the benchmarks: medians over the repetitions of each case. Writes files."""

import json
import os
import statistics
from pathlib import Path

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
NOT_COUNTERS = {"family_index", "per_family_instance_index", "repetitions", "repetition_index",
                "threads", "iterations", "real_time", "cpu_time"}


class Case:
    """One case: form/backend/scalar/shape/threads:n, its sizes, seconds and counters."""

    def __init__(self, name, runs):
        self.name = name
        self.form, self.backend, self.scalar, self.shape, threads = name.split("/")
        self.threads = int(threads.removeprefix("threads:"))
        sizes = runs[0].get("label", "").split(";")[0].split()
        self.sizes = dict(size.split("=") for size in sizes)
        self.seconds = statistics.median(r["real_time"] * SECONDS[r["time_unit"]] for r in runs)
        self.counters = {
            key: statistics.median(r[key] for r in runs)
            for key, value in runs[0].items()
            if isinstance(value, (int, float)) and key not in NOT_COUNTERS
        }

    @property
    def tokens(self):
        """N of the shape."""
        frames, rows, columns = map(int, self.sizes["grid"].split("x"))
        return frames * rows * columns


def save(path, text):
    """Replaces a file at once. A program that is stopped leaves the old file or the new one."""
    part = Path(f"{path}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def class_of(context):
    """The class that -march names, and the library's name for it: "x86-64-v3 (avx2_fma)"."""
    return f"{context['class']} ({context['instruction_set']})"


def load(path):
    """The context and the cases in their order, without failed cases."""
    with open(path, encoding="utf-8") as file:
        results = json.load(file)
    repetitions, medians = {}, {}
    for run in sorted(results["benchmarks"], key=lambda run: run["family_index"]):
        if run.get("error_occurred"):
            continue
        if run["run_type"] == "iteration":
            repetitions.setdefault(run["run_name"], []).append(run)
        elif run["aggregate_name"] == "median":
            medians[run["run_name"]] = [run]
    runs = {**medians, **repetitions}
    return results["context"], [Case(name, found) for name, found in runs.items()]
