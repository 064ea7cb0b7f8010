"""Draws the results: charts.py PICTURE.svg RESULTS.json...

On the left is the fraction of a core's peak that each form reaches on each shape, on the right the
time over the number of tokens. Float, one thread. Backward is the gradient of either form of MHLA.
Steps of a stream are left out: reading the state bounds them, not the peak. Results of several
classes of processors are one line per class, of MHLA alone.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from support import results  # noqa: E402

FORMS = {  # form: colour
    "Bidirectional": "#1f77b4",
    "Causal": "#17becf",
    "Backward": "#9467bd",
    "Linear": "#2ca02c",
    "Softmax": "#d62728",
    "EigenProgram": "#9e9e9e",
}
MHLA = ("Bidirectional", "Causal")
GROWTH = "growth_"


def draw_peak(axes, cases):
    """Draws bars of of_peak, shape by shape."""
    shapes = list(dict.fromkeys(case.shape for case in cases))
    position = 0.0
    ticks = []
    for shape in shapes:
        of_shape = [case for form in FORMS for case in cases
                    if case.form == form and case.shape == shape]
        ticks.append(position + (len(of_shape) - 1) / 2)
        for case in of_shape:
            axes.bar(position, case.counters["of_peak"], width=0.9, color=FORMS[case.form])
            position += 1
        position += 1
    axes.set_xticks(ticks, shapes, rotation=30, ha="right")
    axes.set_ylabel("fraction of the multiply-add peak")
    axes.set_ylim(0, 1.1)  # room for the legend above the bars
    axes.grid(axis="y", alpha=0.3)
    axes.set_title("One core, float")
    used = [form for form in FORMS if any(case.form == form for case in cases)]
    axes.legend([plt.Rectangle((0, 0), 1, 1, color=FORMS[form]) for form in used], used,
                loc="upper center", ncol=len(used))


def draw_times(axes, title, lines):
    """Draws time over N, on two logarithmic axes. A line is a label, a colour and cases."""
    for label, colour, cases in lines:
        points = sorted((case.tokens, case.seconds * 1e3) for case in cases)
        if points:
            axes.loglog(*zip(*points), marker="o", markersize=4, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("tokens N")
    axes.set_ylabel("milliseconds")
    axes.grid(alpha=0.3)
    axes.set_title(title)
    axes.legend()


def draw_growth(axes, cases):
    """Draws the time of the forms over N."""
    labels = (("Softmax", "softmax"), ("Bidirectional", "MHLA, band of 16 blocks"),
              ("Backward", "its gradient"), ("Linear", "linear"))
    draw_times(axes, "One head of width 64, one core, float",
               [(label, FORMS[form], [case for case in cases if case.form == form])
                for form, label in labels])


def draw_peak_of_classes(axes, runs):
    """Draws of_peak over the shapes, a line per class."""
    for context, cases in runs:
        axes.plot([case.shape for case in cases], [case.counters["of_peak"] for case in cases],
                  marker="o", label=results.class_of(context))
    axes.tick_params(axis="x", rotation=30)
    axes.set_ylabel("fraction of the class's multiply-add peak")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.set_title("MHLA, one core, float")
    axes.legend()


def draw_growth_of_classes(axes, runs):
    """Draws the time of MHLA over N for each class."""
    draw_times(axes, "MHLA, band of 16 blocks, one head of width 64, one core, float",
               [(results.class_of(context), None, cases) for context, cases in runs])


def main():
    runs = []
    for path in sys.argv[2:]:
        context, cases = results.load(path)
        forms = FORMS if len(sys.argv) == 3 else MHLA
        cases = [c for c in cases if c.scalar == "float" and c.threads == 1 and c.form in forms]
        runs.append((context, cases))

    def chosen(growth):
        found = [(context, [c for c in cases if c.shape.startswith(GROWTH) == growth])
                 for context, cases in runs]
        return [(context, cases) for context, cases in found if cases]

    if len(runs) > 1:
        charts = [(draw_peak_of_classes, chosen(False)), (draw_growth_of_classes, chosen(True))]
    else:
        charts = [(draw, cases) for draw, growth in ((draw_peak, False), (draw_growth, True))
                  for _, cases in chosen(growth)]
    charts = [(draw, of_chart) for draw, of_chart in charts if of_chart]
    if not charts:
        print("no picture: none of the cases that ran is on a chart", file=sys.stderr)
        return
    figure, axes = plt.subplots(1, len(charts), figsize=(8 * len(charts), 5.5), squeeze=False)
    for place, (draw, of_chart) in zip(axes[0], charts):
        draw(place, of_chart)
    context = runs[0][0]
    figure.suptitle(f"{context['cpu_model']}, {context['compiler']}, commit {context['commit']}",
                    fontsize=9)
    figure.tight_layout()
    figure.savefig(sys.argv[1], metadata={"Date": None})  # the same bytes every time


main()
