"""Draws the results of write_text: chart.py RESULTS.json PICTURE.png

The smoothed training loss of each attention, and the cost per token by position: time, and memory
of the states.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from charts import COLOURS, LABELS, draw_losses, plt, save  # noqa: E402


def draw_cost(axes, results, of_token, what):
    for result in results:
        name = result["settings"]["attention"]
        positions = [token["position"] for token in result["tokens"]]
        axes.plot(positions, [of_token(token) for token in result["tokens"]], "o-",
                  color=COLOURS[name], label=LABELS[name])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("position of the token")
    axes.set_ylabel(what)
    axes.grid(alpha=0.3)
    axes.legend()


def chart(run):
    results = run["results"]
    figure, (losses, time, memory) = plt.subplots(
        1, 3, figsize=(14, 4.5), width_ratios=[2, 1, 1], layout="constrained")
    draw_losses(losses, results, "bits a byte in training",
                lambda result: f"{result['held_out_bits']:.3f} bits a byte held out")
    draw_cost(time, results, lambda token: token["microseconds"], "microseconds a token")
    draw_cost(memory, results, lambda token: token["state_bytes"] / 2**20, "MiB kept")
    schedule, settings = run["schedule"], results[0]["settings"]
    figure.suptitle(f"{schedule['steps']} steps of {schedule['batch']} sequences of "
                    f"{settings['context']} bytes, {settings['depth']} layers of "
                    f"{settings['dim']} channels", fontsize=10)
    return figure


save(chart)
