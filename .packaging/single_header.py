"""Writes the CPU library into one header, for Compiler Explorer and first trials.

python3 .packaging/single_header.py FILE

Left out is what needs more than Eigen, include/mhla/io (JSON), include/mhla/cuda, MPI and NCCL in
include/mhla/distributed, and what only names other headers.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include"


def merged(header, seen):
    """Yields the lines of a header, with those of headers it includes first in their places."""
    if header in seen:
        return
    seen.add(header)
    yield f"\n// ---- {header} ----\n"
    depth = 0  # of #if; an include in a branch may not be compiled
    for line in (INCLUDE / header).read_text().splitlines(keepends=True):
        depth += bool(re.match(r"#\s*if", line)) - bool(re.match(r"#\s*endif", line))
        own = re.match(r'#include "(mhla/[^"]+)"', line)
        system = re.match(r"#include <[^>]+>", line)
        if own:
            yield from merged(own[1], seen)
        elif system and depth == 0 and system[0] in seen:
            continue
        elif line != "#pragma once\n":
            yield line
            if system and depth == 0:
                seen.add(system[0])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    paths = (path.relative_to(INCLUDE) for path in INCLUDE.glob("mhla/*/*.hpp"))
    left_out = re.compile("mhla/(cuda/|io/|distributed/(mpi|nccl))")
    headers = sorted(str(path) for path in paths if not left_out.match(str(path)))
    seen = set()
    text = "".join(line for header in headers for line in merged(header, seen))
    version = re.search(r'kVersion\[\] = "(.+)"', text)[1]
    licence = "".join(f"// {line}".rstrip() + "\n" for line in (ROOT / "LICENSE").open())
    title = f"// mhla {version}: the CPU library in one header. Needs C++20 and Eigen.\n//\n"
    text = re.sub(r"\n{3,}", "\n\n", text)
    pathlib.Path(sys.argv[1]).write_text(f"{title}{licence}\n#pragma once\n{text}")


main()
