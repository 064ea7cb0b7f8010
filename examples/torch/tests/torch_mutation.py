"""Plants the faults of mutants*.txt, one at a time, and tells which of them the tests see.

bash tests/mutation.sh --torch runs it in the environment of the tests, with the options that
tests/mutation.py explains. A fault of the package is planted in a copy of the package, a fault of
the operators in a copy of their sources, which is built. The tests build those of csrc/cuda.
"""

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

TORCH = Path(__file__).resolve().parents[1]
REPOSITORY = TORCH.parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from mutation import Broken, fail, main, once, planted, read, run  # noqa: E402


class Package:
    """Faults of the package and its operators, and the tests of pytest."""

    root = TORCH
    tables = {path: "torch" for path in sorted((TORCH / "tests").glob("mutants*.txt"))}
    jobs = 1  # operators are built in one place
    work = None  # the folder of all that is made

    def check_tests(self, fault):
        """Fails if the files of a fault's tests lack a test."""
        for test in fault.tests.split():
            file, _, name = test.partition("::")
            if not re.search(rf"^def {name}\(", read(TORCH / "tests" / file), re.M):
                fail(f"{fault.id}: there is no test {test}")

    def cmake(self, *arguments):
        log = self.work / "cmake.log"
        if run(["cmake", *arguments], log):
            raise Broken(f"does not compile: {log}")

    @once
    def operators(self):
        """A copy of the operators' sources, from which they are built."""
        source = self.work / "source"
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(TORCH / "csrc", source / "csrc")
        shutil.copy(TORCH / "CMakeLists.txt", source)
        (source / "include").symlink_to((TORCH / "include").resolve())
        self.cmake("-S", source, "-B", self.work / "build", "-G", "Ninja", "-DMHLA_NATIVE=OFF",
                   "-DMHLA_TORCH_CUDA=OFF", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
                   f"-DPython_EXECUTABLE={sys.executable}")
        return source

    def emulate(self, fault):
        """Builds csrc/cuda with the fault in it for the emulator."""
        for path in (TORCH / "csrc").rglob("*.*"):
            place = self.work / "emulated" / path.relative_to(TORCH)
            text = planted(self, fault) if path == TORCH / fault.file else read(path)
            if place.exists() and place.read_text(encoding="utf-8") == text:
                continue  # an unchanged file is not compiled again
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        build = self.emulation()["MHLA_TORCH_EMULATION"]
        self.cmake("-S", TORCH / "tests/emulation", "-B", build, "-G", "Ninja",
                   f"-DMHLA_TORCH_CSRC={self.emulation()['MHLA_TORCH_CSRC']}",
                   f"-DPython_EXECUTABLE={sys.executable}")
        self.cmake("--build", build)

    def emulation(self):
        """Variables that name the emulated operators to conftest.py."""
        return {"MHLA_TORCH_CSRC": str(self.work / "emulated/csrc"),
                "MHLA_TORCH_EMULATION": str(self.work / "emulated/build")}

    def switch(self, faults):
        """Makes nothing: each fault is planted alone."""

    def run_switched(self, *_):
        """0: no fault has a switch."""
        return 0

    def prepare(self, program):
        """Makes nothing: the package is installed."""

    def clean(self, _):
        """The folder that the installed package is run in."""
        return self.work

    @once
    def state(self, _):
        """The files that the package is made of, and those that test it."""
        folders = [REPOSITORY / "include", *(TORCH / name for name in ("csrc", "src", "tests"))]
        files = [path for folder in folders for path in sorted(folder.rglob("*.[chp]*"))]
        return [read(path) for path in files if path.suffix != ".pyc"]

    def build(self, fault, folder):
        """Makes the package with the fault in it."""
        package = folder / "mhla_torch"
        shutil.copytree(Path(importlib.util.find_spec("mhla_torch").origin).parent, package)
        if fault.file.startswith("csrc/cuda"):
            self.emulate(fault)
            (folder / "is_emulated").touch()
            return
        if not fault.file.startswith("csrc"):
            (package / Path(fault.file).name).write_text(planted(self, fault), encoding="utf-8")
            return
        place = self.operators() / fault.file
        place.write_text(planted(self, fault), encoding="utf-8")
        try:
            self.cmake("--build", self.work / "build")
        finally:
            place.write_text(read(TORCH / fault.file), encoding="utf-8")
        shutil.copy(self.work / "build/libmhla_torch.so", package)

    def run_tests(self, _, tests, folder, seconds, log):
        """The status of tests, which end with the first failure."""
        path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
        command = ["timeout", str(seconds), sys.executable, "-m", "pytest", "-x", "-q", "-p",
                   "no:cacheprovider"]
        env = os.environ | {"PYTHONPATH": path}
        if (folder / "is_emulated").exists():
            env |= self.emulation()
        return run(command + [TORCH / "tests" / test for test in tests.split()], log, env=env)


if __name__ == "__main__":
    sys.exit(main(Package()))
