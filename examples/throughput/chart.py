"""Draws results of throughput and torch_peers.py: chart.py PICTURE.svg FILES.json...
or the table of a page, under its heading Throughput: chart.py PICTURE.svg PAGE.md

On the left are images per second of DiT-S/2 over their size. On the right is the speed of models
with MHLA over softmax: measured, by operation counts, and over PyTorch's compiled softmax.
"""

import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from charts import COLOURS, LABELS, plt  # noqa: E402

# Small, and the same bytes every time.
plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "throughput"})

WIDE = {"linear": {"linewidth": 5, "markersize": 9}}  # is seen under MHLA, which takes as long


def draw_sizes(axes, results, peers):
    """Draws images per second of DiT-S/2."""
    def draw(points, kind, style, suffix):
        points = sorted((int(row["input"].split()[0]), rate) for row, rate in points)
        if points:
            axes.loglog(*zip(*points), style, marker="o", color=COLOURS[kind],
                        label=LABELS[kind] + suffix, **WIDE.get(kind, {"markersize": 4}))

    dit = [row for row in results if row["model"] == "DiT-S/2"]
    for kind in COLOURS:
        draw([(row, row["items_per_second"][kind]) for row in dit], kind, "-", "")
    for kind in COLOURS:
        draw([(row, row["items_per_second"]) for row in peers
              if row["model"] == "DiT-S/2" and row["attention"] == kind], kind, "--",
             " (PyTorch, compiled)")
    pixels = sorted({int(row["input"].split()[0]) for row in dit})
    axes.set_xscale("log", base=2)
    axes.set_xticks(pixels, [str(n) for n in pixels])
    axes.set_xlabel("side of the image, pixels")
    axes.set_ylabel("images/s")
    axes.set_title("DiT-S/2")
    axes.grid(alpha=0.3)
    if dit:
        axes.legend(fontsize=8)


def draw_ratios(axes, results, peers):
    """Draws time with softmax over time with MHLA, case by case."""
    compiled = {(row["model"], row["input"]): row["over_mhla"] for row in peers
                if row["attention"] == "softmax"}
    ratios = lambda row, key: row[key]["softmax"] / row[key]["mhla"]
    names = [f"{row['model']}, {row['input']}" for row in results]
    places = range(len(results))
    axes.barh(places, [ratios(row, "seconds") for row in results], color=COLOURS["mhla"],
              label="measured")
    axes.plot([ratios(row, "flops") for row in results], places, "k|", markersize=9,
              label="by operation counts")
    axes.plot([compiled.get((row["model"], row["input"])) for row in results], places, "o",
              color=COLOURS["softmax"], markersize=4, label="over PyTorch's compiled softmax")
    axes.axvline(1, color="k", linewidth=0.8)
    axes.set_xscale("log")
    axes.minorticks_off()  # a page takes pictures of up to 60,000 bytes
    axes.set_yticks(places, names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("times faster with MHLA")
    axes.set_title("MHLA over softmax")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8)


def of_table(page):
    """The table of a page in the form of the JSON files: ratios of times and of operations, with
    those of MHLA as 1.
    """
    table = re.search(r"\n## Throughput\n.*?\n(\|.*?)\n\n", page, re.S)[1]
    columns, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")]
                         for line in table.splitlines())
    results, peers = [], []
    for row in rows:
        numbers = {column: float(cell.rstrip("*").replace(",", ""))
                   for column, cell in list(zip(columns, row))[1:] if cell}
        model, _, size = row[0].partition(", ")
        rates = {"softmax": numbers["softmax"], "linear": numbers["linear"],
                 "mhla": numbers["MHLA"]}
        about = {"model": model, "input": size, "threads": 2}
        results.append(about | {"items_per_second": rates,
                                "seconds": {"softmax": numbers["MHLA over softmax"], "mhla": 1},
                                "flops": {"softmax": numbers["predicted"], "mhla": 1}})
        for attention, column in (("softmax", "over PyTorch's softmax"), ("mhla", "over its MHLA")):
            if column in numbers:
                peers.append(about | {"attention": attention, "mode": "compiled",
                                      "over_mhla": numbers[column],
                                      "items_per_second": rates["mhla"] / numbers[column]})
    return {"results": results, "peers": peers}


def main():
    results, peers = [], []
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8") as file:
            content = of_table(file.read()) if path.endswith(".md") else json.load(file)
        results += content.get("results", [])
        peers += content.get("peers", [])
    threads = max(row["threads"] for row in results)
    results = [row for row in results if row["threads"] == threads]
    peers = [row for row in peers if row["threads"] == threads and row["mode"] == "compiled"]
    figure, axes = plt.subplots(1, 2, figsize=(13, 5.5))
    draw_sizes(axes[0], results, peers)
    draw_ratios(axes[1], results, peers)
    figure.suptitle(f"{threads} thread{'s' * (threads > 1)}, float", fontsize=9)
    figure.tight_layout()
    figure.savefig(sys.argv[1], metadata={"Date": None})


main()
