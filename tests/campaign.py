"""Runs large versions of the tests for hours, and tells what they found.

bash tests/campaign.sh [--first N] [--rounds N] [--minutes M] [--build NAME] [--list | --table]
                       [--work FOLDER] [NAME...]

A part of the campaign runs programs of tests in rounds. Round R of a test with n random problems
takes the problems n R to n R + n - 1 (support/seeds.hpp), so round 0 is what run.sh tests. NAME
picks a part, such as random, or a program of it, such as random/attention_test; --list lists them.
--first and --rounds are the first and the last round, so that machines can share the rounds.
--minutes ends the campaign after the step or the build that is then running. Every finished step is
a line of FOLDER/results.txt, which is build/campaign by default. The next run leaves it out, unless
it failed or a header has changed. --table prints the results with the present headers, of each step
the last one. MHLA_JOBS is the number of compilers.

A failing problem is shrunk: choices of its random numbers become simple ones (support/random.hpp)
as long as the same check fails. The command that repeats it is printed. An error of more than half
of its bound, in float or double, rings an alarm.
"""

import argparse
import collections
import functools
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
ALARM = 0.5
JOBS = int(os.environ.get("MHLA_JOBS") or os.cpu_count())

# Programs with random problems, each with those of its tests that draw them.
RANDOM = {"attention_test": "*Forward/*:*KeptSummaries/*:*Streams/*:Diagnose*",
          "gradient_test": "*Gradient/*:*Tangent*", "kernel_test": "*Product*",
          "stage_test": "*", "tokens_test": "*", "fit_test": "*Laws*:*ChangeBound*",
          "policy_test": "*Partition*", "layer_test": "*Layer*",
          "distributed_test": "Threads/RanksContract/*"}
# Programs whose tests have threads.
THREADS = {f"{name}_test": "*" for name in
           ("core", "attention", "gradient", "layer", "distributed", "io")}
FUZZ_OPTIONS = ("malloc_context_size=2:quarantine_size_mb=4:detect_stack_use_after_return=0")


@dataclass(frozen=True)
class Part:
    """Programs, each with a filter of tests or options, in builds of some flags."""
    why: str
    programs: dict
    builds: dict  # of a name and flags of the compiler
    target: str = ""  # that builds all programs, if they are none
    rounds: bool = False  # False for programs that repeat nothing


def levels():
    """Levels of x86-64 that this processor has and that differ in code, or the default."""
    known = {"x86-64-v3": "avx2 fma", "x86-64-v4": "avx512f avx512bw avx512dq avx512vl"}
    info = Path("/proc/cpuinfo")
    has = re.search(r"^flags\s*:(.*)", info.read_text() if info.exists() else "", re.M)
    has = set(has[1].split()) if has else set()
    found = {level: f"-march={level}" for level, needs in known.items() if has >= {*needs.split()}}
    return {"default": ""} | found


LONGEST = 12 * 3600  # seconds of a step
ENDLESS = 124  # status of a step that takes longer
DEFAULT = {"default": ""}
SANITIZERS = "-fno-sanitize-recover=all -g1 -fsanitize="
PARTS = {
    "random": Part("random problems, for each instruction set", RANDOM, levels(), rounds=True),
    "memory": Part("the same under AddressSanitizer and UndefinedBehaviorSanitizer", RANDOM,
                   {"address": SANITIZERS + "address,undefined"}, rounds=True),
    "failures": Part("failing allocations, killed saves, full disks",
                     {"campaign_failures": "*", "campaign_saves": "*",
                      "io_test": "FailingMemory*", "distributed_test": "*MemoryThatFails*"},
                     DEFAULT),
    "ranks": Part("killed ranks and ranks without memory, over MPI", {"campaign_ranks": "*"},
                  DEFAULT),
    "fuzz": Part("random files and calls, with libFuzzer and sanitizers",
                 {"fuzz/safetensors_fuzz": "-max_len=512 -entropic=0",
                  "fuzz/api_fuzz": "-max_len=2048"},
                 DEFAULT, target="campaign_fuzz", rounds=True),
    "threads": Part("tests with threads under ThreadSanitizer",
                    THREADS | {"campaign_soak": "Concurrent*"},
                    {"thread": SANITIZERS + "thread"}),
    "flags": Part("units of one program with different flags", {"campaign_flags": "*"}, DEFAULT),
    "subnormal": Part("the time of subnormal numbers", {"campaign_subnormal": "*"}, DEFAULT),
    "size": Part("tensors of more than 2^32 elements", {"campaign_size": "*"}, DEFAULT),
    "soak": Part("streams and training for hours", {"campaign_soak": "*"}, DEFAULT),
}


# ---- steps --------------------------------------------------------------------------------------

def build(folder, name, flags, targets):
    """Builds targets of tests, and returns the folder of their programs, or None."""
    where = folder / name
    where.mkdir(parents=True, exist_ok=True)
    with open(where / "build.log", "w", encoding="utf-8") as log:
        for command in (
                ["cmake", "-S", REPOSITORY, "-B", where, "-G", "Ninja", "-DMHLA_NATIVE=OFF",
                 "-DMHLA_BUILD_TESTS=ON", "-DMHLA_BUILD_EXAMPLES=OFF",
                 "-DMHLA_BUILD_BENCHMARKS=OFF", f"-DCMAKE_CXX_FLAGS={flags}",
                 "-DMHLA_TEST_LEVELS=", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"],
                ["cmake", "--build", where, "--parallel", str(JOBS), "--target", *targets]):
            if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
                return None
    return where / "tests"


@functools.cache
def in_place():
    """ThreadSanitizer needs addresses that are not randomised, which some containers forbid."""
    command = ["setarch", "-R"]
    works = shutil.which(command[0]) and not subprocess.run([*command, "true"], check=False,
                                                            stderr=subprocess.DEVNULL).returncode
    return command if works else []


def run(program, tests, **variables):
    """Runs tests of a program and returns its status and output."""
    prefix = in_place() if "thread" in Path(program).parts else []
    try:
        done = subprocess.run(
            [*prefix, program, f"--gtest_filter={tests}"], check=False, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONGEST,
            env=os.environ | {name: str(value) for name, value in variables.items()})
    except subprocess.TimeoutExpired as late:
        return ENDLESS, (late.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout


@dataclass
class Outcome:
    """A test's output in a round."""
    name: str
    text: str
    passed: bool

    @property
    def windows(self):
        found = re.findall(r"^seeds (\d+) to (\d+)$", self.text, re.M)
        return [range(int(first), int(last) + 1) for first, last in found]

    @property
    def failure(self):
        """What failed: the place of a check, or the first line of a sanitizer's summary."""
        found = re.search(r"^(\S+:\d+): Failure|^SUMMARY: (.*)", self.text, re.M)
        return found and found[0]


def outcomes(text):
    """The tests of a program that ran. The last is one that crashed, if any did."""
    for part in re.split(r"^\[ RUN      \] ", text, flags=re.M)[1:]:
        name, _, rest = part.partition("\n")
        yield Outcome(name.strip(), rest, f"[       OK ] {name.strip()}" in rest
                      or f"[  SKIPPED ] {name.strip()}" in rest)


def repeat(program, outcome, seed, simple=""):
    """True if a problem fails as the outcome did."""
    status, text = run(program, outcome.name, MHLA_SEED=seed, MHLA_SIMPLE=simple)
    if not status:
        return False
    again = [each for each in outcomes(text) if not each.passed]
    return outcome.failure is None or any(outcome.failure in each.text for each in again)


def shrunk(program, outcome):
    """The command that repeats a failure, with as many simple choices as it can have."""
    said = [int(seed) for seed in re.findall(r"seed (\d+)", outcome.text)]
    seeds = dict.fromkeys(said + [seed for window in outcome.windows for seed in window])
    seed = next((seed for seed in seeds if repeat(program, outcome, seed)), None)
    command = f"{program} --gtest_filter={outcome.name}"
    if seed is None:
        return command
    simple, size = set(), 512
    while size:
        for first in range(0, 1024, size):
            more = simple | set(range(first, first + size))
            if more != simple and repeat(program, outcome, seed, ranges(more)):
                simple = more
        size //= 8
    return f"MHLA_SEED={seed} " + (f"MHLA_SIMPLE={ranges(simple)} " if simple else "") + command


def ranges(numbers):
    """Numbers as ranges, such as 3-7,12-12."""
    firsts = sorted(n for n in numbers if n - 1 not in numbers)
    lasts = sorted(n for n in numbers if n + 1 not in numbers)
    return ",".join(f"{first}-{last}" for first, last in zip(firsts, lasts))


def fuzz(program, options, number):
    """A million executions: their number, no alarms, and a command if one fails."""
    work = program.parent / f"{program.name}.work"
    work.mkdir(exist_ok=True)
    done = subprocess.run(
        [program, *options.split(), "-runs=1000000", f"-seed={number}", "-timeout=2",
         "-rss_limit_mb=512", f"-artifact_prefix={work}/", work],
        check=False, text=True, errors="replace", stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=os.environ | {"ASAN_OPTIONS": FUZZ_OPTIONS})
    artifact = re.search(r"Test unit written to (\S+)", done.stdout)
    count = re.search(r"Done (\d+) runs", done.stdout)
    failed = [f"{program} {artifact[1] if artifact else work}"] if done.returncode else []
    return int(count[1]) if count else 0, [], failed


def step(program, tests, number):
    """Runs a round of a program: its cases, the alarms, and a command per failure."""
    if program.parent.name == "fuzz":
        return fuzz(program, tests, number)
    variables = {} if number is None else {"MHLA_ROUND": number}
    status, text = run(program, tests, **variables)
    cases, alarms, failures = 0, [], []
    for outcome in outcomes(text):
        cases += sum(map(len, outcome.windows))
        cases += sum(map(int, re.findall(r"^(\d+) cases$", outcome.text, re.M)))
        for error in re.findall(r"worst error (\S+) of the bound", outcome.text):
            if not re.search("half|bfloat16", outcome.name, re.I) and float(error) > ALARM:
                alarms.append(f"{outcome.name} has {error} of its bound")
        if not outcome.passed and status == ENDLESS:
            failures.append(f"{program} --gtest_filter={outcome.name} does not end")
        elif not outcome.passed:
            failures.append(shrunk(program, outcome))
    if "Running 0 tests" in text:
        failures.append(f"{program} --gtest_filter={tests} runs no test")
    if status and not failures:
        failures.append(f"{program} ended with {signal_name(status)}: {text[-300:]}")
    return cases, alarms, failures


def signal_name(status):
    return signal.Signals(-status).name if status < 0 else f"status {status}"


# ---- results ------------------------------------------------------------------------------------

def state():
    """Changes with the headers."""
    digest = hashlib.sha256()
    for path in sorted((REPOSITORY / "include").rglob("*.hpp")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def processor():
    info = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*: (.*)", info.read_text() if info.exists() else "", re.M)
    return model[1] if model else platform.machine()


def print_table(results):
    """A row per part, build and program: cases, rounds, seconds and what was found."""
    rows = collections.defaultdict(lambda: [0, 0, 0.0, 0, 0])
    for line in {tuple(line.split("\t")[1:5]): line for line in results}.values():
        part, name, program, _, cases, seconds, alarms, failures, model = line.split("\t")[1:]
        row = rows[part, name, program, model]
        for i, value in enumerate((int(cases), 1, float(seconds), int(alarms), int(failures))):
            row[i] += value
    print("| part | build | program | cases | rounds | seconds | alarms | failures | processor |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (part, name, program, model), (cases, rounds, seconds, alarms, failures) in rows.items():
        print(f"| {part} | {name} | {program} | {cases:,} | {rounds} | {seconds:.0f} | {alarms} | "
              f"{failures} | {model} |")


def steps_left(options, done):
    """Each part and build with its steps (program, round) that are not done."""
    for name in options.names:
        name, _, only = name.partition("/")
        part = PARTS[name]
        numbers = range(options.first, options.rounds + 1) if part.rounds else [None]
        for built in part.builds:
            steps = [(program, number) for number in numbers for program in part.programs
                     if only in ("", Path(program).name)
                     and (name, built, program, str(number)) not in done]
            if steps and options.build in (None, built):
                yield name, built, steps


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--build", help="one build of a part, such as x86-64-v4")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--work", type=Path, default=REPOSITORY / "build/campaign")
    parser.add_argument("names", metavar="NAME", nargs="*", default=[*PARTS])
    options = parser.parse_args()
    known = [*PARTS, *(f"{name}/{Path(program).name}" for name, part in PARTS.items()
                       for program in part.programs)]
    if unknown := {*options.names} - {*known}:
        sys.exit(f"nothing is called {' or '.join(sorted(unknown))}; --list lists all names")
    if options.list:
        print(*(f"{name:10} {part.why}: {' '.join(part.programs)}" for name, part in PARTS.items()),
              sep="\n")
        return 0
    options.work.mkdir(parents=True, exist_ok=True)
    file, now = options.work / "results.txt", state()
    results = file.read_text().splitlines() if file.exists() else []
    results = [line for line in results if line.startswith(f"{now}\t")]
    fields = [line.split("\t") for line in results]
    done = {tuple(of[1:5]) for of in fields if of[8] == "0"}
    start, found = time.monotonic(), 0
    over = lambda: time.monotonic() - start > 60 * options.minutes
    for name, built, steps in [] if options.table else steps_left(options, done):
        if over():
            break
        part = PARTS[name]
        targets = [part.target] if part.target else dict(steps)
        folder = build(options.work.resolve(), built, part.builds[built], targets)
        if folder is None:
            print(f"{name} {built}\n  FAILURE cannot build {' '.join(targets)}: see "
                  f"{options.work}/{built}/build.log", flush=True)
            found += 1
            continue
        for program, number in steps:
            if over():
                break
            key, began = (name, built, program, str(number)), time.monotonic()
            cases, alarms, failures = step(folder / program, part.programs[program], number)
            seconds = time.monotonic() - began
            print(f"{' '.join(key):50} {cases:7} cases, {seconds:6.1f} s",
                  *(f"  ALARM   {alarm}" for alarm in alarms),
                  *(f"  FAILURE {command}" for command in failures), sep="\n", flush=True)
            found += len(failures)
            results.append("\t".join([now, *key, str(cases), f"{seconds:.1f}", str(len(alarms)),
                                      str(len(failures)), processor()]))
            with open(file, "a", encoding="utf-8") as out:
                print(results[-1], file=out)
    print_table(results)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
