"""The tables of faults, tests/mutants/*.txt.

A table, FOLDER.txt or FOLDER.PART.txt, groups faults by header and program:

    # A comment
    NUMBERS = support/numbers.cpp -ITESTS/support

    [core/sum.hpp] core/sum_test.cpp NUMBERS Sum.AddsAllElements
    first-element-lost: the sum begins with the second element
      - for (Index i = 0; i < n; ++i) sum += x[i];
      + for (Index i = 1; i < n; ++i) sum += x[i];
    sum-never-cleared: a second sum begins with the first one
      - sum = 0;
      ! Sum.BeginsAtZero:Mean.IsTheSumOverTheCount

A group names the header below include/mhla, the sources below tests that make one program, and the
tests of the program that must fail, as --gtest_filter. Flags for the compiler may follow, where
TESTS is the folder of tests. ranks=N runs the program in N processes of Open MPI. A word in capital
letters stands for the words that the table gives it. For PyTorch, a group names a file below
examples/torch, and tests as FILE::FUNCTION.

A fault begins with its name and a sentence that says what is wrong. The text after - stands once in
the header, within a line. The text after + replaces it; without + it is removed. The tests after !
replace the tests of the group.
"""

import functools
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CONTRACT = re.compile(r'^#include "(contract/\w+)\.hpp"', re.M)


@dataclass(frozen=True)
class Program:
    sources: tuple
    flags: tuple
    ranks: int


@dataclass(frozen=True)
class Fault:
    """A text of a file that another one replaces, and the tests that must see it."""
    file: str
    program: Program
    tests: str
    id: str = ""
    why: str = ""
    old: str = ""
    new: str = ""


def fail(message):
    print(message, file=sys.stderr)
    sys.exit(2)


def read_group(file, words):
    """The fault that all faults of a group begin as."""
    flags = [word.replace("TESTS", str(TESTS)) for word in words if word.startswith("-")]
    sources = [word for word in words if word.endswith(".cpp")]
    ranks = [word for word in words if word.startswith("ranks=")]
    tests = [word for word in words if word[0] != "-" and word not in sources + ranks]
    apart = [f"{name}.cpp" for source in sources for name in CONTRACT.findall(read(TESTS / source))]
    sources += filter(lambda name: read(TESTS / name), apart)
    program = Program(tuple(sources), tuple(flags), int(ranks[0][6:]) if ranks else 0)
    return Fault(file, program, " ".join(tests))


def read_table(path, folder):
    """The faults of a table, in its order."""
    faults, sets, group, given = [], {}, None, set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = line.strip()
        if match := re.fullmatch(r"(?:([A-Z_]+) =|\[(\S+)\]) (.+)", line):
            words = [each for word in match[3].split() for each in sets.get(word, [word])]
            if match[1]:
                sets[match[1]] = words
            else:
                group = read_group(match[2], words)
        elif group and (match := re.fullmatch(r"([a-z0-9-]+): (.+)", line)):
            faults.append(replace(group, id=f"{folder}/{match[1]}", why=match[2]))
            given = set()
        elif faults and line[:2] in ("- ", "+ ", "! ") and line[0] not in given:
            given.add(line[0])
            field = {"-": "old", "+": "new", "!": "tests"}[line[0]]
            faults[-1] = replace(faults[-1], **{field: line[2:]})
        elif line and not line.startswith("#"):
            fail(f"{path}:{number}: not a line of a table, or there twice: {line}")
    return faults


@functools.cache
def read(path):
    return path.read_text(encoding="utf-8") if path.is_file() else ""
