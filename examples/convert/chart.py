"""Draws the results of convert: chart.py RESULTS.json PICTURE.png

The upper row has the fitted mixing matrix of each layer of the first checkpoint. The lower row has
the test accuracy of all checkpoints, before and after conversion and an epoch later.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from charts import plt, save  # noqa: E402

COLORS = {"fitted": "tab:red", "locality": "tab:blue", "uniform": "tab:gray"}


def chart(run):
    results = run["results"]
    matrices = results[0]["mixing"]
    figure = plt.figure(figsize=(12, 7), layout="constrained")
    grid = figure.add_gridspec(2, len(matrices), height_ratios=[3, 4])
    for b, matrix in enumerate(matrices):
        place = figure.add_subplot(grid[0, b])
        image = place.imshow(matrix, vmin=0, cmap="viridis")
        place.set_title(f"fitted mixing of layer {b + 1}", fontsize=9)
        place.set_xlabel("key block", fontsize=8)
        place.set_ylabel("query block", fontsize=8)
        place.locator_params(integer=True)
        place.tick_params(labelsize=7)
        figure.colorbar(image, ax=place, fraction=0.046, pad=0.04)

    place = figure.add_subplot(grid[1, :])
    for result in results:
        for start, color in COLORS.items():
            of_start = result["starts"][start]
            accuracies = [result["test_accuracy"], of_start["converted"], of_start["trained"]]
            place.plot(range(3), [100 * a for a in accuracies], "o-", color=color,
                       label=start if result is results[0] else None)
    attentions = sorted({result["teacher"]["attention"] for result in results})
    place.set_xticks(range(3), [" and ".join(attentions), "converted to MHLA", "an epoch later"])
    place.set_ylabel("test accuracy, %")
    place.grid(alpha=0.3)
    place.legend(title="mixing matrices", frameon=False)
    figure.suptitle(f"Fashion-MNIST; fitted to {run['fit_images']} images, an epoch of "
                    f"{run['images']}", fontsize=10)
    return figure


save(chart)
