"""Draws the charts of the pages from stored results: python3 .github/pictures/draw.py [--check]

Each chart ends with a digest of its results and of the script that draws it. With --check nothing
is drawn: the exit status is 1 if a chart is older than either of them. Drawing needs matplotlib.
"""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

PICTURES = Path(__file__).parent
ROOT = PICTURES.parents[1]
CHARTS = {  # picture: (script that draws it, its results)
    "throughput.svg": ("examples/throughput/chart.py", "examples/throughput/README.md"),
    "time_over_tokens.svg": ("benchmarks/charts.py", ".github/pictures/time_over_tokens.json"),
}


def results_of(path):
    """The text of a file of results; of a page the table under its heading Throughput."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        return text
    return re.search(r"\n## Throughput\n.*?\n(\|.*?)\n\n", text, re.S)[1]


def digest_of(script, results):
    """A comment that names what a chart is made of."""
    made_of = (ROOT / script).read_text(encoding="utf-8") + results_of(ROOT / results)
    return f"<!-- {results} {hashlib.sha256(made_of.encode()).hexdigest()} -->\n"


def draw(picture, script, results):
    path = os.pathsep.join([str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, ROOT / script, PICTURES / picture, ROOT / results], check=True,
                   env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"})
    with open(PICTURES / picture, "a", encoding="utf-8") as file:
        file.write(digest_of(script, results))


def main():
    old = []
    for picture, (script, results) in CHARTS.items():
        if sys.argv[1:] != ["--check"]:
            draw(picture, script, results)
        elif not (PICTURES / picture).read_text(encoding="utf-8").endswith(
                digest_of(script, results)):
            old.append(f"{picture} is older than {results} or {script}")
    if old:
        sys.exit("\n".join(old) + ", expected it to be drawn by .github/pictures/draw.py")


main()
