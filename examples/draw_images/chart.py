"""Draws the results of draw_images: chart.py RESULTS.json PICTURE.png

A panel of drawn images per attention and a panel of real images, one below the other, with a
column per class. The smoothed training losses are below.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from charts import LABELS, draw_losses, plt, save  # noqa: E402

CLASSES = ["T-shirt", "trousers", "pullover", "dress", "coat",
           "sandal", "shirt", "sneaker", "bag", "boot"]
SIDE = 28  # pixels of an image
PITCH = SIDE + 2


def distance(judged):
    return f"distance {judged['mean']:.2f} ± {judged['deviation']:.2f}"


def draw_images(axes, images, title, classes):
    """Draws image i in column i % 10, on white."""
    rows = (len(images) + 9) // 10
    canvas = [[255] * (10 * PITCH) for _ in range(rows * PITCH)]
    for i, digits in enumerate(images):
        pixels = bytes.fromhex(digits)
        top, left = i // 10 * PITCH, i % 10 * PITCH
        for y in range(SIDE):
            canvas[top + y][left:left + SIDE] = pixels[y * SIDE:(y + 1) * SIDE]
    axes.imshow(canvas, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_ylabel(title, fontsize=10)
    axes.set_xticks([c * PITCH + SIDE / 2 for c in range(10)], CLASSES if classes else [""] * 10)
    axes.xaxis.tick_top()
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def chart(run):
    results, schedule, drawing = run["results"], run["schedule"], run["drawing"]
    panels = [(f"{LABELS[result['settings']['attention']]}\n{distance(result['frechet'])}",
               result["images"]) for result in results]
    panels.append((f"training images\n{distance(run['real']['frechet'])}", run["real"]["images"]))
    figure = plt.figure(figsize=(9, 2 * len(panels) + 4), layout="constrained")
    grid = figure.add_gridspec(len(panels) + 1, 1, height_ratios=[1] * len(panels) + [2])
    for i, (title, images) in enumerate(panels):
        draw_images(figure.add_subplot(grid[i, 0]), images, title, i == 0)
    losses = figure.add_subplot(grid[-1, 0])
    draw_losses(losses, results, "squared error of v",
                lambda result: f"{100 * result['frechet']['recognised']:.1f} % recognised")
    settings = results[0]["settings"]
    figure.suptitle(
        f"Images drawn by DiT of {settings['depth']} blocks of {settings['dim']} channels after "
        f"{schedule['steps']} steps of {schedule['batch']} images; Frechet distance of "
        f"{drawing['sets']} x {drawing['images']} to the test images", fontsize=9)
    return figure


save(chart)
