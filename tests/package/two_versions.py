"""Tests plugins with different versions of the library: two_versions.py COMPILER EIGEN WORK

Both are loaded into one process, run, and are unloaded, in turns. Each runs code of its version:
the two share no function of the library but those of errors.
"""

import _ctypes
import ctypes
import pathlib
import random
import re
import shutil
import subprocess
import sys

import tree


def plugin(compiler, eigen, include, to):
    """Compiles the plugin with the headers of a folder. Returns its path and its symbols."""
    subprocess.run([compiler, "-std=c++20", "-O0", "-w", "-fPIC", "-shared", "-I", include,
                    "-isystem", eigen, tree.ROOT / "tests/package/plugin.cpp", "-pthread", "-o",
                    to], check=True)
    text = subprocess.check_output(["nm", "-D", "-C", "--defined-only", to], text=True)
    return to, {line.split(" ", 2)[2] for line in text.splitlines() if " mhla::" in line}


def version_of(include):
    return re.search(r'kVersion\[\] = "(.+)"',
                     (include / "mhla/core/version.hpp").read_text())[1]


def attend(library):
    """Runs a plugin on random numbers. Returns its outputs."""
    numbers = random.Random(7)
    q, k, v = ([numbers.gauss(0, 1) for _ in range(75 * 24)] for _ in range(3))
    of = ctypes.c_float * len(q)
    out = of()
    if library.plugin_attend(of(*q), of(*k), of(*v), out) != 1:
        sys.exit("expected an error of blocks that is caught, got none")
    return list(out)


def main():
    compiler, eigen, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    here, other = tree.ROOT / "include", work / "include"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(here / "mhla", other / "mhla")
    header = other / "mhla/core/version.hpp"
    version = version_of(here)
    changed = header.read_text().replace(version, "9.9.9")
    header.write_text(changed.replace(f"v{version.replace('.', '_')}", "v9_9_9"))

    plugins = [plugin(compiler, eigen, include, work / f"{name}.so")
               for name, include in (("first", here), ("second", other))]
    shared = {name for name in plugins[0][1] & plugins[1][1] if "error" not in name}
    if shared or len(plugins[0][1]) < 10:
        sys.exit(f"expected no common function of many, got {shared or plugins[0][1]}")
    outputs = set()
    for turn in range(20):
        for (path, _), expected in zip(plugins, (version, "9.9.9")):
            library = ctypes.CDLL(path, ctypes.RTLD_GLOBAL if turn % 2 else ctypes.RTLD_LOCAL)
            library.plugin_version.restype = ctypes.c_char_p
            if (got := library.plugin_version().decode()) != expected:
                sys.exit(f"{path} has version {got}, expected {expected}")
            outputs.add(tuple(attend(library)))
            if turn % 4 == 3:
                _ctypes.dlclose(library._handle)
    if len(outputs) != 1 or not any(map(any, outputs)):
        sys.exit(f"expected one set of outputs that are not 0, got {len(outputs)}")


main()
