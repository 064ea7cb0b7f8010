"""Draws the results of train_images: chart.py RESULTS.json PICTURE.png

The upper row has the smoothed training loss of each attention. The lower rows have, for each layer
with a mixing matrix, the initial and the learned matrix.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from charts import draw_losses, plt, save  # noqa: E402


def draw_mixing(figure, places, initial, learned, layer):
    """Draws a pair of matrices on one scale of colours."""
    most = max(max(map(max, initial)), max(map(max, learned)))
    for place, matrix, title in zip(places, (initial, learned), ("at the start", "learned")):
        image = place.imshow(matrix, vmin=0, vmax=most, cmap="viridis")
        place.set_title(f"mixing of layer {layer}, {title}", fontsize=9)
        place.set_xlabel("key block", fontsize=8)
        place.set_ylabel("query block", fontsize=8)
        place.locator_params(integer=True)
        place.tick_params(labelsize=7)
    figure.colorbar(image, ax=list(places), fraction=0.05)


def chart(run):
    results = run["results"]
    layers = [(result, layer) for result in results
              for layer in range(len(result["learned_mixing"]))]
    rows = 1 + (len(layers) + 1) // 2  # two pairs a row
    figure = plt.figure(figsize=(12, 4.5 + 3 * (rows - 1)), layout="constrained")
    grid = figure.add_gridspec(rows, 4, height_ratios=[4.5] + [3] * (rows - 1))
    draw_losses(figure.add_subplot(grid[0, :]), results, "training loss",
                lambda result: f"test accuracy {100 * result['test_accuracy']:.1f} %")
    for i, (result, layer) in enumerate(layers):
        places = [figure.add_subplot(grid[1 + i // 2, i % 2 * 2 + j]) for j in range(2)]
        draw_mixing(figure, places, result["initial_mixing"][layer],
                    result["learned_mixing"][layer], layer + 1)
    schedule = run["schedule"]
    figure.suptitle(f"Fashion-MNIST, {run['images']} images, {run['epochs']} epochs, "
                    f"batches of {schedule['batch']}", fontsize=10)
    return figure


save(chart)
