"""Prints one table of the results of several classes of processors: classes.py RESULTS.json...

A line per case and class has the median time on one thread, the rate of the definition's
multiply-adds, this rate over the peak of the class in its run, and this rate over the rate of the
first class. Cases on two threads have the same columns again.
"""

import sys

from support import results


def text_of(seconds):
    """Text of a time in s, ms or us."""
    for unit, length in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= length:
            return f"{seconds / length:.2f} {unit}"
    return f"{seconds * 1e6:.2f} us"


def columns(case, first):
    """Columns of a case on some number of threads; `first` is that of the first class, or None."""
    if case is None:
        return f" {'':>12} {'':>9} {'':>7} {'':>7}"
    rate = case.counters["flops"]
    faster = f"{rate / first.counters['flops']:.2f}" if first else ""
    return (f" {text_of(case.seconds):>12} {rate / 1e9:9.2f} {case.counters['of_peak']:7.3f}"
            f" {faster:>7}")


def main():
    runs = {}  # class: (name without its threads, threads): case
    for path in sys.argv[1:]:
        context, cases = results.load(path)
        runs[results.class_of(context)] = {
            (case.name.rpartition("/")[0], case.threads): case for case in cases}
    keys = list(dict.fromkeys(key for cases in runs.values() for key in cases))
    names = list(dict.fromkeys(name for name, _ in keys))
    all_threads = sorted({threads for _, threads in keys})
    first = next(iter(runs.values()))

    case_width, class_width = (max(map(len, texts), default=0) for texts in (names, runs))
    titles = [f"{threads} thread{'s' if threads > 1 else ''}" for threads in all_threads]
    print(f"{'case':{case_width}} {'class':{class_width}}"
          + "".join(f" {title:>12} {'GFLOP/s':>9} {'of peak':>7} {'x first':>7}" for title in titles))
    for name in names:
        for label, cases in runs.items():
            line = f"{name:{case_width}} {label:{class_width}}" + "".join(
                columns(cases.get((name, threads)), first.get((name, threads)))
                for threads in all_threads)
            print(line.rstrip())


main()
