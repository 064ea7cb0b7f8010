"""Tests benchmarks/run.sh --classes: benchmark_classes.py WORK

The processor has x86-64-v2, but not x86-64-v3. The compiler, cmake and the benchmarks stand in. Two
classes make one table and one picture. Results of another name are refused.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import tree

PROGRAMS = {
    "dpkg-query": "echo installed\n",
    "c++": r"""
printf '#!/bin/sh\nprintf "x86-64;x86-64-v2"\n' >"${@: -1}"
chmod +x "${@: -1}"
""",
    # Configures folder $4, in which the benchmarks return the results of the class in the flags.
    "cmake": r"""
if [[ $1 == -S ]]; then
  mkdir "$4/benchmarks"
  cp "${0%/*}/mhla_bench" "$4/benchmarks"
  printf '%s\n' "$@" | sed -n 's/^-DCMAKE_CXX_FLAGS=-march=//p' >"$4/class"
fi
""",
    "mhla_bench": r"""
folder=${0%/*}/..
echo a table of one class
cp "$folder/../../$(<"$folder/class").json" \
  "$(printf '%s\n' "$@" | sed -n 's/^--benchmark_out=//p')"
"""}

DEIT, NLP = "Bidirectional/cpu/float/deit_s", "Causal/cpu/float/nlp_340m"
PEAK, GROWTH = "Peak/cpu/float/registers", "Bidirectional/cpu/float/growth_256"
# Per class, the instruction set. Per repetition, the case, its threads, milliseconds, flops per
# second and the part of the peak.
RESULTS = [
    ("x86-64-v2", "sse4_2",
     [(PEAK, 1, 0.001, 5e10, 1.0), (DEIT, 1, 12, 1e10, 0.25), (DEIT, 1, 16, 1.5e10, 0.375),
      (DEIT, 1, 14, 1.25e10, 0.3), (DEIT, 2, 7, 2.5e10, 0.25), (NLP, 1, 1500, 3e10, 0.6),
      (GROWTH, 1, 3, 2e10, 0.5)]),
    ("native", "avx512",
     [(PEAK, 1, 0.001, 2e11, 1.0), (DEIT, 1, 2, 10e10, 0.5), (NLP, 1, 500, 9e10, 0.45),
      (NLP, 2, 250, 18e10, 0.44), (GROWTH, 1, 1, 6e10, 0.3)])]
TABLE = """\
case                               class                  1 thread   GFLOP/s of peak x first    2 threads   GFLOP/s of peak x first
Peak/cpu/float/registers           x86-64-v2 (sse4_2)      1.00 us     50.00   1.000    1.00
Peak/cpu/float/registers           native (avx512)         1.00 us    200.00   1.000    4.00
Bidirectional/cpu/float/deit_s     x86-64-v2 (sse4_2)     14.00 ms     12.50   0.300    1.00      7.00 ms     25.00   0.250    1.00
Bidirectional/cpu/float/deit_s     native (avx512)         2.00 ms    100.00   0.500    8.00
Causal/cpu/float/nlp_340m          x86-64-v2 (sse4_2)       1.50 s     30.00   0.600    1.00
Causal/cpu/float/nlp_340m          native (avx512)       500.00 ms     90.00   0.450    3.00    250.00 ms    180.00   0.440
Bidirectional/cpu/float/growth_256 x86-64-v2 (sse4_2)      3.00 ms     20.00   0.500    1.00
Bidirectional/cpu/float/growth_256 native (avx512)         1.00 ms     60.00   0.300    3.00
"""


def write_files(work):
    shutil.rmtree(work, ignore_errors=True)
    (work / "bin").mkdir(parents=True)
    for name, text in PROGRAMS.items():
        (work / "bin" / name).write_text(f"#!{shutil.which('bash')}\n{text}")
        (work / "bin" / name).chmod(0o755)
    for label, instruction_set, rows in RESULTS:
        cases = [{"name": f"{name}/threads:{threads}", "run_name": f"{name}/threads:{threads}",
                  "run_type": "iteration", "family_index": i, "label": "grid=1x16x16",
                  "real_time": milliseconds, "time_unit": "ms", "flops": flops, "of_peak": of_peak}
                 for i, (name, threads, milliseconds, flops, of_peak) in enumerate(rows)]
        context = {"class": label, "compiler": "g++", "instruction_set": instruction_set,
                   "cpu_model": "a processor", "commit": "1"}
        (work / f"{label}.json").write_text(json.dumps({"context": context, "benchmarks": cases}))


def expect(holds, what, found):
    if not holds:
        sys.exit(f"expected {what}, got\n{found}")


def main():
    work = pathlib.Path(sys.argv[1])
    write_files(work)
    environment = os.environ | {"PATH": f"{work}/bin:{os.environ['PATH']}", "CXX": "c++",
                                "MHLA_BUILD_DIR": str(work / "build")}
    environment.pop("MHLA_PYTHON", None)

    def run(*arguments):
        return subprocess.run(["bash", tree.ROOT / "benchmarks/run.sh", "--classes", *arguments],
                              env=environment, capture_output=True, text=True, check=False)

    done, refused = run(), run("--benchmark_out=x.json")
    expect(done.stdout == TABLE, TABLE, done.stdout + done.stderr)
    expect("== x86-64-v3 is left out: this processor does not have its instruct" in done.stderr,
           "x86-64-v3 to be left out with a sentence", done.stderr)
    expect(refused.returncode == 2 and refused.stderr.startswith(
        "== --classes does not go with --benchmark_out=x"), "a refusal of --benchmark_out", refused)
    if "== no matplotlib in " in done.stderr:
        print("matplotlib is not installed")
        return
    picture = (work / "build/benchmarks-classes.svg").read_text()
    lines = re.findall(r"<!-- ([a-z0-9-]+ \([a-z0-9_]+\)) -->", picture)
    expect(lines == ["x86-64-v2 (sse4_2)", "native (avx512)"] * 2,
           "a line of each class in both charts", lines)


main()
