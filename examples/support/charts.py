"""Shared by the charts: matplotlib, a colour for each attention, and curves of losses.

Exit status 3: this Python has no matplotlib.
"""

import json
import sys

try:
    import matplotlib
except ImportError:
    sys.exit(3)

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

COLOURS = {"softmax": "#d62728", "linear": "#2ca02c", "mhla": "#1f77b4"}
LABELS = {"softmax": "softmax", "linear": "linear", "mhla": "MHLA"}


def smoothed(losses, width):
    """Means over the last `width` steps at each step, from the first complete mean on."""
    sums = [0.0]
    for loss in losses:
        sums.append(sums[-1] + loss)
    return [(i, (sums[i] - sums[i - width]) / width) for i in range(width, len(sums))]


def draw_losses(axes, results, what, outcome):
    """Draws the losses of all results, with outcome(result) beside each name."""
    steps = max(len(result["losses"]) for result in results)
    width = max(1, min(steps // 20, 100))
    largest = 0.0
    for result in results:
        name = result["settings"]["attention"]
        curve = smoothed(result["losses"], width)
        largest = max(largest, curve[len(curve) // 20][1])
        axes.plot(*zip(*curve), color=COLOURS[name], label=f"{LABELS[name]}: {outcome(result)}")
    axes.set_ylim(0, largest * 1.05)
    axes.set_xlabel("step")
    axes.set_ylabel(f"{what}, mean of {width} steps" if width > 1 else what)
    axes.grid(alpha=0.3)
    axes.legend()


def save(draw):
    """Saves the figure draw(results) as PICTURE: chart.py RESULTS.json PICTURE."""
    with open(sys.argv[1], encoding="utf-8") as file:
        figure = draw(json.load(file))
    figure.savefig(sys.argv[2], dpi=110)
