"""Plants the faults of mutants.txt, one at a time, and names the faults that the tests find.

bash tests/mutation.sh --torch [PATTERN] runs it in the environment of the tests, for faults whose
name or file matches. A fault of the package is planted in a copy of the package. A fault of the
operators is planted in a copy of their sources, which is built.
"""

import fnmatch
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
SOURCES = TESTS.parent
KEYS = ("name", "why", "file", "old", "new", "tests")


def read_table():
    """The faults, dictionaries of KEYS."""
    records = (TESTS / "mutants.txt").read_text(encoding="utf-8").split("\n\n")
    faults = []
    for record in records:
        lines = [line for line in record.splitlines() if line and not line.startswith("#")]
        fault = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if lines and (len(lines) != len(KEYS) or set(fault) != set(KEYS)):
            raise ValueError(f"mutants.txt: a record has {', '.join(fault)}, expected each of "
                             f"{', '.join(KEYS)} once")
        faults += [fault] if lines else []
    return faults


def planted(fault):
    """The text of the file with the fault."""
    text = (SOURCES / fault["file"]).read_text(encoding="utf-8")
    count = text.count(fault["old"])
    if count != 1 or fault["old"] == fault["new"]:
        raise ValueError(f"{fault['name']}: its text stands {count} times in {fault['file']}, "
                         "expected once, and to change")
    for test in fault["tests"].split():
        file, _, name = test.partition("::")
        if not re.search(rf"^def {name}\(", (TESTS / file).read_text(encoding="utf-8"), re.M):
            raise ValueError(f"{fault['name']}: there is no {test}")
    return text.replace(fault["old"], fault["new"])


def run_tests(package, tests):
    """The status of pytest with the package in `package`; 1: a test has failed."""
    path = os.pathsep.join([str(package), os.environ["PYTHONPATH"]])
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(command + [TESTS / test for test in tests], check=False,
                          env=os.environ | {"PYTHONPATH": path},
                          stdout=subprocess.DEVNULL).returncode


class Operators:
    """A copy of the sources of the operators, and its build."""

    def __init__(self, folder):
        self.source, self.build = folder / "source", folder / "build"
        shutil.rmtree(self.source, ignore_errors=True)
        shutil.copytree(SOURCES / "csrc", self.source / "csrc")
        shutil.copy(SOURCES / "CMakeLists.txt", self.source)
        (self.source / "include").symlink_to((SOURCES / "include").resolve())
        self.run("-S", self.source, "-B", self.build, "-G", "Ninja", "-DMHLA_NATIVE=OFF",
                 "-DMHLA_TORCH_CUDA=OFF", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
                 f"-DPython_EXECUTABLE={sys.executable}")

    @staticmethod
    def run(*arguments):
        done = subprocess.run(["cmake", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    def library(self, file, text):
        """Builds the operators with one file changed."""
        place = self.source / file
        before = place.read_text(encoding="utf-8")
        place.write_text(text, encoding="utf-8")
        try:
            self.run("--build", self.build)
        finally:
            place.write_text(before, encoding="utf-8")
        return self.build / "libmhla_torch.so"


def main():
    pattern = sys.argv[2] if len(sys.argv) > 2 else "*"
    faults = [fault for fault in read_table() if fnmatch.fnmatch(fault["name"], pattern) or
              fnmatch.fnmatch(fault["file"], pattern)]
    texts = [planted(fault) for fault in faults]
    folder, installed = Path(sys.argv[1]), importlib.util.find_spec("mhla_torch").origin
    package = folder / "mhla_torch"
    operators = Operators(folder) if any(f["file"].startswith("csrc") for f in faults) else None
    if run_tests(folder / "none", {test for fault in faults for test in fault["tests"].split()}):
        sys.exit("the tests fail without any fault")
    lives = 0
    for fault, text in zip(faults, texts):
        shutil.rmtree(package, ignore_errors=True)
        shutil.copytree(Path(installed).parent, package)
        if fault["file"].startswith("csrc"):
            shutil.copy(operators.library(fault["file"], text), package)
        else:
            (package / Path(fault["file"]).name).write_text(text, encoding="utf-8")
        status = run_tests(folder, fault["tests"].split())
        said = {1: "killed", 0: f"SURVIVED  {fault['why']}"}.get(status, f"crashed ({status})")
        lives += status == 0
        print(f"{fault['name']:48} {said}", flush=True)
    print(f"{len(faults) - lives} killed, {lives} survived")
    sys.exit(lives > 0)


if __name__ == "__main__":
    main()
