"""Scripts refuse wrong arguments in one sentence, before they build anything."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REFUSED = (
    ("tests/run.sh attention", "unknown argument attention, expected an option of ctest"),
    ("tests/run.sh --all --sanitise", "unknown argument --sanitise, expected an option of ctest"),
    ("examples/run.sh nonesuch", 'no example "nonesuch"; there are: '),
    ("examples/run.sh claims --quick", "claims: the first argument is --quick, expected a folder"),
)

for command, reason in REFUSED:
    script, *arguments = command.split()
    done = subprocess.run(["bash", ROOT / script, *arguments], capture_output=True, text=True,
                          check=False)
    if done.returncode != 2 or reason not in done.stderr:
        sys.exit(f"{command}: expected status 2 and '{reason}', got {done.returncode}:\n"
                 f"{done.stdout}{done.stderr}")
