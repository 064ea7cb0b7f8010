"""Plants faults in the sources and tells which of them the tests see.

bash tests/mutation.sh [--torch] [--list | --check] [--work FOLDER] [PATTERN...]

The faults are those of tests/mutants/*.txt, with --torch those of examples/torch/tests/mutants*.txt;
mutants/tables.py describes the tables. Programs have the faults of all headers, of which a variable
of the environment chooses one: see mutants/switches.py. Other faults have a program of their own. A
test that fails, crashes or does not end kills a fault. The status is 0 if all faults are killed.
PATTERN, such as 'core/*' or '*eps*', picks faults by FOLDER/NAME or by file. --list lists faults,
--check only makes sure that each fault can be planted. --work keeps objects and results in FOLDER:
the next run tries a killed fault again only if a file that its tests include has changed. CXX is
the compiler, MHLA_JOBS the number of faults that are tried at once.
"""

import argparse
import contextlib
import fnmatch
import functools
import hashlib
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from mutants import switches
from mutants.tables import CONTRACT, TESTS, fail, read, read_table

REPOSITORY = TESTS.parent


# ---- planting -----------------------------------------------------------------------------------

def planted(kind, fault):
    """The text of the file with the fault in it."""
    text = read(kind.root / fault.file)
    count = text.count(fault.old) if fault.old else 0
    if count != 1 or fault.old == fault.new:
        fail(f"{fault.id}: its text stands {count} times in {fault.file}, expected once, and "
             "another text in its place")
    return text.replace(fault.old, fault.new)


def check(kind, faults):
    """Fails if a fault cannot be planted or has no test."""
    for i, fault in enumerate(faults):
        if fault.id in (other.id for other in faults[:i]):
            fail(f"{fault.id}: two faults have this name")
        planted(kind, fault)
        kind.check_tests(fault)


# ---- what both kinds of faults need -------------------------------------------------------------

class Broken(Exception):
    """Says why a fault cannot be tried."""


def once(function):
    """Makes one call for equal arguments; other threads wait for its result."""
    results, lock = {}, threading.Lock()

    @functools.wraps(function)
    def call(*arguments):
        with lock:
            first = arguments not in results
            result = results.setdefault(arguments, Future())
        if first:
            try:
                result.set_result(function(*arguments))
            except Exception as error:
                result.set_exception(error)
        return result.result()
    return call


def digest(*values):
    return hashlib.sha256(repr(values).encode()).hexdigest()[:24]


def run(command, log, **options):
    """The status of a command whose output goes to a file."""
    with open(log, "w", encoding="utf-8") as out:
        return subprocess.call(command, stdout=out, stderr=subprocess.STDOUT, **options)


# ---- headers, and programs of GoogleTest --------------------------------------------------------

class Headers:
    """Faults of headers of the library. Objects without the header of a fault are shared."""

    root = REPOSITORY / "include/mhla"
    tables = {path: path.stem.split(".")[0] for path in sorted((TESTS / "mutants").glob("*.txt"))}
    jobs = int(os.environ.get("MHLA_JOBS") or os.cpu_count())
    compiler = (*shlex.split(os.environ.get("CXX", "g++")), "-std=c++20", "-Og", "-w")
    work = None  # the folder of all that is made
    switches = None  # of the faults that are tried

    def check_tests(self, fault):
        """Fails if the program of a fault lacks a source, a test or the header."""
        program = fault.program
        if missing := [source for source in program.sources if not (TESTS / source).is_file()]:
            fail(f"{fault.id}: there is no tests/{missing[0]}")
        text = "".join(read(TESTS / source) for source in program.sources)
        text += "".join(read(TESTS / f"{name}.hpp") for name in CONTRACT.findall(text))
        for test in fault.tests.split(":"):
            suite, _, name = test.rpartition(".")
            first, *others = suite.split("/")  # Suite, Typed/* or Name/Contract/*
            made = (rf'(INSTANTIATE|TEST_).*\({first},|"{first}[/"]' if len(others) == 2 else
                    rf"TEST.*\({first}, {name}\)").replace("(*,", r"(\w+,")
            if not (re.search(made, text) and re.search(rf"TEST[^;]*,\s+{name}\)", text)):
                fail(f"{fault.id}: there is no test {test} in {', '.join(program.sources)}")
        if not any(self.root / fault.file in self.included(source, program.flags)
                   for source in program.sources):
            fail(f"{fault.id}: {fault.file} is included by none of {', '.join(program.sources)}")

    @once
    def output(self, *command):
        return subprocess.check_output(command, text=True)

    def flags(self, program):
        packages = ["eigen3", "ompi-cxx"] if program.ranks else ["eigen3"]
        found = self.output("pkg-config", "--cflags", *packages).split()
        return (*program.flags, *(re.sub("^-I", "-isystem", flag) for flag in found))

    def place(self, *words):
        """A folder for what this compiler makes of these."""
        versions = (self.output(*self.compiler, "--version"),
                    self.output("pkg-config", "--modversion", "eigen3"))
        folder = self.work / digest(self.compiler, versions, words)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @once
    def included(self, source, flags):
        """The files of this repository that a source includes, itself too."""
        folders = [Path(flag[2:]) for flag in flags if flag.startswith("-I")]
        files, names = {}, [TESTS / source]
        while names:
            name = names.pop()
            for path in (folder / name for folder in (*folders, REPOSITORY / "include", TESTS)):
                if path not in files and path.is_file():
                    files[path] = read(path)
                    names += re.findall(r'^ *# *include ["<](.*)[">]', files[path], re.M)
        return files

    def compile(self, made, flags, *arguments):
        """Makes a file, unless it is there."""
        part = made.with_name(f"part.{made.name}")
        if not made.exists():
            if run([*self.compiler, *flags, *arguments, "-o", part], f"{made}.log"):
                raise Broken(f"does not compile: {made}.log")
            part.rename(made)  # only a whole file has this name
        return made

    @once
    def precompiled(self, flags):
        """Most of what a small test includes, compiled once."""
        header = self.place(flags) / "long.hpp"
        header.write_text("#include <Eigen/Core>\n#include <gtest/gtest.h>\n" +
                          switches.DEFINITION, encoding="utf-8")
        self.compile(header.with_name("long.hpp.gch"), flags, "-x", "c++-header", header)
        return header

    def compile_test(self, made, flags, source, *first):
        return self.compile(made, flags, "-include", self.precompiled(flags), *first,
                            f"-I{REPOSITORY / 'include'}", f"-I{TESTS}", "-c", TESTS / source)

    def switch(self, faults):
        """Writes headers with the switches of faults."""
        folder = self.work / "switched/include/mhla"
        shutil.rmtree(folder, ignore_errors=True)  # headers whose faults are gone
        self.switches = switches.Switches(self.root, faults, read, folder)

    @once
    def compiled(self, flags, source):
        """The object of a source with the switches of all faults."""
        texts = {self.root / file: text for file, text in self.switches.texts.items()}
        included = {path: texts.get(path, text)
                    for path, text in self.included(source, flags).items()}
        made = self.place(flags, included) / "test.o"
        while True:
            try:
                return self.compile_test(made, flags, source, f"-I{self.work / 'switched/include'}")
            except Broken:
                if not self.switches.drop(Path(f"{made}.log").read_text(encoding="utf-8")):
                    raise

    def prepare(self, program):
        flags = self.flags(program)
        return [self.compiled(flags, source) for source in program.sources]

    def link(self, program, objects, folder):
        mpi = self.output("pkg-config", "--libs", "ompi-cxx").split() if program.ranks else []
        self.compile(folder / "program", self.flags(program), *objects, *mpi, "-lgtest_main",
                     "-lgtest", "-pthread")

    @once
    def clean(self, program):
        """The folder of a program that has the switches of faults."""
        objects = self.prepare(program)
        folder = self.place(program, objects)
        self.link(program, objects, folder)
        return folder

    def state(self, fault):
        """The compiler, and the files that the result of a fault depends on."""
        flags = self.flags(fault.program)
        return self.place(), [self.included(source, flags) for source in fault.program.sources]

    def build(self, fault, folder):
        """Makes the program with the fault in it."""
        header = folder / "include/mhla" / fault.file
        header.parent.mkdir(parents=True)
        header.write_text(planted(self, fault), encoding="utf-8")
        objects, flags = self.prepare(fault.program), self.flags(fault.program)
        for i, source in enumerate(fault.program.sources):
            if self.root / fault.file in self.included(source, flags):
                objects[i] = self.compile_test(folder / f"{i}.o", flags, source,
                                               f"-I{folder / 'include'}")
        self.link(fault.program, objects, folder)

    def run_tests(self, program, tests, folder, seconds, log, number=0):
        """The status of tests, which end with the first failure, with the fault of a number."""
        ranks = ["mpirun", "-n", str(program.ranks)] if program.ranks else []
        return run(["timeout", str(seconds), *ranks, "./program", "--gtest_color=no",
                    f"--gtest_filter={tests}", "--gtest_throw_on_failure"], log, cwd=folder,
                   env=os.environ | {switches.VARIABLE: str(number)})

    def run_switched(self, fault, seconds, log):
        """The status of the tests of a fault that is switched on, 0 if it has no switch."""
        number = self.switches.number(fault)
        folder = self.clean(fault.program)
        return number and self.run_tests(fault.program, fault.tests, folder, seconds, log, number)


# ---- trying faults ------------------------------------------------------------------------------

@once
def clean_seconds(kind, program, tests):
    """The time that tests take without any fault."""
    folder, start = kind.clean(program), time.monotonic()
    log = folder / f"{digest(tests)}.log"
    status = kind.run_tests(program, tests, folder, 600, log)
    if status or "Running 0 tests" in log.read_text(encoding="utf-8", errors="replace"):
        raise Broken(f"tests fail without the fault, or there are none: {log}")
    return time.monotonic() - start


def attempt(kind, fault, folder):
    """Plants a fault, and says what comes of it."""
    limit = round(60 + 10 * clean_seconds(kind, fault.program, fault.tests))  # for busy machines
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log = folder / "tests.log"
    status = kind.run_switched(fault, limit, log)
    if status == 0:  # perhaps a switch cannot change a constant
        kind.build(fault, folder)
        status = kind.run_tests(fault.program, fault.tests, folder, limit, log)
    if status == 0:
        return f"SURVIVED  {fault.why}"
    text = log.read_text(encoding="utf-8", errors="replace")
    shutil.rmtree(folder)
    began = re.findall(r"^(?:\[ RUN      \]|FAILED|ERROR) (\S+)", text, re.M)
    said = f"killed    by {(began or [fault.tests])[-1]}"
    if status == 124:
        return f"{said}, which did not end within {limit} s"
    return said if "Failure" in text or "FAILED" in text else f"{said}, which crashed"


def try_faults(kind, faults):
    """Plants faults, prints what comes of each, and returns how many are not killed."""
    start, results = time.monotonic(), kind.work / "killed.txt"
    known = dict(line.split(" ", 1) for line in read(results).splitlines())
    counts = {"killed": 0, "SURVIVED": 0, "ERROR": 0}

    def prepare(program):
        with contextlib.suppress(Broken):  # each fault reports it
            kind.prepare(program)

    def result(fault):
        key = digest(fault, kind.state(fault))
        try:
            return key, known.get(key) or attempt(kind, fault, kind.work / "faults" / fault.id)
        except Broken as error:
            return key, f"ERROR     {error}"

    kind.switch(faults)
    with ThreadPoolExecutor(kind.jobs) as pool, open(results, "a", encoding="utf-8") as out:
        list(pool.map(prepare, dict.fromkeys(fault.program for fault in faults)))
        for fault, (key, said) in zip(faults, pool.map(result, faults)):
            print(f"{fault.id:58} {said}", flush=True)
            counts[said.split()[0]] += 1
            if said.startswith("killed") and key not in known:
                print(key, said, file=out, flush=True)
    print(f"{counts['killed']} killed, {counts['SURVIVED']} survived, "
          f"{counts['ERROR']} could not be tried, in {(time.monotonic() - start) / 60:.1f} minutes")
    return len(faults) - counts["killed"]


def main(kind):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--list", "--check"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("--work", type=Path)
    parser.add_argument("patterns", metavar="PATTERN", nargs="*", default=["*"])
    options = parser.parse_args()
    faults = [fault for path, folder in kind.tables.items() for fault in read_table(path, folder)]
    faults = [fault for fault in faults if any(fnmatch.fnmatchcase(name, pattern)
              for name in (fault.id, fault.file) for pattern in options.patterns)]
    if not faults:
        fail(f"no fault is called {' or '.join(options.patterns)}")
    if options.list:
        print(*(f"{fault.id:58} {fault.why}" for fault in faults), sep="\n")
        return 0
    check(kind, faults)
    if options.check:
        print(f"{len(faults)} faults can be planted")
        return 0
    kind.work = (options.work or Path(tempfile.mkdtemp())).resolve()
    kind.work.mkdir(parents=True, exist_ok=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    left = try_faults(kind, faults)
    if left:
        print(f"what the compiler and the tests said: {kind.work}")
    elif not options.work:
        shutil.rmtree(kind.work)
    return int(left > 0)


if __name__ == "__main__":
    # Open MPI reads in the environment how ranks share this machine.
    os.environ.update(re.findall(r"^(OMPI\w+)=(.*)", read(TESTS / "support/open_mpi.env"), re.M))
    sys.exit(main(Headers()))
