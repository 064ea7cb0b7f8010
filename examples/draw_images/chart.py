"""Draws the results of draw_images: chart.py RESULTS.json PICTURE.png

A panel of drawn images per attention and a panel of real images, with a column per class. The
smoothed training losses are below.
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


def draw_images(axes, images, title):
    """Draws image i in column i % 10, on white."""
    rows = (len(images) + 9) // 10
    canvas = [[255] * (10 * PITCH) for _ in range(rows * PITCH)]
    for i, digits in enumerate(images):
        pixels = bytes.fromhex(digits)
        top, left = i // 10 * PITCH, i % 10 * PITCH
        for y in range(SIDE):
            canvas[top + y][left:left + SIDE] = pixels[y * SIDE:(y + 1) * SIDE]
    axes.imshow(canvas, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_title(title, fontsize=11)
    axes.set_xticks([c * PITCH + SIDE / 2 for c in range(10)], CLASSES, rotation=45, fontsize=8)
    axes.xaxis.tick_top()
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def chart(run):
    results, schedule, drawing = run["results"], run["schedule"], run["drawing"]
    panels = len(results) + 1
    figure = plt.figure(figsize=(5.2 * panels, 8.6), layout="constrained")
    grid = figure.add_gridspec(2, panels, height_ratios=[1.35, 1])
    for i, result in enumerate(results):
        name = LABELS[result["settings"]["attention"]]
        draw_images(figure.add_subplot(grid[0, i]), result["images"],
                    f"{name}: {distance(result['frechet'])}")
    draw_images(figure.add_subplot(grid[0, -1]), run["real"]["images"],
                f"training images: {distance(run['real']['frechet'])}")
    losses = figure.add_subplot(grid[1, :])
    draw_losses(losses, results, "squared error of v",
                lambda result: f"{100 * result['frechet']['recognised']:.1f} % recognised")
    settings = results[0]["settings"]
    figure.suptitle(
        f"Images drawn by DiT of {settings['depth']} blocks of {settings['dim']} channels behind "
        f"{schedule['steps']} steps of {schedule['batch']} images; Frechet distance of "
        f"{drawing['sets']} x {drawing['images']} to the test images", fontsize=11)
    return figure


save(chart)
