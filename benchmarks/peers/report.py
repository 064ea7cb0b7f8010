"""Times a peer of a case and reports the time beside this library's."""

import statistics
import time

REPETITIONS = 5
MIN_SECONDS = 0.1  # per repetition


def measure(*calls):
    """Seconds of each call: the median of some repetitions; the calls take turns."""
    def seconds_of(call, times):
        start = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - start) / times

    times = [max(1, round(MIN_SECONDS / seconds_of(call, 1))) for call in calls]
    rounds = [[seconds_of(*pair) for pair in zip(calls, times)] for _ in range(REPETITIONS)]
    return [statistics.median(seconds) for seconds in zip(*rounds)]


def report(case, peer, worst, call, rows):
    """Times a call whose result is right, and appends a row; returns whether it is right."""
    name = f"{case.shape}/threads:{case.threads}"
    if not worst <= 1:
        print(f"{name:28} {peer:23} ERROR: wrong result: {worst} times the allowed error")
        return False
    add_row(case, peer, *measure(call), rows)
    return True


def add_row(case, peer, seconds, rows):
    """Prints and appends the time of a peer and of a case of this library."""
    name, ratio = f"{case.shape}/threads:{case.threads}", seconds / case.seconds
    print(f"{name:28} {peer:23} {seconds * 1e3:10.2f} ms {case.seconds * 1e3:10.2f} ms"
          f" {ratio:8.2f}", flush=True)
    rows.append({"shape": case.shape, "threads": case.threads, "peer": peer,
                 "seconds": seconds, "mhla_seconds": case.seconds, "ratio": ratio})
