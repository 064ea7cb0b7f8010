"""What results name: card, driver, versions, commit and command."""

import os
import subprocess
import sys
from pathlib import Path

import torch


def output_of(*command):
    """The first line that a command prints, or "unknown"."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True,
                              cwd=Path(__file__).parent)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0]


def context_of(device):
    """Names of what ran, and their values. device: "cuda" or "cpu" """
    on_cuda = device == "cuda"
    return {"card": torch.cuda.get_device_name() if on_cuda else "none, a CPU",
            "driver": output_of("nvidia-smi", "--query-gpu=driver_version",
                                "--format=csv,noheader") if on_cuda else "none",
            "PyTorch": torch.__version__, "CUDA": torch.version.cuda,
            "cuDNN": torch.backends.cudnn.version() if on_cuda else "none",
            "commit": os.environ.get("MHLA_COMMIT") or output_of(
                "git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"),
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])}


def listed(context):
    """A list in Markdown."""
    return "\n".join(f"- {name}: {value}" for name, value in context.items())
