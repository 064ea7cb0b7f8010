"""Tests the claims of the paper on mixing: claims.py TRAIN_IMAGES RESTORE_VIDEO VIDEO FOLDER [arguments]

Trains every variant with every seed, by the programs train_images and restore_video. Keeps each
result as FOLDER/VARIANT.SEED.json and prints tables: mean and range over the seeds. Results in the
folder of the same arguments are not trained again. Arguments, such as --quick, go to the programs.
"""

import json
import os
import subprocess
import sys

SEEDS = (1, 2, 3)
MHLA = ["--attention", "mhla"]
IMAGES = {
    "softmax": ["--attention", "softmax"],
    "linear": ["--attention", "linear"],
    "MHLA, 4 blocks": MHLA + ["--blocks", "4"],
    "MHLA, 16 blocks": MHLA,
    "MHLA, 64 blocks": MHLA + ["--blocks", "64"],
    "MHLA, started uniform": MHLA + ["--init", "uniform"],
    "MHLA, locality frozen": MHLA + ["--freeze-mixing"],
    "MHLA, uniform frozen": MHLA + ["--init", "uniform", "--freeze-mixing"],
    "softmax and convolution": ["--attention", "softmax", "--lepe", "3"],
    "linear and convolution": ["--attention", "linear", "--lepe", "3"],
    "MHLA and convolution": MHLA + ["--lepe", "3"],
}
VIDEO = {
    "linear, gate": ["--attention", "linear"],
    "linear, no gate": ["--attention", "linear", "--no-gate"],
    "MHLA, gate": MHLA,
    "MHLA, no gate": MHLA + ["--no-gate"],
}


def result_of(command, prefix):
    """The first result of PREFIX.json; runs the command if it has not written the file yet."""
    options = json.dumps(command[1:])
    written = prefix + ".options.json"
    known = None
    if os.path.exists(written) and os.path.exists(prefix + ".json"):
        with open(written, encoding="utf-8") as file:
            known = file.read()
    if known != options:
        if os.path.exists(written):
            os.remove(written)  # so that it never describes other results
        subprocess.run([*command, "--output", prefix], check=True, stdout=subprocess.DEVNULL)
        with open(written, "w", encoding="utf-8") as file:
            file.write(options)
    with open(prefix + ".json", encoding="utf-8") as file:
        return json.load(file)["results"][0]


def print_table(variants, command, folder, title, figures):
    """Prints a row per variant: the mean of each figure, and the range of the first."""
    print(f"| {title} | " + " | ".join(name for name, _, _ in figures) + " |")
    print("|---" * (1 + len(figures)) + "|")
    for variant, options in variants.items():
        name = variant.replace(", ", "-").replace(" ", "-")
        results = [result_of([*command, *options, "--seed", str(seed)],
                             os.path.join(folder, f"{name}.{seed}")) for seed in SEEDS]
        cells = []
        for _, digits, value in figures:
            values = [value(result) for result in results]
            mean, low, high = (f"{x:.{digits}f}" for x in
                               (sum(values) / len(values), min(values), max(values)))
            cells.append(mean if cells else f"{mean} ({low} to {high})")
        print(f"| {variant} | " + " | ".join(cells) + " |", flush=True)


def main():
    train_images, restore_video, video, folder, *arguments = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    print_table(IMAGES, [train_images, *arguments], folder, "images classified",
                [("test accuracy, %", 1, lambda result: 100 * result["test_accuracy"]),
                 ("training loss", 3, lambda result: result["training_loss"])])
    print()
    print_table(VIDEO, [restore_video, "--video", video, *arguments], folder, "video restored",
                [("PSNR held out, dB", 2, lambda result: result["psnr"])])


main()
