"""The tool for faults says what comes of each, and believes a result only while its files stay."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TABLE = """
[core/half.hpp] core/half_test.cpp Half.OfFour
doubled: a half is a double
  - x / 2
  + x * 2
lost: there is no half
  - return x / 2;
  + __builtin_trap();
large: halves of numbers above 4 are wrong, for which there is no test
  - x / 2
  + x > 4 ? x : x / 2
misspelt: no number has that name
  - x / 2
  + y / 2
untested: a test fails without the fault
  - x / 2
  ! Half.OfOne
"""
EXPECTED = """core/doubled killed by Half.OfFour
core/lost killed by Half.OfFour, which crashed
core/large SURVIVED halves of numbers above 4 are wrong, for which there is no test
core/misspelt ERROR does not compile:
core/untested ERROR tests fail without the fault, or there are none:
2 killed, 1 survived, 2 could not be tried,"""
TEST = """#include "mhla/core/half.hpp"
TEST(Half, OfFour) { EXPECT_EQ(half(4), 2); }
TEST(Half, OfOne) { EXPECT_EQ(half(1), 1); }
"""


def expect(root, pattern, status, lines):
    """Runs the tool in a repository that has one header."""
    command = [sys.executable, root / "tests/mutation.py", "--work", root / "work", pattern]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for line in lines.splitlines():
        if not any(each.startswith(line) for each in said) or done.returncode != status:
            sys.exit(f"status {done.returncode}, expected {status} and a line {line}:\n"
                     f"{done.stdout}{done.stderr}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = {"include/mhla/core/half.hpp": "inline int half(int x) { return x / 2; }\n",
                 "tests/core/half_test.cpp": TEST, "tests/mutants/core.txt": TABLE}
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        shutil.copy(Path(__file__).parents[1] / "mutation.py", root / "tests")
        expect(root, "*", 1, EXPECTED)
        expect(root, "core/doubled", 0, "core/doubled killed by Half.OfFour")
        changed = TEST.replace("half(4)", "2")
        (root / "tests/core/half_test.cpp").write_text(changed, encoding="utf-8")
        expect(root, "core/doubled", 1, "core/doubled SURVIVED")


main()
