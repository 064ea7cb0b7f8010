"""The tool for faults says what comes of each, and believes a result only while its files stay."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from mutants import switches  # noqa: E402
from mutants.tables import Fault  # noqa: E402

TABLE = """
[core/half.hpp] core/half_test.cpp Half.OfFour
doubled: a half is a double
  - x / 2
  + x * 2
lost: there is no half
  - return sum + x / 2 * kTwo / 2;
  + __builtin_trap();
large: halves of numbers above 4 are wrong, for which there is no test
  - x / 2
  + x > 4 ? x : x / 2
misspelt: no number has that name
  - x / 2
  + y / 2
constant: halves are multiplied by 3 / 2, by a constant, which has no switch
  - kTwo = 2
  + kTwo = 3
not-cleared: the sum begins with what was there
  - sum = 0;
untested: a test fails without the fault
  - x / 2
  ! Half.OfOne
"""
EXPECTED = """core/doubled killed by Half.OfFour
core/lost killed by Half.OfFour, which crashed
core/large SURVIVED halves of numbers above 4 are wrong, for which there is no test
core/constant killed by Half.OfFour
core/not-cleared killed by Half.OfFour
core/misspelt ERROR does not compile:
core/untested ERROR tests fail without the fault, or there are none:
4 killed, 1 survived, 2 could not be tried,"""
TEST = """#include "mhla/core/half.hpp"
TEST(Half, OfFour) { EXPECT_EQ(half(4), 2); }
TEST(Half, OfOne) { EXPECT_EQ(half(1), 1); }
"""


HEADER = """constexpr int kTwo = 2;
inline int sum = 1;
inline int half(int x) {
  sum = 0;
  return sum + x / 2 * kTwo / 2;
}
"""

# A line, the same with a fault, and with its switch, where it has one.
LINES = """
x = a + f(b, c);
x = a + f(b, d);
x = a + f(b, (::switches::on(1) ? (d) : (c)));

for (int i = 0; i < n; ++i) sum += x[i];
for (int i = 1; i < n; ++i) sum += x[i];
for (int i = (::switches::on(1) ? (1) : (0)); i < n; ++i) sum += x[i];

if (a && b || c) return x;  // a comment
if (a || c) return x;
if ((::switches::on(1) ? (a || c) : (a && b || c))) return x;

low = a == 1 ? 2 : a == 3 ? 4 : 5;
low = a == 3 ? 4 : 5;
low = (::switches::on(1) ? (a == 3 ? 4 : 5) : (a == 1 ? 2 : a == 3 ? 4 : 5));

x += y;
x = y;
{ if (::switches::on(1)) { x = y; } else { x += y; } }

const std::lock_guard lock(mutex);
;
no switch
"""


def expect_switches():
    """Compares lines with their switches."""
    for case in LINES.strip().split("\n\n"):
        line, new, expected = case.splitlines()
        fault = Fault("", None, "", old=line, new=new)
        choice = switches.choice_of(1, line, fault, ";")
        got = switches.switched(switches.without_comment(line), [choice])[0] if choice else "no switch"
        if got != expected:
            sys.exit(f"{line}\nhas the switch\n{got}\nexpected\n{expected}")


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
    expect_switches()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = {"include/mhla/core/half.hpp": HEADER,
                 "tests/core/half_test.cpp": TEST, "tests/mutants/core.txt": TABLE}
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        for name in ("mutation.py", "mutants/tables.py", "mutants/switches.py"):
            shutil.copy(TESTS / name, root / "tests" / name)
        expect(root, "*", 1, EXPECTED)
        expect(root, "core/doubled", 0, "core/doubled killed by Half.OfFour")
        changed = TEST.replace("half(4)", "2")
        (root / "tests/core/half_test.cpp").write_text(changed, encoding="utf-8")
        expect(root, "core/doubled", 1, "core/doubled SURVIVED")


main()
