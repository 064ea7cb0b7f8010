"""Tests .packaging/single_header.py: single_header.py COMPILER EIGEN WORK

The single header has every CPU header but those of files once. A program and a second unit of it
compile without a warning, are linked and run.
"""

import pathlib
import re
import subprocess
import sys

import tree


def run(*command):
    subprocess.run(command, check=True)


def main():
    compiler, eigen, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    single = work / "mhla/mhla.hpp"
    single.parent.mkdir(parents=True, exist_ok=True)
    run(sys.executable, tree.ROOT / ".packaging/single_header.py", single)

    text = single.read_text()
    titles = re.findall(r"\n// ---- (mhla/.+\.hpp) ----\n", text)
    headers = [path.removeprefix("include/")
               for path in tree.repository().matching("include/mhla/*/*.hpp")
               if not re.match("include/mhla/(io/|distributed/(mpi|nccl))", path)]
    if sorted(titles) != sorted(headers):
        sys.exit(f"expected once each\n{sorted(headers)}\ngot\n{sorted(titles)}")
    if not re.match(r"// mhla .*\n//\n// MIT License\n(//.*\n)*\n#pragma once\n", text):
        sys.exit(f"expected the version, the licence and #pragma once, got\n{text[:2000]}")
    if '#include "mhla/' in text:
        sys.exit("expected no include of mhla's own headers, got one")

    program = work / "readme.cpp"  # the program of README.md, with any headers that it includes
    program.write_text(re.sub("#include <mhla/.+>", "#include <mhla/mhla.hpp>",
                              (tree.ROOT / "examples/readme.cpp").read_text()))
    compile_unit = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-I", work, "-isystem",
                    eigen, "-c", program, "-o"]
    run(*compile_unit, work / "main.o")
    run(*compile_unit, work / "other.o", "-Dmain=other")
    run(compiler, work / "main.o", work / "other.o", "-pthread", "-o", work / "main")
    run(work / "main")


main()
