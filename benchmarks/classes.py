"""Prints one table of several results: classes.py RESULTS.json...

A line a case, and for each instruction set the median time, what it is of the multiply-add peak of
that set, and how often faster the set is than the first one.
"""

import sys

from support import results


def text_of(seconds):
    """With a unit that leaves three digits or so before the point."""
    for unit, length in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= length:
            return f"{seconds / length:.2f} {unit}"
    return f"{seconds * 1e6:.2f} us"


def main():
    runs = [results.load(path) for path in sys.argv[1:]]
    sets = [context["instruction_set"] for context, _ in runs]
    by_name = [{case.name: case for case in cases} for _, cases in runs]
    names = list(dict.fromkeys(name for cases in by_name for name in cases))
    width = max(map(len, names), default=0)
    print(f"{'case':{width}}" + "".join(f" {name:>12} {'of peak':>7} {'x first':>7}" for name in sets))
    for name in names:
        line = f"{name:{width}}"
        for cases in by_name:
            case, first = cases.get(name), by_name[0].get(name)
            line += f" {text_of(case.seconds) if case else '':>12}"
            line += f" {case.counters['of_peak']:7.3f}" if case else " " * 8
            line += f" {first.seconds / case.seconds:7.2f}" if case and first else " " * 8
        print(line.rstrip())


main()
